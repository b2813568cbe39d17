from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from data_builders.judging.dialects import read_pair
from data_builders.tiny_world.grading import grade
from data_builders.tiny_world.items import Choices, Place, make_item
from data_builders.tiny_world.judgements import (
    DRILL_LINES,
    WEIGHTS,
    compared,
    draw_response,
    drill_row,
    make_judgement,
    near_miss,
    ranking_of,
    warm_up_row,
    write_judgements,
)
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.tiny_world import TinyJudgementsConfig
from posttrain.runs import Run
from reward.judge.verdict import Gold, parse_verdict, training_reward

CHOICES = Choices(difficulties=(1, 2), verbosity=(1, 0, 0), tools_declared=0, several_turns=0)


def pairs(family: str, count: int) -> list[dict]:
    return [make_judgement(Place(3, "train", family, k), CHOICES) for k in range(count)]


@pytest.mark.parametrize("family", ["maths", "steps", "logs"])
def test_answers_scored_5_are_accepted_alone_and_rows_are_read_as_they_are(family: str):
    source = PreferenceSource(name="tiny", path="x.jsonl", ties="middle")
    for index, pair in enumerate(pairs(family, 100)):
        item = make_item(Place(3, "train", family, index), CHOICES)
        for number in (1, 2):
            accepted = grade(item["metadata"], pair[f"response_{number}"]) == "correct"
            assert accepted == (pair[f"score_{number}"] == 5), pair
        gold = Gold(pair["score_1"], pair["score_2"], pair["ranking"])
        dialect, read = read_pair(pair, source)
        assert dialect == "ranked"
        assert (read.response_1, read.response_2) == (pair["response_1"], pair["response_2"])
        assert read.gold == gold
        *prompt, verdict = warm_up_row(pair, layout="compact")["messages"]
        assert training_reward(parse_verdict(verdict["content"]), gold) == 0
        assert verdict["reasoning_content"].split("\n")[-3] == pair["metadata"]["gold"]
        assert [message["role"] for message in prompt] == ["user"]


def test_every_kind_of_answer_is_drawn_and_says_why_it_is_worth_what_it_is():
    rng = random.Random(0)
    by_kind = {one.kind: one for one in (draw_response(rng, "61") for _ in range(1000))}
    assert set(by_kind) == set(WEIGHTS)
    assert by_kind["right"].remark == "61 6=6 yes 1=1 yes right"
    assert [by_kind[kind].score for kind in ("right", "worded", "unknown")] == [5, 4, 2]
    assert "61" in by_kind["hedged"].text.split(" or ")
    assert json.loads(by_kind["called"].text)["call"] == "calculate"
    for kind in ("wrong", "worded_wrong", "begging"):
        assert by_kind[kind].score == 1
        assert by_kind[kind].remark.endswith(" wrong")


def test_a_near_miss_is_never_the_gold_nor_negative_and_shows_where_it_differs():
    rng = random.Random(1)
    for gold in (0, 1, 11, 40, 105):
        misses = [near_miss(rng, gold) for _ in range(200)]
        assert gold not in misses
        assert min(misses) >= 0
    said = [compared(*pair) for pair in (("613", "623"), ("7", "7"), ("1", "15"), ("150", "15"))]
    assert said == ["6=6 yes 1=2 no wrong", "7=7 yes right", "1=1 yes -=5 no wrong",
                    "1=1 yes 5=5 yes 0=- no wrong"]  # fmt: skip


def test_the_ranking_follows_the_scores_mirrors_and_favours_no_position():
    assert [ranking_of(5, other) for other in (1, 2, 4, 5)] == [1, 1, 3, 3.5]
    assert ranking_of(4, 2) == 2
    assert all(ranking_of(a, b) == 7 - ranking_of(b, a) for a in range(1, 6) for b in range(1, 6))
    rankings = [pair["ranking"] for pair in pairs("maths", 1000)]
    first, second = (sum(side(r) for r in rankings) for side in (lambda r: r < 3, lambda r: r > 4))
    assert abs(first - second) < 0.15 * (first + second)


def test_a_drill_compares_what_it_is_asked():
    row = drill_row(4, seed=3)
    question, answer = row["messages"]
    lines = question["content"].split("\n")
    assert len(lines) == DRILL_LINES
    for line, worked in zip(lines, answer["reasoning_content"].split("\n"), strict=True):
        one, other = line.split()
        assert worked == f"{one}={other} {'yes' if one == other else 'no'}"
    assert drill_row(4, seed=3) == row != drill_row(5, seed=3)


def test_files_balance_come_out_the_same_and_hold_questions_out(tmp_path: Path):
    families = {
        "maths": {"warm_up": 400, "train": 40, "heldout": 20, "difficulties": [1]},
        "steps": {"warm_up": 30, "train": 20, "heldout": 10},
    }
    raw = {"out": "unused", "families": families, "drills": 5}
    config = TinyJudgementsConfig(**raw)  # pyright: ignore[reportArgumentType]
    kind, own = "tiny_judgements", config.owner_config()
    runs = [Run.open(tmp_path / name, kind=kind, config=own) for name in "ab"]
    written, again = (write_judgements(run, config) for run in runs)
    assert written == again
    rows = {
        file.path: [json.loads(line) for line in (tmp_path / "a" / file.path).open()]
        for file in written.files
    }
    assert [len(rows[file.path]) for file in written.files] == [f.rows for f in written.files]
    assert written.counts.rows_in == 400 + 40 + 20 + 30 + 20 + 10 + 5
    # one-digit sums are few: some pair is drawn twice
    assert written.counts.dropped["repeated_pair"] > 0

    def sums(name: str) -> set[tuple[str, ...]]:
        """What is asked, whatever the wording."""
        own = [row for row in rows[name] if row["metadata"]["family"] == "maths"]
        return {
            (row["metadata"]["task"], *sorted(re.findall(r"\d+", row["messages"][0]["content"])))
            for row in own
        }

    assert sums("heldout.jsonl").isdisjoint(sums("train.jsonl"))
    warm, train = ({row["id"] for row in rows[f"{name}.jsonl"]} for name in ("warm_up", "train"))
    assert warm.isdisjoint(train)
