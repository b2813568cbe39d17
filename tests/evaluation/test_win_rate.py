"""Two policies' samples before a scripted judge: who wins, in both orders, with nothing lost."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from posttrain.chat.parse import ParsedCompletion
from posttrain.errors import ConfigError
from posttrain.evaluation.win_rate import Duel, win_rows
from posttrain.rollouts import Completion, Step
from posttrain.runs import read_artifact
from posttrain.sampling.sampler import Request
from tests.data_builders.small_build import script
from tests.evaluation import small_eval
from tests.evaluation.scripted import prompt
from tests.evaluation.test_judges import verdict
from tests.sampling.scripted import END, Scripted
from tests.sampling.small_stage import sample, write_recipe

_SHOWN = re.compile(r"\[A1\](.*)\[/A1\]\n\[A2\](.*)\[/A2\]", re.DOTALL)
Judge = Callable[[Request, random.Random], str]


def duel(
    *preferred: int | None, n: int = 0, answers: tuple[str, str] = ("old", "new"), source: str = "s"
) -> Duel:
    """A duel of 10 tokens against 5, judged so in the two orders."""
    asked = replace(prompt(n), source=source, setting="u")
    parsed = ParsedCompletion(None, "", (), (), True)
    before, after = (
        Completion(asked.id, 0, (Step("", parsed, "stop", 0, k, 1),), "stop") for k in (10, 5)
    )
    return Duel(asked, 0, before, after, answers, tuple({"preferred": one} for one in preferred))


@pytest.mark.parametrize(
    ("before_first", "after_first", "outcome", "disagree"),
    [
        (2, 1, 1.0, False),  # the new answer, wherever it stands
        (1, 2, 0.0, False),
        (1, 1, 0.5, True),  # the first, whoever stands there
        (2, 2, 0.5, True),
        (0, 0, 0.5, False),
        (2, 0, 0.5, False),
        (None, 1, None, None),
        (2, None, None, None),
    ],
)
def test_the_outcome_of_two_orders(
    before_first: int | None, after_first: int | None, outcome: float | None, disagree: bool | None
):
    found = duel(before_first, after_first)
    assert (found.outcome, found.disagree) == (outcome, disagree)


def test_rates_by_hand():
    duels = [duel(2, 1, n=0), duel(2, 1, n=1), duel(1, 2, n=2), duel(1, 1, n=3), duel(None, 1, n=4)]
    duels.append(duel(n=5, answers=("new", "new "), source="v"))
    rows = {row["unit"].partition(".")[0]: row for row in win_rows(duels, seed=0)}
    found = {name: rows["s"][name]["value"] for name in ("win", "tie", "loss", "score", "disagree")}
    assert found == {"win": 0.5, "tie": 0.25, "loss": 0.25, "score": 0.625, "disagree": 0.25}
    assert (rows["s"]["duels"], rows["s"]["unjudged"]) == (5, 1)
    assert (rows["all"]["same"], rows["all"]["score"]["value"]) == (1, 0.6)
    assert rows["s"]["tokens"]["difference"] == -5
    assert rows["v"]["disagree"] is None


def answers(text: str) -> Judge:
    return lambda request, rng: f"hm</think>{text.format(rng.randrange(100))}{END}"


def prefers_new(request: Request, rng: random.Random) -> str:
    first, _ = _SHOWN.findall(request.messages[-1].content)[-1]
    return f"</think>{verdict(5, 1, 1) if 'new' in first else verdict(1, 5, 6)}{END}"


def prefers_first(request: Request, rng: random.Random) -> str:
    return f"</think>{verdict(4, 2, 2)}{END}"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of two policies that answer the same 12 questions."""
    folder = tmp_path_factory.mktemp("sides")
    for name, said in (("old", "the old {}"), ("new", "new {}"), ("alike", "the old {}")):
        settings = [{"name": "no_tools", "thinking": 1.0}]
        recipe = write_recipe(folder / name, settings=settings, n=2)
        sample(recipe, sampler=Scripted(answers(said)))
    return folder


