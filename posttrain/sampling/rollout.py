"""One completion in the making: what it asks next, what it makes of the answer, and its end.

    rollout = Rollout(prompt, index=0, seed=1, limits=limits, environment=environment)
    rollout.receive(generation)        # a step with a call: finish is still None
    await rollout.run_calls(gate)      # its result is now the last message
    rollout.request()                  # the next step's

A call is run where a tool is declared and an environment runs it. Where none is declared a call
ends the completion, and so does one that was begun and not completed: its text is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from posttrain.json_values import load_json
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, Finish, Prompt, Step
from posttrain.sampling.protocol import Generation, Parameters, Request, seed_of
from posttrain.tools.protocol import Environment

_BROKEN = frozenset({"half_call", "malformed_call"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a completion may take.

    `parameters.max_tokens` bounds a step, `max_tokens` all that the model writes in all steps (tool
    results are not counted), `max_turns` the steps. `tools_at_once` bounds the rollouts whose calls
    run at the same time: programs that share few cores too widely run into their time limits.
    """

    parameters: Parameters
    max_turns: int = 8
    max_tokens: int | None = None
    tools_at_once: int = 4


@dataclass(slots=True)
class Rollout:
    """One completion, growing a step at a time; done when it has a `finish`."""

    prompt: Prompt
    index: int
    seed: int
    limits: Limits
    environment: Environment | None
    finish: Finish | None = None
    error: str | None = None
    steps: list[Step] = field(default_factory=list[Step])
    _messages: list[Message] = field(default_factory=list[Message])
    _last: Generation | None = None
    _prompt_ids: tuple[int, ...] | None = None
    _written: int = 0
    _ids_hold: bool = True
    _closed: bool = False

    def request(self) -> Request:
        """What to ask the model next."""
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
        """Take the answer to `request`; sets `finish` unless there are calls to run."""
        if generation.step is None or generation.error is not None:
            self.finish, self.error = "failed", generation.error or "the backend gave no step"
            return
        allowed = self._allowance()
        step = self._with_call_ids(generation.step)
        self._link(generation)
        self._last = replace(generation, step=step)
        self.steps.append(step)
        self._written += _written(step)
        if step.finish == "length":
            whole = allowed < self.limits.parameters.max_tokens
            self.finish = "token_limit" if whole else "length"
        elif not self._can_run(step):
            self.finish = "stop"
        elif len(self.steps) >= self.limits.max_turns:
            self.finish = "turn_limit"
        elif self._allowance() < 1:
            self.finish = "token_limit"

    async def run_calls(self, gate: asyncio.Semaphore) -> None:
        """Run the calls of the last step in order, and put their results behind it."""
        if self.finish is not None:
            return
        step = self.steps[-1]
        async with gate:
            results = tuple([await self._result(call) for call in step.parsed.tool_calls])
        self._messages += [step.parsed.message(), *results]
        self.steps[-1] = replace(step, results=results)

    def completion(self) -> Completion:
        """The finished completion."""
        assert self.finish is not None, "not at its end"
        steps, prompt_ids = tuple(self.steps), self._prompt_ids
        if not self._ids_hold:
            steps, prompt_ids = tuple(_without_ids(step) for step in steps), None
        return Completion(
            prompt_id=self.prompt.id,
            index=self.index,
            steps=steps,
            finish=self.finish,
            prompt_ids=prompt_ids,
            state=None if self.environment is None else self.environment.snapshot(),
            error=self.error,
        )

    async def close(self) -> None:
        """Release the environment, once."""
        if self.environment is not None and not self._closed:
            self._closed = True
            await self.environment.close()

    def _allowance(self) -> int:
        """Tokens that the next step may have."""
        step, whole = self.limits.parameters.max_tokens, self.limits.max_tokens
        return step if whole is None else min(step, whole - self._written)

    def _can_run(self, step: Step) -> bool:
        parsed = step.parsed
        runnable = self.prompt.tools is not None and self.environment is not None
        return runnable and bool(parsed.tool_calls) and not _BROKEN & set(parsed.problems)

    async def _result(self, call: ToolCall) -> Message:
        assert self.environment is not None
        arguments = _arguments(call)
        if arguments is None:
            text = "error: the arguments are not a JSON object"
        else:
            text = await self.environment.call(call.name, arguments)
        return Message("tool", text, tool_call_id=call.id, name=call.name)

    def _with_call_ids(self, step: Step) -> Step:
        """The step with an id for every call that has none of its own."""
        if not step.parsed.tool_calls:
            return step
        taken = _ids_of((*self.prompt.messages, *self._messages))
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
            self._ids_hold = False


def _written(step: Step) -> int:
    return step.reasoning_tokens + step.answer_tokens if step.ids is None else len(step.ids)


def _ids_of(messages: Iterable[Message]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls if call.id is not None}


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        found = load_json(call.arguments)
    except ValueError:
        return None
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def _without_ids(step: Step) -> Step:
    return replace(step, ids=None, logps=None, forced=None, results_ids=())
