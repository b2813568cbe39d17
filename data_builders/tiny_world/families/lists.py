"""String and list work: reverse, nth, count, dedupe, sort, largest; difficulty is length minus 2.

    "Reverse: sun cat map"  →  1 sun 2 cat 3 map / 3 map 2 cat 1 sun  →  map cat sun

Strings are spelled as single letters with spaces between, so that a letter is always one token.
"""

from __future__ import annotations

import random

from data_builders.tiny_world.drafts import Draft, Grading, ItemDraw, answered, worded
from data_builders.tiny_world.vocabulary import LETTERS, ORDINALS, WORDS

WORDINGS = {
    "reverse": ("Reverse: {x}", "Write backwards: {x}", "What is {x} in reverse order?"),
    "nth": ("Which is {n}: {x}", "Give the {n} of: {x}", "In {x} what is {n}?"),
    "count": ("How many {n} in: {x}", "Count {n} in: {x}", "In {x} how often is {n}?"),
    "dedupe": ("Drop repeats: {x}", "Keep each once: {x}", "Without repeats, what is {x}?"),
    "sort": ("Sort: {x}", "Put in order: {x}", "What is {x} sorted?"),
    "largest": ("Largest of: {x}", "Find the largest: {x}", "In {x} what is the largest?"),
}
TASKS = tuple(WORDINGS)
Pool = tuple[str, ...]
Made = tuple[list[str], str, str, list[str]]  # items, argument of the question, gold, steps


def _numbered(items: list[str]) -> list[str]:
    return [f"{place} {item}" for place, item in enumerate(items, 1)]


def _reverse(rng: random.Random, pool: Pool, n: int) -> Made:
    items = rng.sample(pool, n)
    steps = [" ".join(_numbered(items)), " ".join(reversed(_numbered(items)))]
    return items, "", " ".join(reversed(items)), steps


def _nth(rng: random.Random, pool: Pool, n: int) -> Made:
    items = rng.sample(pool, n)
    place = rng.randrange(n)
    return items, ORDINALS[place], items[place], _numbered(items)[: place + 1]


def _count(rng: random.Random, pool: Pool, n: int) -> Made:
    target, *others = rng.sample(pool, 3)
    items = [target if rng.random() < 0.5 else rng.choice(others) for _ in range(n + 1)]
    seen, steps = 0, []
    for item in items:
        seen += item == target
        steps.append(f"{item} {seen}")
    return items, target, str(seen), [" ".join(steps)]


def _dedupe(rng: random.Random, pool: Pool, n: int) -> Made:
    some = rng.sample(pool, max(2, n - 1))
    items = [rng.choice(some) for _ in range(n + 1)]
    kept: list[str] = []
    steps = []
    for item in items:
        steps.append(f"{item} {'no' if item in kept else 'yes'}")
        kept += [] if item in kept else [item]
    return items, "", " ".join(kept), [" ".join(steps)]


def _sort(rng: random.Random, _: Pool, n: int) -> Made:
    items = [str(digit) for digit in rng.sample(range(10), n)]
    left, steps = list(items), []
    while len(left) > 1:
        least = min(left)
        left.remove(least)
        steps.append(f"{least} left {' '.join(left)}")
    return items, "", " ".join(sorted(items)), steps


def _largest(rng: random.Random, _: Pool, n: int) -> Made:
    numbers = rng.sample(range(10, 100), n)
    best, steps = 0, []
    for number in numbers:
        best = max(best, number)
        steps.append(f"{number} best {best}")
    return [str(number) for number in numbers], "", str(best), steps


MAKERS = {
    "reverse": _reverse,
    "nth": _nth,
    "count": _count,
    "dedupe": _dedupe,
    "sort": _sort,
    "largest": _largest,
}


def make(draw: ItemDraw) -> Draft:
    """One list of words, letters or numbers and one question about it."""
    task = draw.rng.choice(TASKS)
    pool = draw.rng.choice((WORDS, LETTERS))
    items, argument, gold, steps = MAKERS[task](draw.rng, pool, draw.difficulty + 2)
    text = " ".join(items)
    grading: Grading = "number" if task in ("count", "largest") else "words"
    return Draft(
        key=f"{task} {argument} {text}",
        task=task,
        question=worded(draw, WORDINGS[task], n=argument, x=text),
        reference=answered(draw, steps, gold, opening=f"{task} {text}."),
        gold=gold,
        grading=grading,
    )
