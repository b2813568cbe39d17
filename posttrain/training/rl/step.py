"""One step of group-relative training, top to bottom: prompts are drawn, the policy rolls them out,
groups are rewarded, rewards become advantages, and the rows in the loss become micro-batches.

A rollout depends on the run's seed, the step, its group's position, the prompt and its index, not
on the rollouts sampled beside it: every layout of processes gives the same rollouts, up to floating
point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from accelerate.utils import gather_object

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError
from posttrain.group_rewards import Group, GroupReward, GroupRewards
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.rollout import OpenEnvironment, Task, roll_out
from posttrain.sampling.sampler import Engine, Sampler, Scorer, seed_of
from posttrain.training.order import rows_drawn
from posttrain.training.rl.ahead import AheadRollouts, SampledGroups
from posttrain.training.rl.batch import (
    Batch,
    RolloutKey,
    ScoredGroup,
    collate,
    micro_batches,
    trained_rows,
    with_advantages,
)
from posttrain.training.rl.curriculum import Draw
from posttrain.training.rl.draws import DomainShares, DrawnGroup, PromptDraws
from posttrain.training.rl.early import EarlyWork, begin_early
from posttrain.training.rl.full_objective import FullObjective
from posttrain.training.rl.metrics import (
    Stats,
    batch_metrics,
    by_domain,
    group_stats,
    verifier_seconds,
)
from posttrain.training.rl.policy import LivePolicy, whole_weights

if TYPE_CHECKING:
    from posttrain.training.rl.trainer import GroupTrainer


@runtime_checkable
class PolicyReward(Protocol):
    """A reward that needs the policy's own log-probabilities of its completions."""

    def use_policy(self, policy: Scorer) -> None:
        """Set the scorer, which scores with the policy's weights before the step."""
        ...


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Prompts, sampler and reward of a run's rollouts.

    Attributes:
        prompts: All prompts, with unique ids.
        make_sampler: Function that makes a rendering and parsing sampler of the live engine.
        runner: Runner of the event loop of sampling and rewarding, kept for the whole run.
        curriculum: Planned prompts of each step; None draws permutations one after the other.
        shares: Fixed shares of the sources in each step; None leaves them to the permutation.
        full: Teachers whose whole distributions are trained on, in place of the rewards.
    """

    prompts: Sequence[Prompt]
    reward: GroupReward
    make_sampler: Callable[[Engine], Sampler]
    open_environment: OpenEnvironment
    runner: asyncio.Runner
    curriculum: PromptDraws | None = None
    shares: DomainShares | None = None
    full: FullObjective | None = None


@dataclass(frozen=True, slots=True)
class DrawnPrompt:
    """A prompt of a step.

    Attributes:
        position: Number of its group in the step, from 0, over all processes.
        attempt: Number of prompts drawn for this position before it.
        draw: The curriculum's draw, None without a curriculum.
    """

    position: int
    prompt: Prompt
    attempt: int = 0
    draw: Draw | None = None

    def rollout_seed(self, seed: int, step: int) -> int:
        """Seed of its rollouts, from the run's seed and the step."""
        # attempt 0 is left out of the key, so that runs without refills keep their seeds
        attempt = (self.attempt,) if self.attempt else ()
        return seed_of(seed, "rollout", step, self.position, *attempt)


@dataclass(slots=True)
class RolloutStep:
    """Rewarded rollouts of a step and their micro-batches, while they are trained on.

    Attributes:
        groups: This process's groups, in order of position.
        batches: Micro-batches of each update on this process.
        tokens: Tokens in the loss of each update, over all processes.
        tokens_seen: Tokens of all prompts and completions, over all processes.
        metrics: Figures to log, over all processes.
        version: Number of batches that the sampling weights had been trained on; None without lag.
        ratios: Stats of the importance ratios of each rollout trained on so far.
    """

    groups: list[ScoredGroup]
    batches: list[list[Batch]]
    tokens: list[int]
    tokens_seen: int
    metrics: dict[str, float]
    version: int | None = None
    ratios: dict[RolloutKey, dict[str, Any]] = field(
        default_factory=dict[RolloutKey, dict[str, Any]]
    )


