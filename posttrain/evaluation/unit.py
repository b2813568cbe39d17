"""One stretch of an evaluation: a checkpoint's completions of one task in one setting, graded.

    Unit("dpo", task="maths", setting="no_tools", prompts=(…), samples=4)
    run = UnitRun(unit, …); await run.roll_out(position, ask); await run.grade(position)

A unit's records are one file. In process a large one is made part by part: a part is what moves in
step, what is in memory at a time, and what a killed run makes again whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from posttrain.evaluation.gather import Gather
from posttrain.evaluation.record import Record, make_record
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, completion_from_row
from posttrain.sampling.generate import Journal
from posttrain.sampling.rollout import OpenEnvironment, Rollout, RolloutLimits
from posttrain.sampling.sampler import Generation, Request

Ask = Callable[[Request], Awaitable[Generation]]
Attempts = Sequence[tuple[Prompt, Completion]]
Grade = Callable[[str, Attempts], Sequence[Score]]
"""A grader's name and attempts → one score each, in order."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is asked of one checkpoint for one task in one setting, or a part of that."""

    checkpoint: str
    task: str
    setting: str
    prompts: tuple[Prompt, ...]
    samples: int
    part: int = 0

    @property
    def name(self) -> str:
        """Its name within the checkpoint."""
        return f"{self.task}.{self.setting}"

    @property
    def size(self) -> int:
        """How many completions it has."""
        return len(self.prompts) * self.samples

    def at(self, position: int) -> tuple[Prompt, int]:
        """The prompt and the sample's index at a position: prompts in order, samples within."""
        return self.prompts[position // self.samples], position % self.samples


def unit_name(prompt: Prompt) -> str:
    """The name of the unit that a prompt belongs to."""
    return f"{prompt.source}.{prompt.setting}"


@dataclass(frozen=True, slots=True)
class How:
    """What every completion of an evaluation is made and graded with."""

    limits: RolloutLimits
    seed: int
    open_environment: OpenEnvironment
    grade: Grade


def units_of(
    checkpoint: str, prompts: Sequence[Prompt], samples_of: Callable[[str], int]
) -> list[Unit]:
    """A checkpoint's units, in the order of their prompts."""
    found: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault((prompt.source, prompt.setting), []).append(prompt)
    return [
        Unit(checkpoint, task, setting, tuple(asked), samples_of(setting))
        for (task, setting), asked in found.items()
    ]


def parts_of(unit: Unit, *, chunk: int) -> list[Unit]:
    """The unit in parts of about `chunk` completions, no prompt's samples apart."""
    prompts = max(1, chunk // unit.samples)
    starts = range(0, len(unit.prompts), prompts)
    return [
        replace(unit, prompts=unit.prompts[start : start + prompts], part=number)
        for number, start in enumerate(starts)
    ]


@dataclass(slots=True)
class UnitRun:
    """A unit while it is made.

    Args:
        generate: one generation a request, in order.
        batched: whether requests and gradings wait for one another.
        journal: completions of a run before this one, which are not made again.
        on_done: told all records, in order, once.
    """

    unit: Unit
    how: How
    generate: Callable[[Sequence[Request]], Awaitable[Sequence[Generation]]]
    batched: bool
    on_done: Callable[[Unit, list[Record]], None]
    journal: Journal | None = None
    _rollouts: Gather[Request, Generation] = field(init=False)
    _gradings: Gather[tuple[Prompt, Completion], Score] = field(init=False)
    _gate: asyncio.Semaphore = field(init=False)
    _completions: dict[int, Completion] = field(default_factory=dict[int, Completion])
    _records: dict[int, Record] = field(default_factory=dict[int, Record])

    def __post_init__(self) -> None:
        waiting = self.unit.size if self.batched else 0
        self._rollouts = Gather(self.generate, expected=waiting)
        self._gradings = Gather(self._grade_all, expected=waiting)
        self._gate = asyncio.Semaphore(self.how.limits.tools_at_once)

    @property
    def complete(self) -> bool:
        """Whether every completion is graded."""
        return len(self._records) == self.unit.size

    async def roll_out(
        self, position: int, through: Callable[[Rollout, Request, Ask], Awaitable[Generation]]
    ) -> Completion:
        """The completion at a position.

        Args:
            through: asks a rollout's request by way of what it is given, such as inspect's log.
        """
        prompt, index = self.unit.at(position)
        if self.journal is not None and (prompt.id, index) in self.journal:
            return self._restore(position)
        opened = self.how.open_environment(prompt) if prompt.tools is not None else None
        rollout = Rollout(prompt, index, self.how.seed, self.how.limits, opened)
        try:
            with self._rollouts.member(position=position) as member:
                ask = member.ask if self.batched else self._alone
                while rollout.finish is None:
                    rollout.receive(await through(rollout, rollout.request(), ask))
                    await rollout.run_calls(self._gate)
            completion = rollout.completion()
        finally:
            await rollout.close()
        self._completions[position] = completion
        if self.journal is not None and completion.finish != "failed":
            self.journal.add(completion)
        return completion

    async def grade(self, position: int) -> Record:
        """The record at a position whose completion is made."""
        prompt, _ = self.unit.at(position)
        completion = self._completions.pop(position)
        with self._gradings.member(position=position) as member:
            if completion.finish == "failed":
                score = Score(None, None, f"failed: {completion.error}")
            elif prompt.grader is None:
                score = Score(None, None, "no grader")
            elif self.batched:
                score = await member.ask((prompt, completion))
            else:
                score = (await self._grade_all([(prompt, completion)]))[0]
        record = make_record(self.unit.checkpoint, prompt, completion, score)
        self._records[position] = record
        if self.complete:
            self.on_done(self.unit, [self._records[k] for k in range(self.unit.size)])
        return record

    def _restore(self, position: int) -> Completion:
        prompt, index = self.unit.at(position)
        assert self.journal is not None
        (line,) = self.journal.lines([(prompt.id, index)], otherwise=lambda key: b"")
        completion = self._completions[position] = completion_from_row(json.loads(line))
        return completion

    async def _alone(self, request: Request) -> Generation:
        return (await self.generate([request]))[0]

    async def _grade_all(self, attempts: Attempts) -> Sequence[Score]:
        # graders wait for processes of their own: the event loop goes on meanwhile
        return await asyncio.to_thread(grade_by_name, self.how.grade, attempts)


def grade_by_name(grade: Grade, attempts: Attempts) -> list[Score]:
    """A score an attempt, each by the grader that its prompt names.

    Attempts without a grader, and failed ones, are unscored.
    """
    found: dict[int, Score] = {}
    by_name: dict[str, list[int]] = {}
    for i, (prompt, completion) in enumerate(attempts):
        if completion.finish == "failed":
            found[i] = Score(None, None, f"failed: {completion.error}")
        elif prompt.grader is None:
            found[i] = Score(None, None, "no grader")
        else:
            by_name.setdefault(prompt.grader, []).append(i)
    for name, places in by_name.items():
        scores = grade(name, [attempts[i] for i in places])
        assert len(scores) == len(places), f"grader {name}: {len(scores)} for {len(places)}"
        found |= dict(zip(places, scores, strict=True))
    return [found[i] for i in range(len(attempts))]
