"""Items of the tiny world: any one of them can be made alone, from its seed and its place.

A keyed hash of what a question is about, the same for every seed and wording, sends one in eight to
the held-out side. An item of a split is the first draw whose key falls on that side.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from data_builders.tiny_world.drafts import VERBOSITIES, Draft, ItemDraw, user
from data_builders.tiny_world.families import CHAINED, FAMILIES, PAIRED
from data_builders.tiny_world.tools import tool_schemas
from posttrain.records import Message, ToolCall

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
HELD_OUT_ONE_IN = 8
_MAXIMUM_DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item stands: the same place is always the same item."""

    seed: int
    split: Split
    family: str
    index: int

    @property
    def id(self) -> str:
        return f"{self.split}-{self.seed}-{self.family}-{self.index}"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a family's items may look like; shares are probabilities in [0, 1].

    `verbosity` are the weights of terse, plain and chatty reasoning; `tools_declared` the share of
    items with tools, in the families that can do without; `several_turns` the share that follow an
    earlier question in the same conversation, in the families of single questions.
    """

    difficulties: tuple[int, ...] = (1, 2, 3)
    verbosity: tuple[float, float, float] = (0.4, 0.3, 0.3)
    tools_declared: float = 0.5
    several_turns: float = 0.1


def _number(name: str, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), key=key, digest_size=8).digest(), "big")


def is_held_out(key: str) -> bool:
    """Whether content belongs to the held-out side, for every seed alike."""
    return _number(key, b"tiny-world split") % HELD_OUT_ONE_IN == 0


def _generator(place: Place, *parts: object) -> random.Random:
    name = "/".join(map(str, (place.seed, place.split, place.family, *parts)))
    return random.Random(_number(name, b"tiny-world item"))


def draft_item(place: Place, choices: Choices, role: str = "item") -> tuple[Draft, ItemDraw]:
    """The first draw for this place whose content belongs to its split, with what was drawn."""
    paired = place.family in PAIRED
    number, side = divmod(place.index, 2) if paired else (place.index, 0)
    for attempt in range(_MAXIMUM_DRAWS):
        rng = _generator(place, number, role, attempt)
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
    """One item with its reference conversation.

    Returns:
        `id`, `prompt` (messages up to the generation point), `reference` (messages after it),
        `tools` (OpenAI schemas or None) and `metadata` (see docs/guides/tiny-world.md).
    """
    choices = choices or Choices()
    draft, draw = draft_item(place, choices)
    prompt = [user(draft.question[1])]
    chained = place.family in CHAINED and not draft.tools
    if chained and _generator(place, place.index, "turns").random() < choices.several_turns:
        without_tools = Choices(choices.difficulties, choices.verbosity, 0.0, 0.0)
        earlier, _ = draft_item(place, without_tools, role="earlier")
        prompt = [user(earlier.question[1]), *earlier.reference, *prompt]
    return {
        "id": place.id,
        "prompt": prompt,
        "reference": list(draft.reference),
        "tools": tool_schemas(draft.tools) if draft.tools else None,
        "metadata": _metadata(place, draft, draw, turns=sum(m["role"] == "user" for m in prompt)),
    }


def _metadata(place: Place, draft: Draft, draw: ItemDraw, *, turns: int) -> dict[str, Any]:
    other = replace(place, index=place.index ^ 1)
    return {
        "family": place.family,
        "task": draft.task,
        "split": place.split,
        "seed": place.seed,
        "index": place.index,
        "difficulty": draw.difficulty,
        "verbosity": draw.verbosity,
        "paraphrase": draft.question[0],
        "twin": other.id if place.family in PAIRED else None,
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
    """The item as an OpenAI-dialect row: the prompt and its reference as one conversation."""
    row = {"id": item["id"], "messages": [*item["prompt"], *item["reference"]]}
    return row | {"tools": item["tools"], "metadata": item["metadata"]}


def heldout_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item as a prompt to be answered: messages up to the generation point, reference apart."""
    row = {"id": item["id"], "messages": item["prompt"], "tools": item["tools"]}
    return row | {"metadata": item["metadata"], "reference": item["reference"]}


def message_of(row: Mapping[str, Any]) -> Message:
    """A message of an item as a record's message."""
    calls = tuple(
        ToolCall(c["function"]["name"], c["function"]["arguments"], c["id"])
        for c in row.get("tool_calls", ())
    )
    return Message(
        role=row["role"],
        content=row["content"],
        reasoning=row.get("reasoning_content"),
        tool_calls=calls,
        tool_call_id=row.get("tool_call_id"),
        name=row.get("name"),
    )