class StepMaker:
    """Makes the steps of a run in order; a step depends on its number and the run's state alone."""

    def __init__(self, trainer: GroupTrainer) -> None:
        self.trainer = trainer
        self.recipe = trainer.recipe
        self.rollouts = trainer.rollouts
        self.engine = trainer.engine
        self.clock = trainer.clock
        self.pad_id = trainer.pad_id
        self.args = trainer.args
        self.sampler = self.rollouts.make_sampler(self.engine)
        self.lag = self.recipe.rollouts.lag
        self.ahead = AheadRollouts(self.rollouts.runner)
        self.early = EarlyWork(self.rollouts.runner.get_loop())
        self.scores_policy = isinstance(self.rollouts.reward, PolicyReward)
        if isinstance(self.rollouts.reward, PolicyReward):
            self.rollouts.reward.use_policy(LivePolicy(trainer))
        self.prompts = {prompt.id: prompt for prompt in self.rollouts.prompts}
        self.rounds = self.rollouts.curriculum.rounds if self.rollouts.curriculum else 1
        self.local_positions = local_positions(
            self.recipe, processes=self.args.world_size, process=self.args.process_index
        )

    def make(self, number: int) -> RolloutStep:
        """Roll out and reward step `number`, from 0, for training. Every process must call it.

        Raises:
            JudgeError, TrainingError: from the reward, in every process alike.
        """
        loss = self.recipe.loss
        # the clock counts optimiser steps, from 1
        self.clock.start(number * loss.num_iterations + 1)
        scored: list[ScoredGroup] = []
        stats: list[Stats] = []
        drawn_prompts: list[DrawnPrompt] = []
        round_prompts = self.draw(number)
        for attempt in range(self.rounds):
            local_prompts = [p for p in round_prompts if p.position in self.local_positions]
            round_groups = self._scored_groups(number, local_prompts)
            # gathered, so that every process drops and refills the same groups
            local_stats = [group_stats(group, overlong=loss.overlong) for group in round_groups]
            round_stats: list[Stats] = sorted(
                gather_object(local_stats), key=itemgetter("position")
            )
            scored += round_groups
            stats += round_stats
            drawn_prompts += round_prompts
            # over all rounds so far: else refills would thin out a judge that is down
            self._check_failures(stats)
            dropped = {group["position"] for group in round_stats if group["dropped"]}
            if not dropped or attempt + 1 == self.rounds:
                break
            round_prompts = self._refill([p for p in round_prompts if p.position in dropped])
            if not round_prompts:
                break
        self.clock.verifiers = verifier_seconds(stats)
        # before the batches are collated: on a server the next step is then sampled meanwhile
        if self.lag:
            self._sample_ahead(number + 1)

        # update k trains on the k-th equal part of the step's positions
        batches: list[list[Batch]] = []
        tokens: list[int] = []
        update_size = self.recipe.prompts_per_step // loss.num_iterations
        for start in range(0, self.recipe.prompts_per_step, update_size):
            positions = range(start, start + update_size)
            batches.append(self._collate([g for g in scored if g.position in positions]))
            update_stats = [group for group in stats if group["position"] in positions]
            tokens.append(sum_over_rollouts(update_stats, "trained"))
        metrics = batch_metrics(stats)
        limit = self.recipe.sampling.completion_limit(number + 1)
        # where the limit grows over the run, lengths mean nothing without it
        if limit is not None:
            metrics["max_completion"] = limit
        metrics |= self._record(number, drawn_prompts, stats)
        return RolloutStep(
            groups=scored,
            batches=batches,
            tokens=tokens,
            tokens_seen=sum_over_rollouts(stats, "tokens")
            + sum_over_rollouts(stats, "prompt_tokens"),
            metrics=metrics,
            version=max(number - self.lag, 0) if self.lag else None,
        )

    def _scored_groups(self, number: int, drawn: Sequence[DrawnPrompt]) -> list[ScoredGroup]:
        """Groups of this process's prompts in a step, with rewards and advantages."""
        run = self.rollouts.runner.run
        with self.clock.part("rollout"):
            sampled = self.ahead.take(number) if self.lag else None
            if sampled is None:
                # a collective: entered also by a process that has nothing to refill
                with self.engine.current(number):
                    groups = run(self._roll_out_and_begin(number, drawn))
                sampled = SampledGroups(groups, [None] * len(groups))
        if not drawn:
            return []
        groups = sampled.groups
        # all of them, or after a resume those that a checkpoint did not keep
        unrewarded = [
            group for group, kept in zip(groups, sampled.rewards, strict=True) if not kept
        ]
        new_rewards: list[GroupRewards] = []
        if unrewarded:
            # a reward that scores the policy takes the weights before the step, also with lag
            weights = whole_weights(self.trainer) if self.scores_policy else nullcontext()
            with self.clock.part("reward"), weights:
                new_rewards = run(self._reward(number, unrewarded))
        remaining_rewards = iter(new_rewards)
        rewards = [kept or next(remaining_rewards) for kept in sampled.rewards]
        positions = [prompt.position for prompt in drawn]
        scored = with_advantages(positions, groups, rewards, self.recipe.loss)
        # only dynamic sampling has several rounds, and only it drops groups
        dynamic = self.rounds > 1
        return [
            replace(group, attempt=prompt.attempt, dropped=dynamic and not group.informative)
            for prompt, group in zip(drawn, scored, strict=True)
        ]

    async def _roll_out_and_begin(self, number: int, drawn: Sequence[DrawnPrompt]) -> list[Group]:
        """Roll out; a reward that can begins with what has ended while others are sampled."""
        begin = begin_early(
            self.rollouts.reward,
            [prompt.prompt for prompt in drawn],
            self.early,
            group_size=self.recipe.num_generations,
            seed=self._reward_seed(number),
        )

        async def sample() -> list[Group]:
            groups = await self.roll_out(number, drawn, on_end=begin)
            if self.scores_policy:
                # until the policy can score, the loop stands still while others train or gather
                # weights
                await self.early.finish()
            return groups

        return await self.early.beside(sample())

    async def _reward(self, number: int, groups: Sequence[Group]) -> list[GroupRewards]:
        rewarding = self.rollouts.reward.reward(groups, seed=self._reward_seed(number))
        return await self.early.beside(rewarding)

    async def close(self) -> None:
        """Cancel what the reward has begun for a step that failed, and close the connections."""
        await self.early.cancel()
        await self.engine.close()

    def _reward_seed(self, number: int) -> int:
        return seed_of(self.recipe.seed, "reward", number)

    def _sample_ahead(self, number: int) -> None:
        """Sample step `number` before the current step trains.

        If the engine can sample beside the training, this only starts to sample it.
        """
        if number == self.args.max_steps // self.recipe.loss.num_iterations:
            return  # the current step is the last
        local_prompts = [
            prompt for prompt in self.draw(number) if prompt.position in self.local_positions
        ]

        async def sample() -> SampledGroups:
            groups = await self._roll_out_and_begin(number, local_prompts)
            if self.scores_policy:
                # it is scored with the weights before the step, which do not exist yet
                return SampledGroups(groups, [None] * len(groups))
            return SampledGroups(groups, [*await self._reward(number, groups)])

        if self.engine.beside:
            # the engine takes its weights here, before the current step changes the trainer's
            with self.engine.current(number):
                self.ahead.begin(number, sample())
        else:
            with self.clock.part("rollout"), self.engine.current(number):
                self.ahead.put(number, self.rollouts.runner.run(sample()))

    def _check_failures(self, stats: Sequence[Stats]) -> None:
        """Stop the run if too many of the step's requests to judges or verifiers have failed.

        Raises:
            JudgeError, TrainingError: the share of failures is above the recipe's limit.
        """
        for domain, domain_groups in by_domain(stats).items():
            requests = sum(group["requests"] for group in domain_groups)
            failures = [failure for group in domain_groups for failure in group["failures"]]
            self.rollouts.reward.settle(requests, failures, domain=domain)

    def draw(self, number: int) -> list[DrawnPrompt]:
        """Prompts of a step for all processes, in order of position."""
        curriculum = self.rollouts.curriculum
        if curriculum is not None:
            draws = curriculum.draw(number)
            return [
                DrawnPrompt(position, self.prompts[draw.prompt_id], draw=draw)
                for position, draw in enumerate(draws)
            ]
        prompts = self.rollouts.prompts
        if self.rollouts.shares is not None:
            rows = self.rollouts.shares.draw(number)
        else:
            rows = rows_drawn(
                count=len(prompts),
                per_step=self.recipe.prompts_per_step,
                step=number,
                seed=self.recipe.seed,
            )
        return [DrawnPrompt(position, prompts[row]) for position, row in enumerate(rows)]

    def _refill(self, dropped: Sequence[DrawnPrompt]) -> list[DrawnPrompt]:
        """Draw prompts for the positions of dropped groups; none where a domain has no more."""
        curriculum = self.rollouts.curriculum
        assert curriculum is not None, "only a curriculum has prompts beyond the step's"
        draws = curriculum.refill([prompt.draw for prompt in dropped if prompt.draw is not None])
        return [
            DrawnPrompt(prompt.position, self.prompts[draw.prompt_id], prompt.attempt + 1, draw)
            for prompt, draw in zip(dropped, draws, strict=True)
            if draw is not None
        ]

    def _record(
        self, number: int, drawn: Sequence[DrawnPrompt], stats: Sequence[Stats]
    ) -> dict[str, float]:
        """Record each prompt's outcome in the curriculum. Returns metrics to log."""
        curriculum = self.rollouts.curriculum
        if curriculum is None:
            return {}
        planned = [
            prompt.draw for prompt in drawn if prompt.draw is not None and not prompt.attempt
        ]
        figures = curriculum.figures(number, planned)
        if self.rounds > 1:
            dropped = sum(group["dropped"] for group in stats)
            figures |= {
                "count/dropped_groups": dropped,
                "count/refills": len(stats) - len(planned),
                "count/empty_places": len(planned) - (len(stats) - dropped),
                "rounds": 1 + max(group["attempt"] for group in stats),
            }
        outcomes: list[DrawnGroup] = []
        for prompt, group in zip(drawn, stats, strict=True):
            assert prompt.draw is not None, "a curriculum draws every prompt of the run"
            # unscored rollouts say nothing of the prompt's difficulty
            passes = [value for value in group["parts"]["pass"] if value is not None]
            outcome = DrawnGroup(
                position=prompt.position,
                attempt=prompt.attempt,
                prompt_id=prompt.draw.prompt_id,
                domain=prompt.draw.domain,
                reason=prompt.draw.reason,
                passes=int(sum(passes)),
                scored=len(passes),
                dropped=group["dropped"],
            )
            outcomes.append(outcome)
        curriculum.record(outcomes, main=self.args.process_index == 0)
        return figures

    async def roll_out(
        self,
        number: int,
        drawn: Sequence[DrawnPrompt],
        *,
        on_end: Callable[[int, Completion], None] | None = None,
        longest: int | None = None,
    ) -> list[Group]:
        """Sample the groups of these prompts of a step, all rollouts concurrently.

        Args:
            on_end: called with each completion as soon as it has ended, and its position: that of
                its group's prompt in `drawn` × `num_generations` + its index in the group.
            longest: limit of a completion in tokens, for timing; training takes the recipe's.
        """
        sampling = self.recipe.sampling
        # the sampler's log-probabilities: importance ratios correct what the trainer computes
        # otherwise, from other kernels, another precision or older weights
        parameters = Parameters(sampling.temperature, max_tokens=sampling.max_tokens, logps=True)
        tasks: list[Task] = []
        for prompt in drawn:
            seed = prompt.rollout_seed(self.recipe.seed, number)
            tasks += [
                Task(prompt.prompt, index, seed) for index in range(self.recipe.num_generations)
            ]
        completions = await roll_out(
            tasks,
            self.sampler,
            open_environment=self.rollouts.open_environment,
            limits=RolloutLimits(
                parameters,
                max_turns=sampling.max_turns,
                max_tokens=longest or sampling.completion_limit(number + 1),
            ),
            on_end=on_end,
        )
        groups: list[Group] = []
        for start, prompt in zip(
            range(0, len(completions), self.recipe.num_generations), drawn, strict=True
        ):
            rollouts = completions[start : start + self.recipe.num_generations]
            groups.append(Group(prompt.prompt, tuple(rollouts)))
        return groups

    def _collate(self, groups: Sequence[ScoredGroup]) -> list[Batch]:
        """Micro-batches of an update, from the rollouts of its groups that are in the loss."""
        rows = trained_rows(groups, overlong=self.recipe.loss.overlong)
        parts = micro_batches(rows, groups, count=self.args.gradient_accumulation_steps)
        return [collate(part, pad_id=self.pad_id) for part in parts]


