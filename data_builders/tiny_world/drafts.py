"""What a family makes: a draft of one item, and the transcript that builds its conversation.

A draft's `key` says what the question is about, whatever its wording: it alone decides whether the
content belongs to training or is held out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from data_builders.tiny_world.tools import ToolWorld

Verbosity = Literal["terse", "plain", "chatty"]
VERBOSITIES: tuple[Verbosity, ...] = ("terse", "plain", "chatty")
Grading = Literal["number", "words", "unknown", "no_tool", "refusal", "question", "state"]
IDLE_TOOLS = ("calculate", "get_price", "get_stock", "get_owner", "get_city")

# the words of the world: short, distinct, and few enough to become single tokens
PEOPLE = ("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hal", "ida", "jon", "kim", "leo")
THINGS = (
    "lamp", "desk", "chair", "cup", "pen", "book",
    "bag", "clock", "rug", "plate", "kettle", "shelf",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "black", "white", "pink")
CITIES = ("oslo", "lima", "cairo", "rome", "quito", "delhi", "tokyo", "paris")
SERVICES = ("mail", "web", "disk", "cron", "auth")


@dataclass(frozen=True, slots=True)
class ItemDraw:
    """What a family is given: a keyed generator and the choices made before it.

    `side` is 0 or 1 in families of pairs; both sides consume the same `rng` alike.
    """

    rng: random.Random
    difficulty: int
    verbosity: Verbosity
    with_tools: bool
    side: int


@dataclass(frozen=True, slots=True)
class Draft:
    """An item before it has its id and its place; docs/guides/tiny-world.md has the fields."""

    key: str
    task: str
    question: tuple[int, str]  # from `worded`
    reference: tuple[dict[str, Any], ...]
    gold: str
    grading: Grading | None = None  # None: a number where the gold is one, else words
    tools: tuple[str, ...] = ()
    initial_state: Mapping[str, Any] | None = None
    gold_state: Mapping[str, Any] | None = None  # None: the initial one
    fault: Mapping[str, Any] | None = None
    minimum_calls: int = 0
    options: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()


def worded(draw: ItemDraw, wordings: str, **words: object) -> tuple[int, str]:
    """The number of one of the wordings, which bars separate, and the question in it."""
    choices = wordings.split("|")
    paraphrase = draw.rng.randrange(len(choices))
    return paraphrase, choices[paraphrase].format(**words)


def reason(verbosity: Verbosity, steps: Sequence[str], *, opening: str, result: str) -> str:
    """Worked reasoning at one of three lengths; every length contains every step.

    chatty goes through the steps a second time and finds nothing: room for length control.
    """
    worked = "\n".join(steps)
    if verbosity == "terse":
        return worked
    if verbosity == "plain":
        return f"{opening}\n{worked}\nSo {result}."
    return (
        f"Okay, {opening}\n{worked}\nThat gives {result}. Let me check it again.\n"
        f"{worked}\nYes, the answer is {result}."
    )


def idle_tools(draw: ItemDraw) -> tuple[str, ...]:
    """Two tools to declare with a question that needs none, so that declared does not mean called;
    () where none is to be declared."""
    return tuple(draw.rng.sample(IDLE_TOOLS, 2)) if draw.with_tools else ()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def answered(
    draw: ItemDraw, steps: Sequence[str], gold: str, *, opening: str, result: str | None = None
) -> dict[str, Any]:
    """The answer to a question that needs no call, with its reasoning."""
    return assistant(gold, reason(draw.verbosity, steps, opening=opening, result=result or gold))


def worked_out(
    draw: ItemDraw,
    steps: Sequence[str],
    gold: str,
    *,
    opening: str,
    result: str | None = None,
    **fields: Any,
) -> Draft:
    """The item whose reference is reasoning and the answer."""
    reference = answered(draw, steps, gold, opening=opening, result=result)
    return Draft(reference=(reference,), gold=gold, **fields)


class Transcript:
    """The reference continuation of a prompt, its tool results computed by the real tools."""

    def __init__(
        self,
        draw: ItemDraw,
        state: Mapping[str, Any] | None,
        *,
        tools: Sequence[str],
        fault: Mapping[str, Any] | None = None,
    ) -> None:
        self.world = ToolWorld(state, fault=fault, declared=tools)
        self.messages: list[dict[str, Any]] = []
        self._draw, self._given = draw, {"initial_state": state, "fault": fault}
        self._tools = tuple(tools)

    def call(
        self,
        name: str,
        arguments: Mapping[str, str],
        step: str,
        *,
        opening: str,
        result: str | None = None,
    ) -> str:
        """One assistant step that calls one tool; returns the tool's result.

        Without a `result` the reasoning concludes with the tool's name.
        """
        identity = f"call_{len(self.world.calls)}"
        text = json.dumps(dict(arguments), separators=(",", ":"))
        function = {"name": name, "arguments": text}
        thought = reason(self._draw.verbosity, [step], opening=opening, result=result or name)
        calls = [{"id": identity, "type": "function", "function": function}]
        self.messages.append(assistant("", thought) | {"tool_calls": calls})
        output = self.world.call(name, arguments)
        self.messages.append(
            {"role": "tool", "tool_call_id": identity, "name": name, "content": output}
        )
        return output

    def answer(self, text: str, reasoning: str | None = None) -> None:
        """The final step; the reasoning is the answer itself where none is given."""
        self.messages.append(assistant(text, text if reasoning is None else reasoning))

    def draft(self, **fields: Any) -> Draft:
        """The item whose reference this is; the calls made are its fewest unless given."""
        given = {"minimum_calls": len(self.world.calls), "tools": self._tools, **self._given}
        return Draft(reference=tuple(self.messages), **{**given, **fields})
