"""Rollouts: generate a step, parse it, run its tool calls, append the results, until it ends.

A call is run if a tool is declared and an environment runs it. Any other call ends the completion,
and so does a call that was begun and not completed: its text is the answer. An environment with a
user (`ScriptedUser`) answers a step without calls, until the user has nothing more to write. An
environment that raises, hangs or returns rubbish fails its completion, with an error that names the
fault. Tokens by which a tool's or user's text would end its own message are broken, and the text is
recorded as the model read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
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
from posttrain.sampling.cancellation import gather_or_cancel
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
    """One completion to sample.

    Attributes:
        prompt: the prompt.
        index: number of the sample among those of the prompt.
        seed: seed of the run; each step derives its own from it.
    """

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
    on_end: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """Sample the completion of every task, in order. Arguments as for `roll_out_each`.

    Args:
        on_end: called with a task's position and its completion when it ends, while others go on.
    """
    completions: dict[int, Completion] = {}

    def keep(position: int, completion: Completion) -> None:
        completions[position] = completion
        if on_end is not None:
            on_end(position, completion)

    await roll_out_each(
        tasks,
        sampler,
        open_environment=open_environment,
        limits=limits,
        on_done=keep,
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
    """Sample every task's completion and hand each over as soon as it is done; none is kept.

    A batched sampler gets all unfinished rollouts in every round, in the order of their tasks, so
    that the same tasks always make the same batches. With a server each worker has one rollout.

    Args:
        tasks: the completions to sample.
        sampler: the model.
        open_environment: function from a prompt to the environment that runs its calls; returns
            None where nothing runs them, and a call ends the completion. Never called for a prompt
            without tools.
        limits: bounds of a completion.
        on_done: called with the task's position and its completion, in no certain order.
        progress: called with the number of new tokens while the sampler works.
        at_once: rollouts in flight with a sampler that is not batched; None for all.
    """
    unframed = unframing(sampler)
    tool_semaphore = asyncio.Semaphore(limits.tools_at_once)

    async def run_rounds(group: Iterable[tuple[int, Task]]) -> None:
        """Run rollouts together, a model call of each in every round, until all are finished."""
        rollouts: list[tuple[int, Rollout]] = []

        def hand_over(position: int, rollout: Rollout) -> None:
            if rollout.finish is not None:
                on_done(position, rollout.completion())

        def receive(number: int, generation: Generation) -> None:
            position, rollout = unfinished[number]
            rollout.receive(generation)
            hand_over(position, rollout)

        try:
            for position, task in group:
                rollout = Rollout(task.prompt, task.index, task.seed, limits, unframed=unframed)
                if task.prompt.tools is not None:
                    await rollout.open(open_environment)
                rollouts.append((position, rollout))
                hand_over(position, rollout)
            unfinished = _unfinished(rollouts)
            while unfinished:
                requests = [rollout.request() for _, rollout in unfinished]
                if isinstance(sampler, IncrementalSampler):
                    await sampler.sample_each(requests, on_done=receive, progress=progress)
                else:
                    generations = await sampler.sample(requests, progress=progress)
                    for number, generation in enumerate(generations):
                        receive(number, generation)
                sampled = unfinished
                going_on = _unfinished(sampled)
                await gather_or_cancel(rollout.go_on(tool_semaphore) for _, rollout in going_on)
                for position, rollout in going_on:
                    hand_over(position, rollout)
                # environments of finished rollouts are not held until the last one is finished
                for _, rollout in sampled:
                    if rollout.finish is not None:
                        await rollout.close()
                unfinished = _unfinished(going_on)
        finally:
            for _, rollout in rollouts:
                await rollout.close()

    if sampler.batched:
        await run_rounds(enumerate(tasks))
        return
    waiting_tasks = iter(enumerate(tasks))

    async def run_waiting_tasks() -> None:
        for position_and_task in waiting_tasks:
            await run_rounds([position_and_task])

    await gather_or_cancel(
        run_waiting_tasks() for _ in range(min(len(tasks), at_once or len(tasks)))
    )


def _unfinished(rollouts: Sequence[tuple[int, Rollout]]) -> list[tuple[int, Rollout]]:
    return [(position, rollout) for position, rollout in rollouts if rollout.finish is None]


@dataclass(slots=True)
class Rollout:
    """One completion, which grows a step at a time by `request`, `receive` and `go_on`.

    Attributes:
        prompt, index, seed: the task.
        limits: bounds of the completion.
        environment: environment that runs its calls, once `open` was called.
        unframed: function that breaks framing tokens in a text (`unframing` of the sampler).
        finish: reason why the completion ended; None while it is unfinished.
        error: error of a failed completion.
        steps: steps so far.
    """

    prompt: Prompt
    index: int
    seed: int
    limits: RolloutLimits
    environment: Environment | None = None
    unframed: Callable[[str], str] = str
    finish: Finish | None = None
    error: str | None = None
    steps: list[Step] = field(default_factory=list[Step])
    # messages behind the prompt's
    _messages: list[Message] = field(default_factory=list[Message])
    _last: Generation | None = None
    _prompt_ids: tuple[int, ...] | None = None
    _tokens_written: int = 0
    # False once a server rendered the history in other ids than were sampled
    _ids_match: bool = True
    _closed: bool = False

    async def open(self, open_environment: OpenEnvironment) -> None:
        """Open the prompt's environment; one that does not open fails the completion."""
        try:
            self.environment = await attempt("open", lambda: open_environment(self.prompt))
        except EnvironmentFault as fault:
            self._fail(str(fault))

    def request(self) -> Request:
        """Build the next model call."""
        return Request(
            messages=(*self.prompt.messages, *self._messages),
            tools=self.prompt.tools,
            thinking=self.prompt.thinking,
            parameters=replace(self.limits.parameters, max_tokens=self._allowance()),
            seed=seed_of(self.seed, self.prompt.id, self.index, len(self.steps)),
            reasoning_budget=self.prompt.reasoning_budget,
            continues=self._last,
            conversation=seed_of(self.seed, self.prompt.id, self.index),
            schema=self.prompt.schema,
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
        if step.ids is None:
            self._tokens_written += step.reasoning_tokens + step.answer_tokens
        else:
            self._tokens_written += len(step.ids)
        if step.finish == "length":
            completion_is_full = allowed < self.limits.parameters.max_tokens
            self.finish = "token_limit" if completion_is_full else "length"
        elif self._can_run(step):
            # calls whose results nobody would read are not run
            self.finish = self._limit()
        elif self._user(step) is None:
            self.finish = "stop"

    async def go_on(self, tool_semaphore: asyncio.Semaphore) -> None:
        """Append the results of the last step's calls, or the user's reply to it."""
        if self.finish is not None:
            return
        step = self.steps[-1]
        user = self._user(step)
        try:
            async with tool_semaphore:
                if user is None:
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
        """Build the finished completion."""
        assert self.finish is not None, "the rollout is not finished"
        state = None
        if self.environment is not None:
            try:
                state = state_of(self.environment)
            except EnvironmentFault as fault:
                self._fail(self.error or str(fault))
        steps = tuple(self.steps)
        prompt_ids = self._prompt_ids
        if not self._ids_match:
            steps = tuple(map(_without_ids, steps))
            prompt_ids = None
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
            # the completion is whole, whether its environment can be closed or not
            with contextlib.suppress(EnvironmentFault):
                await attempt("close", self.environment.close)

    def _fail(self, error: str | None) -> None:
        self.finish = "failed"
        self.error = error

    def _allowance(self) -> int:
        """Number of tokens that the next step may have."""
        step_limit = self.limits.parameters.max_tokens
        if self.limits.max_tokens is None:
            return step_limit
        return min(step_limit, self.limits.max_tokens - self._tokens_written)

    def _limit(self) -> Finish | None:
        """Find the limit that leaves no room for a further step."""
        if len(self.steps) >= self.limits.max_turns:
            return "turn_limit"
        return "token_limit" if self._allowance() < 1 else None

    def _can_run(self, step: Step) -> bool:
        """Check that the step makes calls that the environment can run."""
        if self.prompt.tools is None or self.environment is None:
            return False
        return bool(step.parsed.tool_calls) and not _has_broken_call(step)

    def _user(self, step: Step) -> ScriptedUser | None:
        """Find the user who answers this step; None if it makes a call, whole or broken."""
        if step.parsed.tool_calls or _has_broken_call(step):
            return None
        return self.environment if isinstance(self.environment, ScriptedUser) else None

    async def _reply(self, user: ScriptedUser, answer: str) -> tuple[Message, ...]:
        """Get the user's next turn; without one, or room for an answer to it, the rollout ends."""
        seconds = self.limits.environment_seconds
        respond = functools.partial(user.respond, answer)
        text = await attempt("the user", respond, seconds=seconds, kind=str | None)
        self.finish = "stop" if text is None else self._limit()
        return () if text is None else (Message("user", self.unframed(text)),)

    async def _result(self, call: ToolCall) -> Message:
        """Run a call in the environment."""
        assert self.environment is not None
        try:
            arguments = load_json(call.arguments)
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            run = functools.partial(
                self.environment.call, call.name, cast(dict[str, Any], arguments)
            )
            seconds = self.limits.environment_seconds
            text = await attempt(f"tool {clip(call.name, 80)}", run, seconds=seconds, kind=str)
        else:
            text = "error: the arguments are not a JSON object"
        return Message("tool", self.unframed(text), tool_call_id=call.id, name=call.name)

    def _with_call_ids(self, step: Step) -> Step:
        """Give an id to every call of the step that has none or one that was used before."""
        if not step.parsed.tool_calls:
            return step
        messages = (*self.prompt.messages, *self._messages)
        used_ids = {call.id for message in messages for call in message.tool_calls} - {None}
        calls: list[ToolCall] = []
        for call in step.parsed.tool_calls:
            call_id = call.id
            number = len(used_ids)
            while call_id is None or call_id in used_ids:
                # nine letters and digits, as the strictest template demands
                call_id = f"call{number:05}"
                number += 1
            used_ids.add(call_id)
            calls.append(replace(call, id=call_id))
        return replace(step, parsed=replace(step.parsed, tool_calls=tuple(calls)))

    def _link(self, generation: Generation) -> None:
        """Record the ids between the last step's and this one's, those of the results."""
        if self._last is None:
            self._prompt_ids = generation.prompt_ids
            return
        last_step = self.steps[-1]
        last_prompt_ids = self._last.prompt_ids
        if last_prompt_ids is None or last_step.ids is None or generation.prompt_ids is None:
            return
        history_ids = (*last_prompt_ids, *last_step.ids)
        if generation.prompt_ids[: len(history_ids)] == history_ids:
            results_ids = generation.prompt_ids[len(history_ids) :]
            self.steps[-1] = replace(last_step, results_ids=results_ids)
        else:
            # a server that renders the history anew wrote it in other ids than were sampled
            self._ids_match = False


def _has_broken_call(step: Step) -> bool:
    return not {"half_call", "malformed_call"}.isdisjoint(step.parsed.problems)


def _without_ids(step: Step) -> Step:
    return replace(step, ids=None, logps=None, forced=None, results_ids=())
