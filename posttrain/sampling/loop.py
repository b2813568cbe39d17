"""Rollouts: generate, parse, run the tools, put their results behind, go on until there is an end.

    completions = await roll_out(
        [Task(prompt, index=0, seed=1)], sampler, open_environment=open_environment, limits=limits
    )
    → [Completion("maths-7/with_tools/on", 0, steps=(Step("…<tool_call>…", …), Step("56…", …)), …)]

A batched sampler gets all live rollouts a round, in the order of their tasks: the same tasks always
make the same batches. A server gets one rollout a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.rollouts import Completion, Prompt
from posttrain.sampling.protocol import Sampler
from posttrain.sampling.rollout import Limits, Rollout
from posttrain.sampling.together import gather_or_cancel
from posttrain.tools.protocol import Environment

OpenEnvironment = Callable[[Prompt], Environment | None]
Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One completion to make: which of a prompt's samples, under which seed."""

    prompt: Prompt
    index: int
    seed: int


async def roll_out(
    tasks: Sequence[Task],
    sampler: Sampler,
    *,
    open_environment: OpenEnvironment,
    limits: Limits,
    on_done: Callable[[Completion], None] | None = None,
    progress: Told | None = None,
    at_once: int | None = None,
) -> list[Completion]:
    """One completion a task, in order. Arguments as for `roll_out_each`."""
    found: dict[int, Completion] = {}

    def keep(position: int, completion: Completion) -> None:
        found[position] = completion
        if on_done is not None:
            on_done(completion)

    await roll_out_each(
        tasks,
        sampler,
        open_environment=open_environment,
        limits=limits,
        on_done=keep,
        progress=progress,
        at_once=at_once,
    )
    return [found[position] for position in range(len(tasks))]


async def roll_out_each(
    tasks: Sequence[Task],
    sampler: Sampler,
    *,
    open_environment: OpenEnvironment,
    limits: Limits,
    on_done: Callable[[int, Completion], None],
    progress: Told | None = None,
    at_once: int | None = None,
) -> None:
    """Make every task's completion and hand it over as soon as it is done; nothing is kept.

    Args:
        open_environment: what runs the calls of a prompt that declares tools; None: nothing does,
            and a call ends the completion. Never asked for a prompt without tools.
        limits: of each completion.
        on_done: told the task's position and its completion.
        progress: told new tokens as they come.
        at_once: rollouts in flight with a sampler that is not batched; None: all.
    """
    if sampler.batched:
        begun: list[Rollout] = []
        try:
            begun += (_begin(task, open_environment, limits) for task in tasks)
            await _in_rounds(begun, sampler, limits, on_done, progress)
        finally:
            for rollout in begun:
                await rollout.close()
        return
    waiting = iter(enumerate(tasks))

    async def work() -> None:
        for position, task in waiting:
            rollout = _begin(task, open_environment, limits)
            on_done(position, await _alone(rollout, sampler, gate, progress))

    gate = asyncio.Semaphore(limits.tools_at_once)
    workers = min(len(tasks), at_once or len(tasks))
    await gather_or_cancel(work() for _ in range(workers))


def _begin(task: Task, open_environment: OpenEnvironment, limits: Limits) -> Rollout:
    declared = task.prompt.tools is not None
    environment = open_environment(task.prompt) if declared else None
    return Rollout(task.prompt, task.index, task.seed, limits, environment)


async def _alone(
    rollout: Rollout, sampler: Sampler, gate: asyncio.Semaphore, progress: Told | None
) -> Completion:
    try:
        while rollout.finish is None:
            generations = await sampler.sample([rollout.request()], progress=progress)
            rollout.receive(generations[0])
            await rollout.run_calls(gate)
        return rollout.completion()
    finally:
        await rollout.close()


async def _in_rounds(
    rollouts: Sequence[Rollout],
    sampler: Sampler,
    limits: Limits,
    on_done: Callable[[int, Completion], None],
    progress: Told | None,
) -> None:
    gate = asyncio.Semaphore(limits.tools_at_once)
    live = list(enumerate(rollouts))
    while live:
        requests = [rollout.request() for _, rollout in live]
        generations = await sampler.sample(requests, progress=progress)
        for (_, rollout), generation in zip(live, generations, strict=True):
            rollout.receive(generation)
        await gather_or_cancel(rollout.run_calls(gate) for _, rollout in live)
        for position, rollout in live:
            if rollout.finish is not None:
                on_done(position, rollout.completion())
                await rollout.close()
        live = [(position, rollout) for position, rollout in live if rollout.finish is None]
