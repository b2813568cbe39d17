"""Rollouts: generate, parse, run the tools, put their results behind, go on until there is an end.

A call is run where a tool is declared and an environment runs it; any other ends the completion,
and so does one that was begun and not completed: its text is the answer. An environment with a user
(`ScriptedUser`) answers a step without calls, until the user has nothing more to write. One that
raises, hangs or returns rubbish fails its completion, with the name of what it did. Tokens by which
a tool's or user's text would end its own message are broken, and recorded as they were read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from posttrain.environments.base import (
    Environment,
    EnvironmentFault,
    ScriptedUser,
    attempt,
    clip,
    state_of,
)
from posttrain.jsontext import load_json
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, Finish, Prompt, RolloutLimits, Step
from posttrain.sampling.sampler import (
    Generation,
    IncrementalSampler,
    Progress,
    Request,
    Sampler,
    seed_of,
    unframing,
)

OpenEnvironment = Callable[[Prompt], Environment | None]


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
    limits: RolloutLimits,
    at_once: int | None = None,
    on_end: Callable[[Prompt, Completion], None] | None = None,
) -> list[Completion]:
    """One completion a task, in order. Arguments as for `roll_out_each`; `on_end` is called with
    the prompt and each completion when it ends, while others go on."""
    completions: dict[int, Completion] = {}

    def done(position: int, completion: Completion) -> None:
        completions[position] = completion
        if on_end is not None:
            on_end(tasks[position].prompt, completion)

    await roll_out_each(
        tasks,
        sampler,
        open_environment=open_environment,
        limits=limits,
        on_done=done,
        at_once=at_once,
    )
    return [completions[position] for position in range(len(tasks))]


async def roll_out_each(
    tasks: Sequence[Task],
    sampler: Sampler,
    *,
    open_environment: OpenEnvironment,
    limits: RolloutLimits,
    on_done: Callable[[int, Completion], None],
    progress: Progress = None,
    at_once: int | None = None,
) -> None:
    """Make every task's completion and hand it over as soon as it is done; nothing is kept.

    A batched sampler gets all live rollouts a round, in the order of their tasks: the same tasks
    always make the same batches. A server gets one rollout a worker.

    Args:
        open_environment: what runs the calls of a prompt that declares tools; None: nothing does,
            and a call ends the completion. Never called for a prompt without tools.
        on_done: called with the task's position and its completion, in no certain order.
        at_once: rollouts in flight with a sampler that is not batched; None: all.
    """
    unframed = unframing(sampler)
    gate = asyncio.Semaphore(limits.tools_at_once)

    async def begin(task: Task) -> Rollout:
        rollout = Rollout(task.prompt, task.index, task.seed, limits, unframed=unframed)
        if task.prompt.tools is not None:
            await rollout.open(open_environment)
        return rollout

    async def in_rounds(group: Iterable[tuple[int, Task]]) -> None:
        begun: list[tuple[int, Rollout]] = []

        def receive(number: int, generation: Generation) -> None:
            position, rollout = live[number]
            rollout.receive(generation)
            if rollout.finish is not None:
                on_done(position, rollout.completion())

        try:
            for position, task in group:
                rollout = await begin(task)
                begun.append((position, rollout))
                if rollout.finish is not None:
                    on_done(position, rollout.completion())
            live = [(position, rollout) for position, rollout in begun if rollout.finish is None]
            while live:
                requests = [rollout.request() for _, rollout in live]
                if isinstance(sampler, IncrementalSampler):
                    await sampler.sample_each(requests, on_done=receive, progress=progress)
                else:
                    generations = await sampler.sample(requests, progress=progress)
                    for number, generation in enumerate(generations):
                        receive(number, generation)
                going = [(position, one) for position, one in live if one.finish is None]
                await gather_or_cancel(rollout.go_on(gate) for _, rollout in going)
                for position, rollout in going:
                    if rollout.finish is not None:
                        on_done(position, rollout.completion())
                for _, rollout in live:
                    if rollout.finish is not None:
                        await rollout.close()
                live = [(position, one) for position, one in going if one.finish is None]
        finally:
            for _, rollout in begun:
                await rollout.close()

    if sampler.batched:
        await in_rounds(enumerate(tasks))
        return
    waiting = iter(enumerate(tasks))

    async def work() -> None:
        for one in waiting:
            await in_rounds([one])

    await gather_or_cancel(work() for _ in range(min(len(tasks), at_once or len(tasks))))


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; none outlives this call. An error comes as itself, not in a group."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Rollout:
    """One completion, growing a step at a time by `request`, `receive` and `go_on`; done when it
    has a `finish`."""

    prompt: Prompt
    index: int
    seed: int
    limits: RolloutLimits
    environment: Environment | None = None
    unframed: Callable[[str], str] = str  # as `unframing` of the sampler
    finish: Finish | None = None
    error: str | None = None
    steps: list[Step] = field(default_factory=list[Step])
    _messages: list[Message] = field(default_factory=list[Message])
    _last: Generation | None = None
    _prompt_ids: tuple[int, ...] | None = None
    _written: int = 0
    _ids_match: bool = True
    _closed: bool = False

    async def open(self, open_environment: OpenEnvironment) -> None:
        """Open the prompt's environment; one that does not open fails the completion."""
        try:
            self.environment = await attempt("open", lambda: open_environment(self.prompt))
        except EnvironmentFault as fault:
            self._fail(str(fault))

    def request(self) -> Request:
        """The next model call."""
        return Request(
            messages=(*self.prompt.messages, *self._messages),
            tools=self.prompt.tools,
            thinking=self.prompt.thinking,
            parameters=replace(self.limits.parameters, max_tokens=self._allowance()),
            seed=seed_of(self.seed, self.prompt.id, self.index, len(self.steps)),
            reasoning_budget=self.prompt.reasoning_budget,
            continues=self._last,
        )

    def receive(self, generation: Generation) -> None:
        """Take the answer to `request`; sets `finish` unless calls or a user may follow."""
        if generation.step is None:
            self._fail(generation.error)
            return
        allowed = self._allowance()
        step = self._with_call_ids(generation.step)
        self._link(generation)
        self._last = replace(generation, step=step)
        self.steps.append(step)
        self._written += (
            step.reasoning_tokens + step.answer_tokens if step.ids is None else len(step.ids)
        )
        if step.finish == "length":
            whole = allowed < self.limits.parameters.max_tokens
            self.finish = "token_limit" if whole else "length"
        elif self._can_run(step):
            self.finish = self._limit()  # calls whose results nobody would read are not run
        elif self._user(step) is None:
            self.finish = "stop"

    async def go_on(self, gate: asyncio.Semaphore) -> None:
        """Put behind the last step what it gets: the results of its calls, or the user's reply."""
        if self.finish is not None:
            return
        step = self.steps[-1]
        try:
            async with gate:
                if (user := self._user(step)) is None:
                    results = tuple([await self._result(call) for call in step.parsed.tool_calls])
                else:
                    results = await self._reply(user, step.parsed.answer)
        except EnvironmentFault as fault:
            self._fail(str(fault))
            return
        if self.finish is None:
            self._messages += [step.parsed.message(), *results]
            self.steps[-1] = replace(step, results=results)

    def completion(self) -> Completion:
        """The finished completion."""
        assert self.finish is not None, "not at its end"
        state = None
        if self.environment is not None:
            try:
                state = state_of(self.environment)
            except EnvironmentFault as fault:
                self._fail(self.error or str(fault))
        steps, prompt_ids = tuple(self.steps), self._prompt_ids
        if not self._ids_match:
            steps, prompt_ids = tuple(map(_without_ids, steps)), None
        return Completion(
            prompt_id=self.prompt.id,
            index=self.index,
            steps=steps,
            finish=self.finish,
            prompt_ids=prompt_ids,
            state=state,
            error=self.error,
        )

    async def close(self) -> None:
        """Release the environment, once."""
        if self.environment is not None and not self._closed:
            self._closed = True
            with contextlib.suppress(EnvironmentFault):  # the completion is whole without it
                await attempt("close", self.environment.close)

    def _fail(self, error: str | None) -> None:
        self.finish = "failed"
        self.error = error

    def _allowance(self) -> int:
        """Tokens that the next step may have."""
        step, whole = self.limits.parameters.max_tokens, self.limits.max_tokens
        return step if whole is None else min(step, whole - self._written)

    def _limit(self) -> Finish | None:
        """The limit that leaves no room for a further step."""
        if len(self.steps) >= self.limits.max_turns:
            return "turn_limit"
        return "token_limit" if self._allowance() < 1 else None

    def _can_run(self, step: Step) -> bool:
        runnable = self.prompt.tools is not None and self.environment is not None
        return runnable and bool(step.parsed.tool_calls) and not _breaks_a_call(step)

    def _user(self, step: Step) -> ScriptedUser | None:
        """Who answers this step: nobody where it makes a call, whole or broken."""
        calls, user = step.parsed.tool_calls or _breaks_a_call(step), self.environment
        return user if isinstance(user, ScriptedUser) and not calls else None

    async def _reply(self, user: ScriptedUser, answer: str) -> tuple[Message, ...]:
        """The user's next turn; without one, or room for an answer to it, the rollout ends."""
        seconds = self.limits.environment_seconds
        respond = functools.partial(user.respond, answer)
        text = await attempt("the user", respond, seconds=seconds, kind=str | None)
        self.finish = "stop" if text is None else self._limit()
        return () if text is None else (Message("user", self.unframed(text)),)

    async def _result(self, call: ToolCall) -> Message:
        assert self.environment is not None
        try:
            arguments = load_json(call.arguments)
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            given = cast(dict[str, Any], arguments)
            run = functools.partial(self.environment.call, call.name, given)
            seconds = self.limits.environment_seconds
            text = await attempt(f"tool {clip(call.name, 80)}", run, seconds=seconds, kind=str)
        else:
            text = "error: the arguments are not a JSON object"
        return Message("tool", self.unframed(text), tool_call_id=call.id, name=call.name)

    def _with_call_ids(self, step: Step) -> Step:
        """The step with an id for every call that has none of its own."""
        if not step.parsed.tool_calls:
            return step
        messages = (*self.prompt.messages, *self._messages)
        taken = {call.id for message in messages for call in message.tool_calls} - {None}
        calls: list[ToolCall] = []
        for call in step.parsed.tool_calls:
            name, number = call.id, len(taken)
            while name is None or name in taken:
                # nine letters and digits, as the strictest template asks
                name, number = f"call{number:05}", number + 1
            taken.add(name)
            calls.append(replace(call, id=name))
        return replace(step, parsed=replace(step.parsed, tool_calls=tuple(calls)))

    def _link(self, generation: Generation) -> None:
        """Note the ids that came between the last step's and this one's."""
        if self._last is None:
            self._prompt_ids = generation.prompt_ids
            return
        before, step = self._last.prompt_ids, self.steps[-1]
        if before is None or step.ids is None or generation.prompt_ids is None:
            return
        known = (*before, *step.ids)
        if generation.prompt_ids[: len(known)] == known:
            self.steps[-1] = replace(step, results_ids=generation.prompt_ids[len(known) :])
        else:
            # a server that renders the history anew wrote it in other ids than were sampled
            self._ids_match = False


def _breaks_a_call(step: Step) -> bool:
    return not {"half_call", "malformed_call"}.isdisjoint(step.parsed.problems)


def _without_ids(step: Step) -> Step:
    return replace(step, ids=None, logps=None, forced=None, results_ids=())
