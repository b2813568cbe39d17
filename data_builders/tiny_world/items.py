"""Items of the tiny world, each made alone, from its seed and its place.

A keyed hash of what a question is about, the same for every seed and wording, sends one in eight to
the held-out side. An item of a split is the first draw whose key falls on that side.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from data_builders.tiny_world.drafts import VERBOSITIES, Draft, ItemDraw, user_message
from data_builders.tiny_world.families import CHAINED, FAMILIES, PAIRED
from data_builders.tiny_world.tools import tool_schemas
from posttrain.records import Message, ToolCall

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
HELD_OUT_ONE_IN = 8
# one draw in eight is held out: so many without one mean that the family's space is too small
_MAXIMUM_DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Address of an item: the same place is always the same item."""

    seed: int
    split: Split
    family: str
    index: int

    @property
    def id(self) -> str:
        return f"{self.split}-{self.seed}-{self.family}-{self.index}"


@dataclass(frozen=True, slots=True)
class Choices:
    """Settings of a family's items; shares are probabilities in [0, 1].

    Attributes:
        difficulties: difficulties, each equally likely.
        verbosity: relative weights of terse, plain and chatty reasoning.
        tools_declared: share of items with tools, in the families that can do without.
        several_turns: share of items that follow an earlier question in the same conversation, in
            the families of single questions.
    """

    difficulties: tuple[int, ...] = (1, 2, 3)
    verbosity: tuple[float, float, float] = (0.4, 0.3, 0.3)
    tools_declared: float = 0.5
    several_turns: float = 0.1


def _keyed_hash(name: str, key: bytes) -> int:
    """64-bit hash of a name, the same on every machine and in every version of Python."""
    return int.from_bytes(hashlib.blake2b(name.encode(), key=key, digest_size=8).digest(), "big")


def is_held_out(key: str) -> bool:
    """True if content belongs to the held-out side, for every seed alike."""
    return _keyed_hash(key, b"tiny-world split") % HELD_OUT_ONE_IN == 0


def _keyed_generator(place: Place, *parts: object) -> random.Random:
    """Random generator keyed by a place's seed, split and family, and by further parts."""
    name = "/".join(map(str, (place.seed, place.split, place.family, *parts)))
    return random.Random(_keyed_hash(name, b"tiny-world item"))


def draft_item(place: Place, choices: Choices, role: str = "item") -> tuple[Draft, ItemDraw]:
    """First draft for this place whose content belongs to its split, with its draw.

    Args:
        role: "item", or "earlier" for the question before it in the same conversation.
    """
    number = place.index
    side = 0
    if place.family in PAIRED:
        number, side = divmod(place.index, 2)
    for attempt in range(_MAXIMUM_DRAWS):
        rng = _keyed_generator(place, number, role, attempt)
        draw = ItemDraw(
            rng=rng,
            difficulty=rng.choice(choices.difficulties),
            verbosity=rng.choices(VERBOSITIES, choices.verbosity)[0],
            with_tools=rng.random() < choices.tools_declared,
            side=side,
        )
        draft = FAMILIES[place.family](draw)
        if is_held_out(draft.key) == (place.split == "heldout"):
            return draft, draw
    raise AssertionError(f"no {place.split} content for {place.family}: its space is too small")


def make_item(place: Place, choices: Choices | None = None) -> dict[str, Any]:
    """Make one item with its reference conversation.

    Returns:
        `id`, `prompt` (messages up to the generation point), `reference` (messages after it),
        `tools` (OpenAI schemas or None) and `metadata` (see docs/guides/tiny-world.md).
    """
    choices = choices or Choices()
    draft, draw = draft_item(place, choices)
    prompt = [user_message(draft.question[1])]
    can_follow = place.family in CHAINED and not draft.tools
    if can_follow and _draws_earlier_question(place, choices):
        without_tools = Choices(choices.difficulties, choices.verbosity, 0.0, 0.0)
        earlier, _ = draft_item(place, without_tools, role="earlier")
        prompt = [user_message(earlier.question[1]), *earlier.reference, *prompt]
    turns = sum(message["role"] == "user" for message in prompt)
    return {
        "id": place.id,
        "prompt": prompt,
        "reference": list(draft.reference),
        "tools": tool_schemas(draft.tools) if draft.tools else None,
        "metadata": _metadata(place, draft, draw, turns=turns),
    }


def _draws_earlier_question(place: Place, choices: Choices) -> bool:
    return _keyed_generator(place, place.index, "turns").random() < choices.several_turns


def _metadata(place: Place, draft: Draft, draw: ItemDraw, *, turns: int) -> dict[str, Any]:
    """Metadata of an item: docs/guides/tiny-world.md describes the fields."""
    twin = replace(place, index=place.index ^ 1)
    return {
        "family": place.family,
        "task": draft.task,
        "split": place.split,
        "seed": place.seed,
        "index": place.index,
        "difficulty": draw.difficulty,
        "verbosity": draw.verbosity,
        "paraphrase": draft.question[0],
        "twin": twin.id if place.family in PAIRED else None,
        "turns": turns,
        "answerable": draft.grading not in ("unknown", "no_tool"),
        "gold": draft.gold,
        "grading": draft.grading or ("number" if draft.gold.isdigit() else "words"),
        "options": list(draft.options),
        "replies": list(draft.replies),
        "with_tools": bool(draft.tools),
        "tools_declared": list(draft.tools),
        "initial_state": draft.initial_state,
        "gold_state": draft.initial_state if draft.gold_state is None else draft.gold_state,
        "fault": draft.fault,
        "minimum_calls": draft.minimum_calls,
    }


def training_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Training row of an item: prompt and reference as one conversation in OpenAI's form."""
    row = {"id": item["id"], "messages": [*item["prompt"], *item["reference"]]}
    return row | {"tools": item["tools"], "metadata": item["metadata"]}


def heldout_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out row of an item: messages up to the generation point, the reference apart."""
    row = {"id": item["id"], "messages": item["prompt"], "tools": item["tools"]}
    return row | {"metadata": item["metadata"], "reference": item["reference"]}


def message_of(row: Mapping[str, Any]) -> Message:
    """Convert a message of an item to a record's message."""
    calls: list[ToolCall] = []
    for call in row.get("tool_calls", ()):
        function = call["function"]
        calls.append(ToolCall(function["name"], function["arguments"], call["id"]))
    return Message(
        role=row["role"],
        content=row["content"],
        reasoning=row.get("reasoning_content"),
        tool_calls=tuple(calls),
        tool_call_id=row.get("tool_call_id"),
        name=row.get("name"),
    )
