"""Verifiers beside the rollouts that still decode, against verifiers after them: seconds of a step.

    python benchmarks/verify_beside.py --checkpoint runs/tiny/sft \\
        --rows runs/tiny/world/train/maths.jsonl

Prompts of the tiny world (16 × 8), real decoding in process; a verification only waits, as for a
judge's server or a sandbox elsewhere, so that the figures do not depend on spare cores. Both ways
must give the same completions and rewards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from transformers import AutoModelForCausalLM

from posttrain.config.backend import Rendering
from posttrain.group_rewards import Group
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.open import rendering_of
from posttrain.sampling.render import RenderedSampler
from posttrain.sampling.rollout import Task, roll_out
from posttrain.training.rl.policy import InProcess
from reward.rlvr import Domain, RoutedReward

PROMPTS = 16
GENERATIONS = 8
ROUNDS = 3
SECONDS = (0.1, 0.3)
WORKERS = 8  # verifications at a time, as many as there are verifier processes at most


class Slow:
    """Verifier that waits for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._workers = asyncio.Semaphore(WORKERS)

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        async with self._workers:
            await asyncio.sleep(self._seconds)
        return Score(float(len(completion.answer) % 2), None, "made")

    def passes(self, score: Score) -> bool:
        return score.value == 1.0


def sampler_of(checkpoint: str, batch_size: int) -> RenderedSampler:
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint)
    template, encoder, _ = rendering_of(Rendering(), checkpoint)
    trainer: Any = SimpleNamespace(
        base_model=model,
        recipe=SimpleNamespace(rollouts=SimpleNamespace(batch_size=batch_size)),
        compute_loss_context_manager=contextlib.nullcontext,
    )
    return RenderedSampler(InProcess(trainer), template=template, encoder=encoder)


async def step(sampler: RenderedSampler, tasks: list[Task], seconds: float, *, beside: bool) -> Any:
    """Seconds of a step, seconds until all was decoded, and the completions with their rewards."""
    verifier = Slow(seconds)
    reward = RoutedReward(lambda _: verifier, domains={"d": Domain(("",), 0.5)})
    begin: Callable[[Prompt, Completion], None] | None = reward.begin if beside else None
    started = time.perf_counter()
    completions = await roll_out(
        tasks,
        sampler,
        open_environment=lambda _: None,
        limits=RolloutLimits(Parameters(max_tokens=160, logps=True)),
        on_end=begin,
    )
    decoded = time.perf_counter() - started
    groups = [
        Group(tasks[k].prompt, tuple(completions[k : k + GENERATIONS]))
        for k in range(0, len(tasks), GENERATIONS)
    ]
    rewards = [group.rewards for group in await reward.reward(groups, seed=0)]
    return time.perf_counter() - started, decoded, (completions, rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--rows", required=True, help="rows of the tiny world")
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    sampler = sampler_of(options.checkpoint, options.batch_size)
    with open(options.rows, encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["messages"][0]["content"] for _ in range(PROMPTS)]
    prompts = [Prompt(str(k), "", "", (Message("user", text),)) for k, text in enumerate(texts)]
    tasks = [Task(prompt, k, 3) for prompt in prompts for k in range(GENERATIONS)]
    for seconds in SECONDS:
        row: dict[str, float] = {"verifier_seconds": seconds}
        outcomes: list[Any] = []
        for name, beside in (("after", False), ("beside", True)):
            runs = [
                asyncio.run(step(sampler, tasks, seconds, beside=beside)) for _ in range(ROUNDS)
            ]
            row[name] = round(statistics.median(total for total, _, _ in runs), 2)
            after_decoding = statistics.median(total - decoded for total, decoded, _ in runs)
            row[f"{name}_behind_decoding"] = round(after_decoding, 2)
            outcomes += [outcome for _, _, outcome in runs]
        assert all(outcome == outcomes[0] for outcome in outcomes)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
