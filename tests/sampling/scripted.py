"""A sampler that answers by a script, over one token a byte; and an environment that counts.

sampler = Scripted(lambda request, rng: "56<|im_end|>")
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from posttrain.chat import parse_completion
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt, Step
from posttrain.sampling.sampler import Generation, Request

END = "<|im_end|>"
FAIL = "FAIL"  # of a script: the request fails
Script = Callable[[Request, random.Random], str]


def tool(name: str, *, required: Sequence[str] = (), **types: str) -> str:
    """JSON text of one declared tool with parameters of these types."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in types.items()},
    }
    if required:
        parameters["required"] = list(required)
    function = {"name": name, "parameters": parameters}
    return json_text([{"type": "function", "function": function}])


TOOLS = tool("add", a="integer", b="integer")


def call(name: str, **arguments: object) -> str:
    """A call as Nemotron writes it."""
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def ids_of(text: str) -> tuple[int, ...]:
    """One token a byte."""
    return tuple(text.encode())


def turn(message: Message) -> str:
    """A message as this sampler's prompts hold it."""
    return f"[{message.role}]{message.content}"


def prompt_ids(request: Request) -> tuple[int, ...]:
    """The whole prompt; a continued one keeps what was sampled."""
    before = request.continues
    if before is None:
        return ids_of("".join(map(turn, request.messages)) + "[assistant]")
    assert before.prompt_ids is not None
    assert before.step is not None
    assert before.step.ids is not None
    last = max(i for i, m in enumerate(request.messages) if m.role == "assistant")
    since = "".join(map(turn, request.messages[last + 1 :])) + "[assistant]"
    return (*before.prompt_ids, *before.step.ids, *ids_of(since))


def step_of(request: Request, text: str, prompt_tokens: int) -> Step:
    """The text cut at the limit, as one step."""
    kept = text.encode()[: request.parameters.max_tokens].decode(errors="ignore")
    parsed = parse_completion(kept, thinking=request.thinking, tools=request.tools)
    return Step(
        text=kept,
        parsed=parsed,
        finish="stop" if parsed.finished else "length",
        reasoning_tokens=len((parsed.reasoning or "").encode()),
        answer_tokens=len(parsed.answer.encode()),
        prompt_tokens=prompt_tokens,
        ids=ids_of(kept),
    )


@dataclass
class Scripted:
    """Answers every request by `script`; `calls` keeps what each call of `sample` asked for."""

    script: Script
    batched: bool = True
    calls: list[list[Request]] = field(default_factory=list)
    identity: Mapping[str, Any] = field(default_factory=lambda: {"backend": "scripted"})

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """One answer a request; the script's randomness is the request's own."""
        self.calls.append(list(requests))
        found: list[Generation] = []
        for request in requests:
            ids = prompt_ids(request)
            text = self.script(request, random.Random(request.seed))
            if text == FAIL:
                found.append(Generation(None, error="the server went away"))
                continue
            found.append(Generation(step_of(request, text, len(ids)), ids))
            if progress is not None:
                progress(len(text))
        return found


def opening(sampler_of: Callable[[str], Scripted]) -> Callable[..., Any]:
    """A stand-in for `opened_sampler`: the sampler of a checkpoint's path."""

    @asynccontextmanager
    async def opened(*_: object, checkpoint: str, **__: object) -> AsyncIterator[Scripted]:
        yield sampler_of(checkpoint)

    return opened


@dataclass
class Mortal(Scripted):
    """Kills its process at a call of `sample`, as nothing can be caught."""

    kill_at: int = 0

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        if len(self.calls) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().sample(requests, progress=progress)


@dataclass
class Adder:
    """Adds, remembers its sums, and says whether it was closed."""

    sums: list[int] = field(default_factory=list)
    closed: int = 0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name != "add":
            return f"error: no tool {name}"
        self.sums.append(int(arguments["a"]) + int(arguments["b"]))
        return str(self.sums[-1])

    def snapshot(self) -> str:
        return json.dumps({"sums": self.sums})

    async def close(self) -> None:
        self.closed += 1


def question(number: int = 0, **fields: Any) -> Prompt:
    """A prompt with tools, unless said otherwise."""
    given: dict[str, Any] = {
        "id": f"sum-{number}/with_tools/off",
        "task": f"sum-{number}",
        "setting": "with_tools",
        "messages": (Message("user", f"{number}+{number}?"),),
        "tools": TOOLS,
        "thinking": False,
        "environment": "adder",
        **fields,
    }
    return Prompt(**given)
