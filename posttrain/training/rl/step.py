"""One step of group-relative training, top to bottom: prompts are drawn, the policy rolls them out,
groups are rewarded, rewards become advantages, and what is in the loss becomes micro-batches.

    steps = StepMaker(recipe, rollouts, engine, accelerator=…, clock=…, micro_batches=8, pad_id=0)
    step = steps.make(3)
    step.batches[0]   → [{"input_ids": …}, …]   this process's micro-batches of the first update
    step.tokens[0]    → 41210                   in that update's loss, over all processes
    step.metrics      → {"reward": 3.4, "truncated": 0.02, …}   over all processes

A rollout depends on the run's seed, the step, the position, the prompt and its index, not on what
is sampled beside it: any layout of processes gives the same, up to floating point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from accelerate.utils import gather_object

from posttrain.config.grpo import GroupTraining
from posttrain.group_rewards import Group, GroupReward
from posttrain.rollouts import Prompt
from posttrain.sampling.rollout import OpenEnvironment, RolloutLimits, Task, roll_out
from posttrain.sampling.sampler import Engine, Parameters, Sampler, seed_of
from posttrain.training.order import rows_drawn
from posttrain.training.rl.batch import (
    Batch,
    ScoredGroup,
    collate,
    micro_batches,
    trained_rows,
    with_advantages,
)
from posttrain.training.rl.curriculum_steps import PlannedStep
from posttrain.training.rl.domains import by_domain, domain_metrics, verifier_seconds
from posttrain.training.rl.files import StepClock
from posttrain.training.rl.metrics import Stats, batch_metrics, group_stats
from posttrain.training.rl.policy import LiveEngine

Place = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What rollouts are sampled for and rewarded by.

    Attributes:
        prompts: every prompt, each id once.
        make_sampler: renders and parses around the live policy.
        open_environment: runs the calls of a prompt that declares tools.
        runner: in whose event loop sampling and rewarding run, step after step.
        curriculum: the prompts of every step; None: whole permutations one after the other.
    """

    prompts: Sequence[Prompt]
    reward: GroupReward
    make_sampler: Callable[[Engine], Sampler]
    open_environment: OpenEnvironment
    runner: asyncio.Runner
    curriculum: Sequence[PlannedStep] | None = None


@dataclass(frozen=True, slots=True)
class DrawnPrompt:
    """A prompt of a step; `position` numbers the step's groups from 0, over all processes."""

    position: int
    prompt: Prompt


@dataclass(slots=True)
class RolloutStep:
    """The rollouts of a step while they are trained on.

    Attributes:
        groups: this process's, in order of position.
        batches: micro-batches of each update on this process.
        tokens: in the loss of each update, over all processes.
        tokens_seen: of all prompts and completions, over all processes.
        metrics: over all processes.
        ratios: of rollouts that have been trained on, by position and index.
    """

    groups: list[ScoredGroup]
    batches: list[list[Batch]]
    tokens: list[int]
    tokens_seen: int
    metrics: dict[str, float]
    ratios: dict[Place, dict[str, Any]] = field(default_factory=dict[Place, dict[str, Any]])


