"""One step of group-relative training, top to bottom: prompts are drawn, the policy rolls them out,
groups are rewarded, rewards become advantages, and what is in the loss becomes micro-batches.

A rollout depends on the run's seed, the step, the position, the prompt and its index, not on what
is sampled beside it: any layout of processes gives the same, up to floating point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from accelerate.utils import gather_object

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError
from posttrain.group_rewards import EarlyReward, Group, GroupReward, GroupRewards
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.rollout import OpenEnvironment, Task, roll_out
from posttrain.sampling.sampler import Engine, Sampler, Scorer, seed_of
from posttrain.training.order import rows_drawn
from posttrain.training.rl.ahead import AheadRollouts, SampledGroups
from posttrain.training.rl.batch import (
    Batch,
    ScoredGroup,
    collate,
    micro_batches,
    trained_rows,
    with_advantages,
)
from posttrain.training.rl.curriculum import Draw
from posttrain.training.rl.draws import DomainShares, DrawnGroup, PromptDraws
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

Place = tuple[int, int]


@runtime_checkable
class PolicyReward(Protocol):
    """A reward that needs the policy's own log-probabilities of what it wrote."""

    def use_policy(self, policy: Scorer) -> None:
        """Take the policy in training, which scores with its weights before the step."""
        ...


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What rollouts are sampled for and rewarded by.

    Attributes:
        prompts: every prompt, each id once.
        make_sampler: renders and parses around the live policy.
        runner: in whose event loop sampling and rewarding run, step after step.
        curriculum: the prompts of every step; None: whole permutations one after the other.
        shares: fixed shares of sources in every step; None: as they come.
        full: teachers whose whole distributions are trained on; None: the rewards are.
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
    """A prompt of a step; `position` numbers the step's groups from 0, over all processes, and
    `attempt` the prompts of a position. `draw` is the curriculum's."""

    position: int
    prompt: Prompt
    attempt: int = 0
    draw: Draw | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """What its rollouts' seeds depend on, beside the step."""
        return (self.position, self.attempt) if self.attempt else (self.position,)


@dataclass(slots=True)
class RolloutStep:
    """The rollouts of a step while they are trained on.

    Attributes:
        groups: this process's, in order of position.
        batches: micro-batches of each update on this process.
        tokens: in the loss of each update; `tokens_seen`: of all prompts and completions. Both, and
            the metrics, over all processes.
        version: batches that the weights that sampled had been trained on; None without lag.
        ratios: of rollouts that have been trained on, by position and index.
    """

    groups: list[ScoredGroup]
    batches: list[list[Batch]]
    tokens: list[int]
    tokens_seen: int
    metrics: dict[str, float]
    version: int | None = None
    ratios: dict[Place, dict[str, Any]] = field(default_factory=dict[Place, dict[str, Any]])