def compare(folder: Path, out: Path, judge: Judge, **keys: Any) -> Scripted:
    """`python scripts/win_rate.py --config …` with this judge."""
    raw = {
        "out": str(out),
        "before": str(folder / "old/out"),
        "after": str(folder / "new/out"),
        "judge": {
            "models": [
                {"backend": {"kind": "transformers"}, "checkpoint": "judge", "layout": "compact"}
            ],
            "retries": 0,
        },
        **keys,
    }
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(raw))
    sampler, module = Scripted(judge), script("win_rate")

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Scripted]:
        yield sampler

    with patch("posttrain.sampling.open.opened_sampler", opened):
        module.main(["--config", str(path)])
    return sampler


def rows(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "metrics.json").read_text())["rows"]


def test_the_better_policy_wins_in_both_orders(sides: Path, tmp_path: Path):
    judge = compare(sides, tmp_path / "out", prefers_new)
    (row,) = rows(tmp_path / "out")
    assert (row["duels"], row["questions"]) == (24, 12)
    assert row["score"]["value"] == row["win"]["value"] == 1.0
    assert sum(map(len, judge.calls)) == 48
    manifest = read_artifact(tmp_path / "out", kind="win_rate")
    assert manifest.counts.kept == 24
    assert {parent.digest for parent in manifest.parents} == {
        read_artifact(sides / name / "out").digest for name in ("old", "new")
    }
    lines = [json.loads(line) for line in (tmp_path / "out/duels.jsonl").open()]
    assert all(line["after_first"]["verdict"] == [5, 1, 1] for line in lines)
    page = (tmp_path / "out/report.html").read_text()
    assert "orders disagree" in page


def test_the_same_answers_are_a_tie_that_nobody_is_asked_about(sides: Path, tmp_path: Path):
    after = str(sides / "alike/out")
    judge = compare(sides, tmp_path / "out", prefers_first, after=after, prompts=5)
    (row,) = rows(tmp_path / "out")
    assert (row["same"], row["tie"]["value"]) == (10, 1.0)
    assert sum(map(len, judge.calls)) == 0
    # fewer prompts are counted
    manifest = read_artifact(tmp_path / "out")
    assert (manifest.counts.kept, manifest.counts.dropped) == (10, {"not_chosen": 14})


def test_sides_that_were_asked_otherwise_are_refused(sides: Path, tmp_path: Path):
    # the same prompt, asked with a budget
    settings = [{"name": "no_tools", "thinking": 1.0, "reasoning_budget": 9}]
    recipe = write_recipe(tmp_path / "budget", settings=settings, n=2)
    sample(recipe, sampler=Scripted(answers("x")))
    with pytest.raises(ConfigError, match="is another one in"):
        compare(sides, tmp_path / "out", prefers_new, after=str(tmp_path / "budget/out"))


def prefers_56(request: Request, rng: random.Random) -> str:
    first, second = _SHOWN.findall(request.messages[-1].content)[-1]
    if ("56" in first) == ("56" in second):
        return f"</think>{verdict(3, 3, 1)}{END}"
    return f"</think>{verdict(5, 1, 2) if '56' in first else verdict(1, 5, 5)}{END}"


def test_two_checkpoints_of_one_evaluation(tmp_path: Path):
    small_eval.evaluate(small_eval.write_recipe(tmp_path), "--task", "sums")
    run = str(tmp_path / "out")
    compare(tmp_path, tmp_path / "w", prefers_56, before=f"{run}:sft", after=f"{run}:dpo")
    found = {row["unit"]: row for row in rows(tmp_path / "w")}
    # the second never calls an undeclared tool, and says 56 instead; with tools both are the same
    assert found["sums.no_tools off"]["win"]["value"] > 0
    assert found["all"]["loss"]["value"] == 0.0
    assert found["sums.with_tools on"]["same"] == found["sums.with_tools on"]["duels"]
    with pytest.raises(ConfigError, match="several checkpoints"):
        compare(tmp_path, tmp_path / "x", prefers_56, before=run, after=f"{run}:dpo")