class StepMaker:
    """Makes one step after the other; what it makes depends on the step's number alone.

    Args:
        engine: samples from the policy in training.
        micro_batches: of an update on each process.
    """

    def __init__(
        self,
        recipe: GroupTraining,
        rollouts: Rollouts,
        engine: LiveEngine,
        *,
        accelerator: Any,
        clock: StepClock,
        micro_batches: int,
        pad_id: int,
    ) -> None:
        self.recipe, self.rollouts, self.engine = recipe, rollouts, engine
        self.sampler = rollouts.make_sampler(engine)
        self.accelerator, self.clock = accelerator, clock
        self.micro_batches, self.pad_id = micro_batches, pad_id

    def make(self, number: int) -> RolloutStep:
        """Step `number`, from 0, ready to be trained on. Every process must call it.

        Raises:
            JudgeError, TrainingError: from the reward, in every process alike.
            TrainingError: no rollout of this process could be sampled.
        """
        loss, updates = self.recipe.loss, self.recipe.loss.num_iterations
        reward, run = self.rollouts.reward, self.rollouts.runner.run
        self.clock.start(number * updates + 1)

        prompts = self.draw(number)
        with self.clock.part("rollout"), self.engine.current(number):
            groups = run(self.roll_out(number, prompts))
        with self.clock.part("reward"):
            rewards = run(reward.reward(groups, seed=seed_of(self.recipe.seed, "reward", number)))
        positions = [drawn.position for drawn in prompts]
        scored = with_advantages(positions, groups, rewards, loss)

        # the numbers of all processes' groups, in order of position
        local = [group_stats(group, overlong=loss.overlong) for group in scored]
        stats: list[Stats] = sorted(gather_object(local), key=lambda group: group["position"])
        for domain, own in by_domain(stats).items():
            failures = [failure for group in own for failure in group["failures"]]
            reward.settle(sum(group["requests"] for group in own), failures, domain=domain)
        self.clock.verifiers = verifier_seconds(stats)

        return RolloutStep(
            groups=scored,
            batches=[self._in_loss(part) for part in split(scored, updates)],
            tokens=[total(part, "trained") for part in split(stats, updates)],
            tokens_seen=total(stats, "tokens") + total(stats, "prompt_tokens"),
            metrics=batch_metrics(stats) | domain_metrics(stats) | self._planned(number),
        )

    def _planned(self, number: int) -> dict[str, float]:
        planned = self.rollouts.curriculum
        return {} if planned is None else dict(planned[number].figures)

    def draw(self, number: int) -> list[DrawnPrompt]:
        """This process's prompts of a step, update after update."""
        recipe, prompts = self.recipe, self.rollouts.prompts
        per_step = recipe.prompts_per_step
        if (planned := self.rollouts.curriculum) is not None:
            rows = planned[number].rows
        else:
            rows = rows_drawn(count=len(prompts), per_step=per_step, step=number, seed=recipe.seed)
        positions = share(
            per_step=per_step,
            num_iterations=recipe.loss.num_iterations,
            processes=self.accelerator.num_processes,
            process=self.accelerator.process_index,
        )
        return [DrawnPrompt(at, prompts[rows[at]]) for part in positions for at in part]

    async def roll_out(self, number: int, drawn: Sequence[DrawnPrompt]) -> list[Group]:
        """The groups of some of a step's prompts, all of their rollouts in one go."""
        sampling, n, seed = self.recipe.sampling, self.recipe.num_generations, self.recipe.seed
        parameters = Parameters(sampling.temperature, max_tokens=sampling.max_tokens, logps=True)
        tasks = [
            Task(one.prompt, index, seed_of(seed, "rollout", number, one.position))
            for one in drawn
            for index in range(n)
        ]
        completions = await roll_out(
            tasks,
            self.sampler,
            open_environment=self.rollouts.open_environment,
            limits=RolloutLimits(parameters, max_turns=sampling.max_turns),
        )
        return [
            Group(one.prompt, tuple(completions[k * n : (k + 1) * n]))
            for k, one in enumerate(drawn)
        ]

    def _in_loss(self, groups: Sequence[ScoredGroup]) -> list[Batch]:
        """The micro-batches of an update: the rows in the loss of its groups."""
        rows = trained_rows(groups, overlong=self.recipe.loss.overlong)
        parts = micro_batches(rows, groups, count=self.micro_batches)
        return [collate(part, pad_id=self.pad_id) for part in parts]


def share(*, per_step: int, num_iterations: int, processes: int, process: int) -> list[list[int]]:
    """Positions that one process rolls out, a list an update, all of the same length. A process has
    whole groups: their rewards are relative to each other."""
    size = per_step // (num_iterations * processes)
    assert size * num_iterations * processes == per_step, "checked by `accumulation`"
    starts = [(update * processes + process) * size for update in range(num_iterations)]
    return [list(range(start, start + size)) for start in starts]


def split(items: list[T], parts: int) -> list[list[T]]:
    """Neighbouring items in equal parts."""
    size = len(items) // parts
    return [items[k * size : (k + 1) * size] for k in range(parts)]


def total(stats: Sequence[Stats], name: str) -> int:
    """Of a number that each rollout has, over groups."""
    return sum(sum(group[name]) for group in stats)
