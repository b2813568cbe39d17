"""Reports of RLHF and of a judge's training: what they say, against the rollouts that were written."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from posttrain.chat import parse_completion
from posttrain.config.grpo import GrpoLossConfig
from posttrain.config.judge import LengthConfig, PairingConfig
from posttrain.errors import DataError
from posttrain.group_rewards import Group, GroupReward
from posttrain.pages.rl import teachers, tiles
from posttrain.pages.rlvr import learned_tile
from posttrain.pages.write import write_report
from posttrain.records import Message, Score
from posttrain.report.curves import bins
from posttrain.report.section import Table
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.runs import Counts, Run
from posttrain.training.rl.batch import ScoredGroup, with_advantages
from posttrain.training.rl.files import group_row, join_parts, rollout_file, write_part
from posttrain.training.rl.metrics import (
    AVERAGED,
    _run_means,
    batch_metrics,
    group_stats,
    run_stats,
)
from reward.judge.verdict import VerdictReward
from reward.rlhf import JudgedReward
from tests.pages.conftest import write_rows
from tests.pages.reading import Reader, cells, page_of, section, sections
from tests.reward.judge.judging import config, judge_of, said
from tests.sampling.scripted import END

GENERATIONS, PROMPTS = 4, 2


class Graded:
    """Right is an answer that begins with 1."""

    def grade(self, attempts: Sequence[Any]) -> list[Score]:
        return [Score(float(a.completion.answer.startswith("1")), "", "") for a in attempts]


def sometimes(request: Any, rng: random.Random) -> str:
    """A judge that fails where an answer says so."""
    text = request.messages[-1].content
    return f"hm</think>no verdict{END}" if "unreadable" in text else said(request)


def judged_reward() -> JudgedReward:
    blocks = {"config": config(max_failure_rate=0.9), "pairing": PairingConfig()}
    graders = {"digits": Graded()}
    return JudgedReward(judge_of(sometimes), length=LengthConfig(), graders=graders, **blocks)


def completion_of(prompt: Prompt, index: int, reasoning: str, answer: str | None) -> Completion:
    """One step, its ids the bytes of its text; without an answer it was cut while it reasoned."""
    text = reasoning if answer is None else f"{reasoning}</think>{answer}{END}"
    finish, ids = "length" if answer is None else "stop", tuple(text.encode())
    sampled = {"prompt_tokens": 2, "ids": ids, "logps": (-1.0,) * len(ids)}
    parsed, lengths = parse_completion(text, thinking=True), (len(reasoning), len(answer or ""))
    step = Step(text, parsed, finish, *lengths, **sampled)
    return Completion(prompt.id, index, (step,), finish, prompt_ids=(1, 2))


def rlhf_groups(step: int) -> list[Group]:
    """Reasoning gets shorter from step to step; the last rollout of a group is cut."""
    groups: list[Group] = []
    for position in range(PROMPTS):
        prompt = Prompt(
            id=f"p{position}", task=f"p{position}", setting="rlhf", gold="1", grader="digits",
            messages=(Message("user", f"<b>{position}</b> + {step}?"),), source="maths",
        )  # fmt: skip
        answers = ["1", "1234", "unreadable" if step == 1 else "123", None]
        reasoning = ("r" * (40 - 4 * step + 5 * k) for k in range(GENERATIONS))
        made = map(completion_of, [prompt] * GENERATIONS, range(GENERATIONS), reasoning, answers)
        groups.append(Group(prompt, tuple(made)))
    return groups


def genrm_groups(step: int) -> list[Group]:
    """Verdicts near gold, one of them malformed."""
    gold = json.dumps({"score_1": 4, "score_2": 2, "ranking": 2})
    prompt = Prompt(
        id="pair-1", task="pair-1", setting="genrm", messages=(Message("user", "Which?"),),
        gold=gold, grader="genrm", source="helpsteer",
    )  # fmt: skip
    verdicts = ['{"score_1": 4, "score_2": 2, "ranking": 2}', "neither"]
    verdicts += [f'{{"score_1": {k}, "score_2": 3, "ranking": 4}}' for k in (1, min(step, 5))]
    return [
        Group(
            replace(prompt, source=source),
            tuple(completion_of(prompt, k, "why", verdict) for k, verdict in enumerate(verdicts)),
        )
        for source in ("helpsteer", "safety")
    ]


def ratios(scored: Sequence[ScoredGroup], step: int) -> dict[tuple[int, int], dict[str, Any]]:
    """As the trainer's, of the rollouts in the loss."""
    return {
        (one.position, k): {"mean": 1.0 + k / 100, "low": 0.5, "high": 2.0, "masked": k == 1}
        | {"strayed": 1.0, "kept": not (step == 1 and k == 0)}
        for one in scored
        for k, completion in enumerate(one.group.completions)
        if one.advantages[k] is not None and not completion.truncated
    }


