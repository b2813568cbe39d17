"""Days of the week: count forward or back from a day; difficulty 1 is up to 3 days, then 7, 10 …

"What day is 2 days after Friday?"  →  Saturday 1 / Sunday 2  →  Sunday
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, answered, worded
from data_builders.tiny_world.vocabulary import DAYS, PEOPLE, THINGS

WORDINGS = (
    "{who} gets the {thing} {n} days {way} {day}. Which day?",
    "What day is {n} days {way} {day}, when {who} gets the {thing}?",
    "{n} days {way} {day} {who} gets the {thing}. Name the day.",
)


def make(draw: ItemDraw) -> Draft:
    """One step a day, counted aloud."""
    rng = draw.rng
    start, way = rng.randrange(7), rng.choice(("after", "before"))
    n = rng.randint(1, 3 * draw.difficulty + (draw.difficulty > 1))
    sign = 1 if way == "after" else -1
    steps = [f"{DAYS[(start + sign * step) % 7]} {step}" for step in range(1, n + 1)]
    gold = DAYS[(start + sign * n) % 7]
    who, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    return Draft(
        key=f"calendar {n} {way} {DAYS[start]} {who} {thing}",
        task=way,
        question=worded(draw, WORDINGS, n=n, way=way, day=DAYS[start], who=who, thing=thing),
        reference=answered(draw, steps, gold, opening=f"{n} {way} {DAYS[start]}."),
        gold=gold,
        grading="words",
    )
