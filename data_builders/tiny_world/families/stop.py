"""Know when to stop: twins that differ in one word, one answerable and one not.

    "ana has 4 cup. ben has 5 cup. How many cup in all?"        →  9
    "ana has 4 cup. ben has some cup. How many cup in all?"     →  unknown

A number where none follows and "unknown" where one does are both wrong, and are told apart.
Difficulty is the number of people minus 1.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, answered, worded
from data_builders.tiny_world.vocabulary import PEOPLE, THINGS

WORDINGS = (
    "{facts} How many {thing} in all?",
    "{facts} Count the {thing} of all.",
    "{facts} What is the total of {thing}?",
)


def make(draw: ItemDraw) -> Draft:
    """Side 0 can be answered; in side 1 one amount is missing."""
    rng = draw.rng
    names = rng.sample(PEOPLE, draw.difficulty + 1)
    thing = rng.choice(THINGS)
    amounts = [rng.randint(1, 5) for _ in names]
    missing = rng.randrange(len(names))
    known = [None if draw.side and k == missing else n for k, n in enumerate(amounts)]
    facts = " ".join(
        f"{name} has {'some' if amount is None else amount} {thing}."
        for name, amount in zip(names, known, strict=True)
    )
    total, steps = 0, []
    for name, amount in zip(names, known, strict=True):
        if amount is None:
            steps.append(f"{name} some: unknown")
            break
        steps.append(f"{name} {amount}: {total}+{amount}={total + amount}")
        total += amount
    gold = "unknown" if draw.side else str(total)
    return Draft(
        # the amounts stay out of the key: a twin without its missing one fits several sets of them
        key=f"stop {thing} {' '.join(names)}",
        task="total",
        question=worded(draw, WORDINGS, facts=facts, thing=thing),
        reference=answered(draw, steps, gold, opening=f"{thing}."),
        gold=gold,
        grading="unknown" if draw.side else "number",
        answerable=not draw.side,
    )