def write_run(out: Path, *, method: str, batches: int = 3) -> Path:
    """A `checkpoint` artifact of an RLHF run, or of a judge's training."""
    reward: GroupReward = judged_reward() if method == "rlhf" else VerdictReward()
    stage = Run.open(out, kind="checkpoint", config={"method": method})
    log: list[dict[str, Any]] = []
    for step in range(1, batches + 1):
        groups = rlhf_groups(step) if method == "rlhf" else genrm_groups(step)
        given = asyncio.run(reward.reward(groups, seed=step))
        if method == "later":  # a reward with parts that no other has
            given = [
                replace(
                    rewards, parts={f"own_{name}": part for name, part in rewards.parts.items()}
                )
                for rewards in given
            ]
        scored = with_advantages(range(len(groups)), groups, given, GrpoLossConfig())
        file = rollout_file(out, step)
        rows = [group_row(one, step=step, ratios=ratios(scored, step)) for one in scored]
        write_part(file, rows, process=0)
        join_parts(file, processes=1)
        metrics = batch_metrics([group_stats(one, overlong="mask") for one in scored])
        log.append({"step": step, "loss": 0.1, "entropy": 1.0, "grad_norm": 0.5, "tokens": 10})
        log[-1] |= {"masked_tokens": 0.0, "masked_completions": 0.0, **metrics}
    files = {"log.jsonl": write_rows(out / "log.jsonl", log)}
    files |= {str(rollout_file(Path(), step)): len(rows) for step in range(1, batches + 1)}
    stage.finish(
        counts=Counts(8, 8),
        files=files,
        parents=[],
        stats={
            "method": method, "steps": batches, "batches": batches, "prompts_per_step": PROMPTS,
            "num_generations": GENERATIONS, "rollouts": batches * PROMPTS * GENERATIONS,
            "epochs": 0.5, "world_size": 1, "sharding": "none", "tokens": 1000, "trained": 900,
            "averaged": min(AVERAGED, len(log)), "first": _run_means(log[:AVERAGED]),
            "last": _run_means(log[-AVERAGED:]), "counts": run_stats(log)["counts"],
        },
    )  # fmt: skip
    return out


TIMING = [
    {"step": 1, "rollout": 50.0, "reward": 1.0},
    {"step": 1, "rollout": 3.0, "reward": 1.0},
    {"step": 2, "rollout": 3.0, "reward": 1.0},
]


@pytest.fixture(scope="module")
def rlhf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs") / "rlhf", method="rlhf")
    write_rows(run / "timing.jsonl", TIMING)
    return run


@pytest.fixture(scope="module")
def page(rlhf: Path) -> str:
    return page_of(rlhf)


def mean(run: Path, key: str) -> str:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return f"{sum(row[key] for row in rows) / len(rows):.3f}"


def test_means_are_those_of_the_log(rlhf: Path, page: str):
    assert Reader(page).loads == []
    assert len(sections(page)) == len(set(sections(page)))
    assert cells(page, "reward")[1] == mean(rlhf, "reward")
    assert cells(page, "accuracy on checkable prompts")[2] == mean(rlhf, "part/accuracy")
    # a judge's training alone has verdicts of its own to hold against gold
    assert "Verdicts against gold" not in sections(page)
    assert "with a minus" not in page


