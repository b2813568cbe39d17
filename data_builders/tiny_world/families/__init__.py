"""Families of the tiny world by name; a new one changes the tokenizer and every checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from data_builders.tiny_world.drafts import Draft, ItemDraw
from data_builders.tiny_world.families import calling, careful, working

FAMILIES: dict[str, Callable[[ItemDraw], Draft]] = {
    "maths": working.arithmetic,
    "lists": working.lists,
    "logs": working.logs,
    "steps": working.steps,
    "lookups": calling.lookups,
    "plans": calling.plans,
    "recover": calling.recover,
    "stop": careful.stop,
    "near_miss": careful.near_miss,
    "clarify": careful.clarify,
    "safety": careful.safety,
    "documents": careful.documents,
    "calendar": working.calendar,
}
# items 2k and 2k+1 are the two sides of a pair
PAIRED = frozenset({"stop", "near_miss", "clarify", "safety"})
# single questions that can follow one another in one conversation
CHAINED = frozenset({"maths", "lists", "logs", "steps"})
