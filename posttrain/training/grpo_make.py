"""One batch of rollouts: drawn, made by the live policy, rewarded, with advantages.

made = maker.make(batch=3)
made.parts[0]     → [ScoredGroup(position=0, …), …]   this process's groups of the first update
made.tokens[0]    → 41210                             in that update's loss, over all processes
made.metrics      → {"reward": 3.4, "truncated": 0.02, …}   over all processes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from accelerate.utils import gather_object

from posttrain.config.grpo import GroupTraining
from posttrain.group_rewards import Group, GroupReward, GroupRewards
from posttrain.rollouts import Prompt
from posttrain.sampling.rollout import OpenEnvironment, RolloutLimits
from posttrain.sampling.sampler import Engine, Parameters, Sampler, seed_of
from posttrain.training.grpo_batch import Batch, ScoredGroup, with_advantages
from posttrain.training.grpo_metrics import Stats, batch_metrics, group_stats
from posttrain.training.grpo_order import rows_drawn, share
from posttrain.training.grpo_rollout import Drawn, make_groups
from posttrain.training.grpo_timing import StepClock

MakeSampler = Callable[[Engine], Sampler]
Place = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What the trainer needs to make and reward a batch of rollouts.

    Attributes:
        make_sampler: renders and parses around the live policy.
        open_environment: runs the calls of a prompt that declares tools.
        runner: in whose event loop rewards are asked for, batch after batch.
    """

    prompts: Sequence[Prompt]
    reward: GroupReward
    make_sampler: MakeSampler
    open_environment: OpenEnvironment
    runner: asyncio.Runner


@dataclass(slots=True)
class Made:
    """A batch of rollouts while it is trained on.

    Attributes:
        parts: this process's groups of each update.
        tokens: in the loss of each update, over all processes.
        seen: tokens of all prompts and completions, over all processes.
        metrics: over all processes.
        batches: micro-batches of each update, put here by the trainer.
        ratios: of rollouts that have been trained on, by position and index.
    """

    parts: list[list[ScoredGroup]]
    tokens: list[int]
    seen: int
    metrics: dict[str, float]
    batches: list[list[Batch]] = field(default_factory=list[list[Batch]])
    ratios: dict[Place, dict[str, Any]] = field(default_factory=dict[Place, dict[str, Any]])


class BatchMaker:
    """Makes one batch after the other; what it makes depends on the batch's number alone.

    Args:
        sampler: of the live policy.
        processes, process: how many share a batch, and which one this is.
        clock: told how long rollouts and rewards take.
    """

    def __init__(
        self,
        recipe: GroupTraining,
        rollouts: Rollouts,
        sampler: Sampler,
        *,
        processes: int,
        process: int,
        clock: StepClock,
    ) -> None:
        self.recipe = recipe
        self.rollouts = rollouts
        self._sampler = sampler
        self._processes, self._process = processes, process
        self._clock = clock

    def drawn(self, batch: int) -> list[list[Drawn]]:
        """This process's prompts, a list an update."""
        recipe, prompts = self.recipe, self.rollouts.prompts
        per_batch = recipe.prompts_per_step
        rows = rows_drawn(count=len(prompts), per_batch=per_batch, batch=batch, seed=recipe.seed)
        shares = share(
            per_batch=per_batch,
            num_iterations=recipe.loss.num_iterations,
            processes=self._processes,
            process=self._process,
        )
        return [[Drawn(at, prompts[rows[at]]) for at in part] for part in shares]

    def roll_out(self, batch: int, part: Sequence[Drawn]) -> list[Group]:
        """The groups of some of a batch's prompts."""
        sampling = self.recipe.sampling
        parameters = Parameters(sampling.temperature, max_tokens=sampling.max_tokens, logps=True)
        making = make_groups(
            part,
            self._sampler,
            num_generations=self.recipe.num_generations,
            seed=self.recipe.seed,
            batch=batch,
            limits=RolloutLimits(parameters, max_turns=sampling.max_turns),
            open_environment=self.rollouts.open_environment,
        )
        return self.rollouts.runner.run(making)

    def make(self, batch: int) -> Made:
        """Every process must call it.

        Raises:
            JudgeError: from the reward, in every process alike.
        """
        loss = self.recipe.loss
        self._clock.start(batch * loss.num_iterations + 1)
        drawn = [one for part in self.drawn(batch) for one in part]
        with self._clock.part("rollout"):
            groups = self.roll_out(batch, drawn)
        with self._clock.part("reward"):
            given = self.rollouts.runner.run(self._reward(groups, batch))
        scored = with_advantages([one.position for one in drawn], groups, given)
        own = [group_stats(one, overlong=loss.overlong) for one in scored]
        stats: list[Stats] = sorted(gather_object(own), key=lambda one: one["position"])
        failures = [failure for one in stats for failure in one["failures"]]
        self.rollouts.reward.settle(sum(one["asked"] for one in stats), failures)
        return Made(
            parts=_cut(scored, loss.num_iterations),
            tokens=[_total(part, "trained") for part in _cut(stats, loss.num_iterations)],
            seen=_total(stats, "tokens") + _total(stats, "prompt_tokens"),
            metrics=batch_metrics(stats),
        )

    async def _reward(self, groups: Sequence[Group], batch: int) -> list[GroupRewards]:
        return await self.rollouts.reward.reward(
            groups, seed=seed_of(self.recipe.seed, "reward", batch)
        )


def _cut(items: list[T], parts: int) -> list[list[T]]:
    size = len(items) // parts
    return [items[k * size : (k + 1) * size] for k in range(parts)]


def _total(stats: Sequence[Stats], name: str) -> int:
    return sum(sum(one[name]) for one in stats)
