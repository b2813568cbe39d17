"""A conversation turn by turn: its history, its settings, its tools, and its row for training.

Every turn is a new prompt with the whole history, which the template renders as in training. Within
a turn the steps between tool calls continue each other's tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from posttrain.chat.masks import message_texts
from posttrain.environments.base import Toolbox
from posttrain.records import Message, json_text, message_to_template
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.sampling.rollout import Rollout, RolloutLimits
from posttrain.sampling.sampler import Sampler, unframing

REFUSED = "error: the user did not allow this call"
Ask = Callable[[str, str], bool]  # a call's name and its arguments as JSON text → may it run


class View(Protocol):
    """What shows a conversation while it goes on."""

    def begin(self) -> None:
        """A step of the model begins."""

    def end(self, step: Step) -> None:
        """It has ended, and this is what it was."""

    def result(self, text: str) -> None:
        """The result of a call."""


@dataclass
class ConfirmedTools:
    """The environment of a turn: a call runs where the user allows it, and all of it is shown."""

    tools: Toolbox
    ask: Ask
    view: View

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """As `Environment.call`; a refusal is the result that the model reads."""
        allowed = self.ask(name, json_text(arguments))
        text = await self.tools.call(name, arguments) if allowed else REFUSED
        self.view.result(text)
        return text

    def snapshot(self) -> str:
        """No state."""
        return "{}"

    async def close(self) -> None:
        """Nothing to release."""


@dataclass
class Session:
    """A conversation.

    Attributes:
        tools: what the model may call; None declares no tool.
        ask: whether a call may run.
        seed: of the first turn; each turn and step derives its own from it.
        thinking: the setting of the template from the next turn on.
        messages: so far, without the system message.
    """

    sampler: Sampler
    limits: RolloutLimits
    view: View
    tools: Toolbox | None = None
    ask: Ask = lambda _name, _arguments: False
    seed: int = 0
    thinking: bool = True
    system: str | None = None
    messages: tuple[Message, ...] = ()
    turns: int = 0

    async def say(self, text: str) -> Completion:
        """Send the user's words and take the answer into the history.

        A turn that failed or was cancelled leaves no trace in it, nor does one in which the model
        wrote a token that frames messages: no later prompt could hold it.
        """
        self.turns += 1
        user = Message("user", text)
        prompt = Prompt(
            id=f"turn-{self.turns}",
            task="chat",
            setting="chat",
            messages=(*self._system(), *self.messages, user),
            thinking=self.thinking,
        )
        environment, unframed = None, unframing(self.sampler)
        if self.tools is not None:
            prompt = replace(prompt, tools=self.tools.schemas(prompt))
            environment = ConfirmedTools(self.tools, self.ask, self.view)
        rollout = Rollout(prompt, 0, self.seed, self.limits, environment, unframed)
        gate = asyncio.Semaphore(1)
        while rollout.finish is None:
            self.view.begin()
            [generation] = await self.sampler.sample([rollout.request()])
            rollout.receive(generation)
            if generation.step is not None:
                self.view.end(rollout.steps[-1])
            await rollout.go_on(gate)
        completion = rollout.completion()
        texts = [text for message in completion.messages for text in message_texts(message)]
        if framing := next((text for text in texts if unframed(text) != text), None):
            why = f"a token that frames messages is in {framing[:100]!r}; the turn is left out"
            completion = replace(completion, finish="failed", error=why)
        if completion.finish != "failed":
            self.messages = (*self.messages, user, *completion.messages)
        return completion

    def row(self) -> dict[str, Any]:
        """The conversation as a row of training data in OpenAI's layout."""
        rows: list[dict[str, Any]] = []
        for message in (*self._system(), *self.messages):
            row = message_to_template(message)
            row.pop("thinking", None)  # the same trace under another name
            for call in row.get("tool_calls", ()):
                call["function"]["arguments"] = json_text(call["function"]["arguments"])
            rows.append(row)
        if self.tools is None:
            return {"messages": rows}
        schemas = self.tools.schemas(Prompt("", "", "", ()))
        return {"messages": rows, "tools": json.loads(schemas)}

    def _system(self) -> tuple[Message, ...]:
        return () if self.system is None else (Message("system", self.system),)