class StepMaker:
    """Makes one step after the other; what it makes depends on the step's number alone."""

    def __init__(self, trainer: GroupTrainer) -> None:
        self.recipe, self.rollouts, self.engine = trainer.recipe, trainer.rollouts, trainer.engine
        self.clock, self.pad_id, self.args = trainer.clock, trainer.pad_id, trainer.args
        self.trainer = trainer
        self.sampler = self.rollouts.make_sampler(self.engine)
        self.lag = self.recipe.rollouts.lag
        self.ahead = AheadRollouts(self.rollouts.runner)
        self.scores_policy = isinstance(self.rollouts.reward, PolicyReward)
        if isinstance(self.rollouts.reward, PolicyReward):
            self.rollouts.reward.use_policy(LivePolicy(trainer))
        self.prompts = {prompt.id: prompt for prompt in self.rollouts.prompts}
        self.rounds = self.rollouts.curriculum.rounds if self.rollouts.curriculum else 1
        self.own = own_positions(
            self.recipe, processes=self.args.world_size, process=self.args.process_index
        )

    def make(self, number: int) -> RolloutStep:
        """Step `number`, from 0, ready to be trained on. Every process must call it.

        Raises:
            JudgeError, TrainingError: from the reward, in every process alike.
        """
        updates = self.recipe.loss.num_iterations
        self.clock.start(number * updates + 1)
        drawn, every = self.draw(number), list[DrawnPrompt]()
        scored, stats = list[ScoredGroup](), list[Stats]()
        for attempt in range(self.rounds):
            made = self._scored_groups(number, [one for one in drawn if one.position in self.own])
            # the numbers of all processes' groups, in order of position
            local = [group_stats(group, overlong=self.recipe.loss.overlong) for group in made]
            found: list[Stats] = sorted(gather_object(local), key=lambda one: one["position"])
            scored, stats, every = scored + made, stats + found, every + drawn
            self._settle(stats)
            dropped = {one["position"] for one in found if one["dropped"]}
            if not dropped or attempt + 1 == self.rounds:
                break
            drawn = self._refills([one for one in drawn if one.position in dropped])
            if not drawn:
                break
        self.clock.verifiers = verifier_seconds(stats)

        limit = self.recipe.sampling.completion_limit(number + 1)
        size = self.recipe.prompts_per_step // updates
        parts = [range(k * size, (k + 1) * size) for k in range(updates)]
        if self.lag:
            self._sample_ahead(number + 1)
        return RolloutStep(
            groups=scored,
            batches=[self._in_loss([g for g in scored if g.position in part]) for part in parts],
            tokens=[
                total([g for g in stats if g["position"] in part], "trained") for part in parts
            ],
            tokens_seen=total(stats, "tokens") + total(stats, "prompt_tokens"),
            metrics=batch_metrics(stats)
            | ({} if limit is None else {"max_completion": limit})
            | self._recorded(number, every, stats),
            version=max(number - self.lag, 0) if self.lag else None,
        )

    def _scored_groups(self, number: int, drawn: Sequence[DrawnPrompt]) -> list[ScoredGroup]:
        """The groups of some of a step's prompts, with rewards and advantages."""
        run = self.rollouts.runner.run
        with self.clock.part("rollout"):
            sampled = self.ahead.take(number) if self.lag else None
            if sampled is None:
                with self.engine.current(number):
                    sampled = SampledGroups(run(self._roll_out_and_begin(number, drawn)))
        if not drawn:
            return []  # the others' places are refilled; entering the block takes all processes
        groups = sampled.groups
        rewards = sampled.rewards
        if rewards is None:
            # of the weights before the step, also where older ones have sampled
            weights = whole_weights(self.trainer) if self.scores_policy else nullcontext()
            with self.clock.part("reward"), weights:
                rewards = run(self._reward(number, groups))
        positions = [one.position for one in drawn]
        scored = with_advantages(positions, groups, rewards, self.recipe.loss)
        dynamic = self.rounds > 1
        return [
            replace(group, attempt=one.attempt, dropped=dynamic and not group.informative)
            for one, group in zip(drawn, scored, strict=True)
        ]

    async def _roll_out_and_begin(self, number: int, drawn: Sequence[DrawnPrompt]) -> list[Group]:
        """Roll out; a reward that can judges completions while others are still sampled."""
        reward = self.rollouts.reward
        begin = reward.begin if isinstance(reward, EarlyReward) else None
        return await self.roll_out(number, drawn, on_end=begin)

    async def _reward(self, number: int, groups: Sequence[Group]) -> list[GroupRewards]:
        seed = seed_of(self.recipe.seed, "reward", number)
        return await self.rollouts.reward.reward(groups, seed=seed)

    def _sample_ahead(self, number: int) -> None:
        """Sample a step before the one before it trains, or begin to where that goes beside it."""
        if number == self.args.max_steps // self.recipe.loss.num_iterations:
            return
        drawn = [prompt for prompt in self.draw(number) if prompt.position in self.own]

        async def sample() -> SampledGroups:
            groups = await self._roll_out_and_begin(number, drawn)
            # scores of the policy are those of the weights before the step, which are not there yet
            rewards = None if self.scores_policy else await self._reward(number, groups)
            return SampledGroups(groups, rewards)

        if self.engine.beside:
            with self.engine.current(number):
                self.ahead.begin(number, sample())
        else:
            with self.clock.part("rollout"), self.engine.current(number):
                self.ahead.put(number, self.rollouts.runner.run(sample()))

    def _settle(self, stats: Sequence[Stats]) -> None:
        """Raises JudgeError, TrainingError: too many requests of the step so far failed."""
        for domain, own in by_domain(stats).items():
            failures = [failure for group in own for failure in group["failures"]]
            requests = sum(group["requests"] for group in own)
            self.rollouts.reward.settle(requests, failures, domain=domain)

    def draw(self, number: int) -> list[DrawnPrompt]:
        """The prompts of a step, all processes' in order of position."""
        recipe, prompts = self.recipe, self.rollouts.prompts
        if (curriculum := self.rollouts.curriculum) is not None:
            return [
                DrawnPrompt(at, self.prompts[draw.prompt_id], draw=draw)
                for at, draw in enumerate(curriculum.draw(number))
            ]
        if self.rollouts.shares is not None:
            rows = self.rollouts.shares.draw(number)
        else:
            rows = rows_drawn(
                count=len(prompts), per_step=recipe.prompts_per_step, step=number, seed=recipe.seed
            )
        return [DrawnPrompt(at, prompts[row]) for at, row in enumerate(rows)]

    def _refills(self, dropped: Sequence[DrawnPrompt]) -> list[DrawnPrompt]:
        """Prompts for the positions of dropped groups; fewer where a domain has no more."""
        curriculum = self.rollouts.curriculum
        assert curriculum is not None, "only a curriculum has prompts beyond the step's"
        draws = curriculum.refill([one.draw for one in dropped if one.draw is not None])
        return [
            DrawnPrompt(one.position, self.prompts[draw.prompt_id], one.attempt + 1, draw)
            for one, draw in zip(dropped, draws, strict=True)
            if draw is not None
        ]

    def _recorded(
        self, number: int, drawn: Sequence[DrawnPrompt], stats: Sequence[Stats]
    ) -> dict[str, float]:
        """Have the curriculum note what came of each prompt of a step; what to log of them."""
        curriculum = self.rollouts.curriculum
        if curriculum is None:
            return {}
        first = [one.draw for one in drawn if one.draw is not None and not one.attempt]
        figures = curriculum.figures(number, first)
        if self.rounds > 1:
            dropped = sum(group["dropped"] for group in stats)
            figures |= {
                "count/dropped_groups": dropped,
                "count/refills": len(stats) - len(first),
                "count/empty_places": len(first) - (len(stats) - dropped),
                "rounds": 1 + max(group["attempt"] for group in stats),
            }
        passes = [[p for p in group["parts"]["pass"] if p is not None] for group in stats]
        curriculum.record(
            [
                DrawnGroup(
                    position=one.position,
                    attempt=one.attempt,
                    prompt_id=one.draw.prompt_id,
                    domain=one.draw.domain,
                    reason=one.draw.reason,
                    passes=int(sum(own)),
                    scored=len(own),
                    dropped=group["dropped"],
                )
                for one, group, own in zip(drawn, stats, passes, strict=True)
                if one.draw is not None
            ],
            main=self.args.process_index == 0,
        )
        return figures

    async def roll_out(
        self,
        number: int,
        drawn: Sequence[DrawnPrompt],
        *,
        on_end: Callable[[Prompt, Completion], None] | None = None,
        longest: int | None = None,
    ) -> list[Group]:
        """The groups of some of a step's prompts, all of their rollouts in one go; `longest`: cut
        completions to this number of tokens, which no training does."""
        sampling, n, seed = self.recipe.sampling, self.recipe.num_generations, self.recipe.seed
        parameters = Parameters(sampling.temperature, max_tokens=sampling.max_tokens, logps=True)
        tasks = [
            Task(one.prompt, index, seed_of(seed, "rollout", number, *one.place))
            for one in drawn
            for index in range(n)
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
        return [
            Group(one.prompt, tuple(completions[k * n : (k + 1) * n]))
            for k, one in enumerate(drawn)
        ]

    def _in_loss(self, groups: Sequence[ScoredGroup]) -> list[Batch]:
        """The micro-batches of an update: the rows in the loss of its groups."""
        rows = trained_rows(groups, overlong=self.recipe.loss.overlong)
        parts = micro_batches(rows, groups, count=self.args.gradient_accumulation_steps)
        return [collate(part, pad_id=self.pad_id) for part in parts]


def accumulation(recipe: GroupTraining, *, micro: int, processes: int) -> int:
    """Micro-batches of an update on each process, of `micro` rollouts each.

    Raises:
        ConfigError: a group would be split over processes or updates, or micro-batches do not fit.
    """
    per_step, num_iterations = recipe.prompts_per_step, recipe.loss.num_iterations
    parts = num_iterations * processes
    if per_step % parts:
        below = per_step // parts * parts
        sizes = ", ".join(str(size) for size in (below, below + parts) if size)
        may = [p for p in range(1, per_step + 1) if per_step % (p * num_iterations) == 0]
        fits = f", or start {', '.join(map(str, may))} process(es)" if may else ""
        shared = f" × {num_iterations} updates" if num_iterations > 1 else ""
        raise ConfigError(
            f"prompts_per_step {per_step} over {processes} process(es){shared} would split a "
            "group, whose rewards are relative to each other: set prompts_per_step to "
            f"{sizes}{fits}"
        )
    local = per_step // parts * recipe.num_generations
    if local % micro:
        fitting = ", ".join(str(n) for n in range(1, local + 1) if local % n == 0)
        raise ConfigError(
            f"{local} rollouts a process and update are no multiple of "
            f"trainer.per_device_train_batch_size {micro}; it may be {fitting}"
        )
    return local // micro


def own_positions(recipe: GroupTraining, *, processes: int, process: int) -> set[int]:
    """Positions that one process rolls out, the same number for each update. A process has whole
    groups: their rewards are relative to each other."""
    size = recipe.prompts_per_step // (recipe.loss.num_iterations * processes)
    return {at for at in range(recipe.prompts_per_step) if at // size % processes == process}


def total(stats: Sequence[Stats], name: str) -> int:
    """Of a number that each rollout has, over groups."""
    return sum(sum(group[name]) for group in stats)
