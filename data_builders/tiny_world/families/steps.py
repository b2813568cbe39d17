"""Prescribed execution: the steps are given, only the doing is asked.

"Start with 7. Add 5. Take 3. Double."  →  7+5=12 / 12-3=9 / 9*2=18  →  18

Difficulty is the number of steps minus 1.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, answered, idle_tools, worded

WORDINGS = (
    "Start with {x}. {steps} What is the result?",
    "Begin at {x}. {steps} Where do you end?",
    "x is {x}. {steps} What is x now?",
)
LIMIT = 20


def make(draw: ItemDraw) -> Draft:
    """A chain of small additions, subtractions and doublings that stays within 0…20."""
    rng = draw.rng
    start = value = rng.randint(1, 12)
    orders: list[str] = []
    worked: list[str] = []
    while len(orders) < draw.difficulty + 1:
        kind, by = rng.choice(("Add", "Take", "Double")), rng.randint(1, 9)
        after = {"Add": value + by, "Take": value - by, "Double": value * 2}[kind]
        if not 0 <= after <= LIMIT:
            continue
        orders.append("Double." if kind == "Double" else f"{kind} {by}.")
        sign = {"Add": f"+{by}", "Take": f"-{by}", "Double": "*2"}[kind]
        worked.append(f"{value}{sign}={after}")
        value = after
    steps = " ".join(orders)
    return Draft(
        key=f"steps {start} {steps}",
        task="chain",
        question=worded(draw, WORDINGS, x=start, steps=steps),
        reference=answered(draw, worked, str(value), opening=f"start {start}."),
        gold=str(value),
        grading="number",
        tools=idle_tools(draw),
    )
