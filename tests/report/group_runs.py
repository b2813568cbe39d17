"""Finished group-relative runs as the trainer leaves them, but for the model: no step is trained.

Rewards come from the stages' own rewards, log rows and rollout files from the trainer's own writers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.chat import parse_completion
from posttrain.config.grpo import GrpoLossConfig
from posttrain.config.judge import LengthConfig, PairingConfig
from posttrain.group_rewards import Group, GroupReward
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.runs import Counts, Run
from posttrain.training.rl.batch import ScoredGroup, with_advantages
from posttrain.training.rl.files import group_row, join_parts, rollout_file, write_part
from posttrain.training.rl.metrics import AVERAGED, _means, _sums, batch_metrics, group_stats
from reward.judge.verdict import VerdictReward
from reward.rlhf import JudgedReward
from tests.report.conftest import write_rows
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
        scored = with_advantages(range(len(groups)), groups, given, GrpoLossConfig())
        file = rollout_file(out, step)
        rows = [group_row(one, step=step, stats=ratios(scored, step)) for one in scored]
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
            "averaged": min(AVERAGED, len(log)), "first": _means(log[:AVERAGED]),
            "last": _means(log[-AVERAGED:]), "counts": _sums(log),
        },
    )  # fmt: skip
    return out
