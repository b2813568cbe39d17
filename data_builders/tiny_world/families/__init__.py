"""Every family of the tiny world by name; adding one changes the tokenizer and every checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from data_builders.tiny_world.drafts import Draft, ItemDraw
from data_builders.tiny_world.families import (
    calendar,
    clarify,
    documents,
    lists,
    logs,
    lookups,
    maths,
    near_miss,
    plans,
    recover,
    safety,
    steps,
    stop,
)

FAMILIES: dict[str, Callable[[ItemDraw], Draft]] = {
    "maths": maths.make,
    "lists": lists.make,
    "logs": logs.make,
    "steps": steps.make,
    "lookups": lookups.make,
    "plans": plans.make,
    "recover": recover.make,
    "stop": stop.make,
    "near_miss": near_miss.make,
    "clarify": clarify.make,
    "safety": safety.make,
    "documents": documents.make,
    "calendar": calendar.make,
}
# items 2k and 2k+1 are the two sides of a pair
PAIRED = frozenset({"stop", "near_miss", "clarify", "safety"})
# single questions that can follow one another in one conversation
CHAINED = frozenset({"maths", "lists", "logs", "steps"})