def accumulation(recipe: GroupTraining, *, micro: int, processes: int) -> int:
    """Micro-batches of an update on each process, of `micro` rollouts each.

    Raises:
        ConfigError: a group would be split over processes or updates, or micro-batches do not fit.
    """
    per_step = recipe.prompts_per_step
    num_iterations = recipe.loss.num_iterations
    parts = num_iterations * processes
    if per_step % parts:
        below = per_step // parts * parts
        sizes = ", ".join(str(size) for size in (below, below + parts) if size)
        divisors = [n for n in range(1, per_step + 1) if per_step % (n * num_iterations) == 0]
        process_hint = ""
        if divisors:
            process_hint = f", or start {', '.join(map(str, divisors))} process(es)"
        shared = f" × {num_iterations} updates" if num_iterations > 1 else ""
        raise ConfigError(
            f"prompts_per_step {per_step} over {processes} process(es){shared} would split a "
            "group, whose rewards are relative to each other: set prompts_per_step to "
            f"{sizes}{process_hint}"
        )
    local = per_step // parts * recipe.num_generations
    if local % micro:
        fitting = ", ".join(str(n) for n in range(1, local + 1) if local % n == 0)
        raise ConfigError(
            f"{local} rollouts a process and update are no multiple of "
            f"trainer.per_device_train_batch_size {micro}; it may be {fitting}"
        )
    return local // micro


def local_positions(recipe: GroupTraining, *, processes: int, process: int) -> set[int]:
    """Positions of the groups that one process rolls out, equally many for each update.

    A process has whole groups, since the rewards of a group are relative to each other.
    """
    # runs of `size` positions go to the processes in turn, so that each update has all of them
    size = recipe.prompts_per_step // (recipe.loss.num_iterations * processes)
    positions = range(recipe.prompts_per_step)
    return {position for position in positions if position // size % processes == process}


def sum_over_rollouts(stats: Sequence[Stats], name: str) -> int:
    """Sum of a number that `group_stats` has for each rollout."""
    return sum(sum(group[name]) for group in stats)