def test_the_judge_is_counted_as_the_rollouts_say(rlhf: Path, page: str):
    rows: list[dict[str, Any]] = [
        json.loads(line)
        for file in sorted((rlhf / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    judgements = [said for row in rows for said in row["judgements"]]
    failed = sum(said["failed"] for said in judgements)
    ties = sum(not j["failed"] and j["score_1"] == j["score_2"] for j in judgements)
    decided = [j["ranking"] for j in judgements if not j["failed"] and j["ranking"] != 3.5]
    first = sum(ranking < 3.5 for ranking in decided)
    assert min(failed, ties) > 0
    part = section(page, "The judge")
    for name, figure in {
        "matches": f"{len(judgements)}, {len(judgements) / 3:.1f} a batch",
        "failed": f"{100 * failed / len(judgements):.2f} %",
        "equal scores": f"{100 * ties / (len(judgements) - failed):.1f} %",
        f"first answer preferred, of {len(decided)}": f"{100 * first / len(decided):.1f} %",
    }.items():
        assert cells(part, name)[1] == figure


def test_groups_stand_side_by_side_with_their_verdicts(page: str):
    part = section(page, "Groups to read")
    assert part.count("<details") == 6
    assert "<b>0</b>" not in part
    assert "&lt;b&gt;0&lt;/b&gt; + 1?" in part
    group = part.partition("</details>")[0]
    rewards = [float(found) for found in re.findall(r"#\d · reward (-?[\d.]+)", group)]
    # both matches of the one that the judge could not read failed
    assert len(rewards) == 3
    assert rewards == sorted(rewards, reverse=True)
    for text in ("#2 · unscored", "not in the loss (length)", "failed: ", "#3 – #0"):
        assert text in group


def test_advantages_and_ratios_are_counted(page: str):
    part = section(page, "Advantages and importance weights of RLHF")
    assert "Advantages of 22 scored rollouts" in part
    assert "of the 16 rollouts given to the loss; median 1.0100" in part
    assert "0.5 to 2; 6 tokens and 2 whole rollouts were left out" in part


def test_seconds_are_of_the_last_run_of_each_batch(page: str):
    assert cells(section(page, "Seconds of RLHF"), "rollout")[1:] == ["6.0", "3.00", "75.0 %"]


def test_rollouts_that_changed_are_refused(tmp_path: Path):
    run = write_run(tmp_path / "genrm", method="genrm")
    file = run / "rollouts" / "step-00002.jsonl"
    file.write_text(file.read_text().replace('"index":0', '"index":9'))
    with pytest.raises(DataError, match="step-00002"):
        write_report(run)


def test_a_judges_training_is_held_against_gold(tmp_path: Path):
    genrm = write_run(tmp_path / "genrm", method="genrm")
    page = page_of(genrm)
    assert sections(page)[:2] == ["GenRM", "Verdicts against gold"]
    assert cells(page, "distance of the ranking")[1] == mean(genrm, "part/ranking_error")
    assert "[gold]</span> {&#34;score_1&#34;: 4" in section(page, "Groups to read")
    assert "genrm has no timing.jsonl" in section(page, "Not in this report")


def test_bins_hold_every_value_between_round_edges():
    found = bins([-1.31, -0.2, 0.0, 0.1, 0.1, 2.2], most=9)
    assert [low for low, _ in found] == pytest.approx([0.5 * k for k in range(-3, 5)])
    assert [count for _, count in found] == [1, 0, 1, 3, 0, 0, 0, 1]


def test_rlvr_is_measured_on_the_prompts_that_it_was_given():
    """The curriculum makes batches harder: the share that passes falls while the model learns."""
    batches = [((0.2, 0.3), (0.4, 0.5)), ((0.1, 0.3), (0.4, 0.3)), ((0.0, 0.2), (0.2, 0.5))]
    logs = [
        {f"domain/{name}/{key}": share for name, own in (("a", a), ("b", b)) for key, share in own}
        for a, b in (
            (
                zip(("drawn", "pass_rate"), first, strict=True),
                zip(("drawn", "pass_rate"), second, strict=True),
            )
            for first, second in batches
        )
    ]
    figure, name, about = learned_tile({"a": 3, "b": 1}, logs)
    before = [25.0, 17.5, 5.0]  # 3/4 of a and 1/4 of b
    after = [35.0, 30.0, 27.5]
    assert figure == f"{sum(before) / 3:.1f} → {sum(after) / 3:.1f} %"
    assert name == "pass, in the profile → in training"
    found = stats.ttest_rel(after, before).confidence_interval()
    low, high = (f"{bound:+.1f}".replace("-", "−") for bound in (found.low, found.high))
    assert about == f"+15.0 ({low} … {high}), prompts of the last 3 batches"
    assert learned_tile({"a": 3, "b": 1}, logs[:1])[2] == "+10.0, of one batch: no interval"


def test_a_method_that_the_page_does_not_know_is_described_by_the_parts_of_its_reward(tmp_path):
    page = page_of(write_run(tmp_path / "distilled", method="later"))
    assert sections(page)[0] == "LATER"
    assert "Part of the reward: own score error 1" in section(page, "LATER")
    assert cells(section(page, "LATER"), "own score error 1")[1:]
    assert "in its stats" not in page


@pytest.mark.parametrize(
    ("part", "figure", "first"),
    [("reverse_kl", "Reverse KL from its teacher", "0.2500"), ("gain", "Mean reward", "−0.2500")],
)
def test_the_figures_of_teachers_are_named_by_the_reward(part: str, figure: str, first: str):
    means = {f"part/{part}": 0.25}
    domains = {"maths": {"first": {"token_reward": -0.25}, "last": {}}}
    run = {"first": means, "last": {}, "domains": domains, "routes": {"maths": "large"}}
    intro, table = teachers(run).blocks
    assert isinstance(table, Table)
    assert str(intro).startswith(figure)
    assert table.rows == [["maths", "large", first, "–", None]]


def test_a_distillation_opens_with_the_divergence_from_its_teachers():
    rows = [{"rollouts": 4, "part/reverse_kl": kl, "reward": -9.0} for kl in (0.5, 0.5, 0.1, 0.1)]
    (values, name, change), *_ = tiles({"averaged": 2}, rows)
    assert (values, name) == ("0.500 → 0.100", "nats a token, KL from the teachers")
    assert change.startswith("−0.400 (")
