"""Draft of one item, as a family makes it, and the transcript that builds its conversation.

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
    """Random generator and choices that a family makes one item from.

    Attributes:
        rng: generator keyed by the item's place.
        difficulty: 1 to 5; each family says what it counts.
        verbosity: length of the worked reasoning.
        with_tools: whether to declare tools, in families that can do without.
        side: 0 or 1 in families of pairs, else 0; both sides draw the same numbers from `rng`, so
            that they differ only in what `side` decides.
    """

    rng: random.Random
    difficulty: int
    verbosity: Verbosity
    with_tools: bool
    side: int


@dataclass(frozen=True, slots=True)
class Draft:
    """An item without its id and its place; docs/guides/tiny-world.md describes the fields.

    Attributes:
        key: what the question is about, whatever its wording.
        question: number of the wording and the text, from `pick_wording`.
        grading: None: "number" if the gold is one, else "words".
        gold_state: None: the initial state.
    """

    key: str
    task: str
    question: tuple[int, str]
    reference: tuple[dict[str, Any], ...]
    gold: str
    grading: Grading | None = None
    tools: tuple[str, ...] = ()
    initial_state: Mapping[str, Any] | None = None
    gold_state: Mapping[str, Any] | None = None
    fault: Mapping[str, Any] | None = None
    minimum_calls: int = 0
    options: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()


def pick_wording(draw: ItemDraw, wordings: str, **words: object) -> tuple[int, str]:
    """Draw one of several templates, written in one text with bars between, and fill it in.

    Args:
        wordings: templates of the question, separated by bars.

    Returns:
        Number of the wording and the question.
    """
    templates = wordings.split("|")
    paraphrase = draw.rng.randrange(len(templates))
    return paraphrase, templates[paraphrase].format(**words)


def write_reasoning(
    verbosity: Verbosity, steps: Sequence[str], *, opening: str, result: str
) -> str:
    """Write the worked reasoning at one of three lengths; every length contains every step.

    The chatty one goes through the steps twice and finds nothing new: length control can learn to
    leave that out.
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


def draw_idle_tools(draw: ItemDraw) -> tuple[str, ...]:
    """Draw two tools to declare with a question that needs none; () if none is to be declared.

    They teach that a declared tool need not be called.
    """
    return tuple(draw.rng.sample(IDLE_TOOLS, 2)) if draw.with_tools else ()


def user_message(text: str) -> dict[str, Any]:
    """User's message in OpenAI's form."""
    return {"role": "user", "content": text}


def assistant_message(text: str, reasoning: str) -> dict[str, Any]:
    """Assistant's message with its reasoning, in OpenAI's form."""
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def answer_message(
    draw: ItemDraw, steps: Sequence[str], gold: str, *, opening: str, result: str | None = None
) -> dict[str, Any]:
    """Write the answer to a question that needs no call, with its reasoning.

    Args:
        result: conclusion of the reasoning; None: the gold.
    """
    conclusion = result or gold
    reasoning = write_reasoning(draw.verbosity, steps, opening=opening, result=conclusion)
    return assistant_message(gold, reasoning)


def reasoned_draft(
    draw: ItemDraw,
    steps: Sequence[str],
    gold: str,
    *,
    opening: str,
    result: str | None = None,
    **fields: Any,
) -> Draft:
    """Draft an item whose reference is one message: the reasoning and the answer."""
    reference = answer_message(draw, steps, gold, opening=opening, result=result)
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
        self._draw = draw
        self._state = state
        self._fault = fault
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
        """Add an assistant step that calls one tool, and the tool's result, which it returns.

        Without a `result` the reasoning concludes with the tool's name.
        """
        identity = f"call_{len(self.world.calls)}"
        arguments_text = json.dumps(dict(arguments), separators=(",", ":"))
        function = {"name": name, "arguments": arguments_text}
        conclusion = result or name
        reasoning = write_reasoning(
            self._draw.verbosity, [step], opening=opening, result=conclusion
        )
        calls = [{"id": identity, "type": "function", "function": function}]
        self.messages.append(assistant_message("", reasoning) | {"tool_calls": calls})
        output = self.world.call(name, arguments)
        self.messages.append(
            {"role": "tool", "tool_call_id": identity, "name": name, "content": output}
        )
        return output

    def answer(self, text: str, reasoning: str | None = None) -> None:
        """Add the final step; without a reasoning, the answer is its own reasoning."""
        self.messages.append(assistant_message(text, text if reasoning is None else reasoning))

    def draft(self, **fields: Any) -> Draft:
        """Draft the item whose reference this is.

        Its minimum number of calls is the number made, unless `fields` say otherwise.
        """
        own_fields = {
            "minimum_calls": len(self.world.calls),
            "tools": self._tools,
            "initial_state": self._state,
            "fault": self._fault,
        }
        return Draft(reference=tuple(self.messages), **{**own_fields, **fields})
