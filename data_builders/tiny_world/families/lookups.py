"""Look-ups through tools; difficulty 1 asks for one fact, 2 compares two, 3 adds two up.

    "What is the price of the red lamp?"  →  get_price(red lamp) → 42  →  42

Without tools nobody can know: the right answer is then "unknown", and a call is an error.
"""

from __future__ import annotations

import random
from typing import Any

from data_builders.tiny_world.drafts import Draft, ItemDraw, Transcript, answered, worded
from data_builders.tiny_world.families.maths import add_steps
from data_builders.tiny_world.vocabulary import CITIES, COLOURS, PEOPLE, THINGS

FACTS = ("price", "stock", "owner", "city")
WORDINGS = {
    "one": ("What is the {f} of the {a}?", "Tell me the {f} of the {a}.", "{f} of {a}?"),
    "compare": (
        "Which has more {f}, the {a} or the {b}?",
        "More {f}: {a} or {b}?",
        "Is the {f} of the {a} or the {b} higher?",
    ),
    "total": (
        "What is the {f} of the {a} and the {b} together?",
        "Total {f} of {a} and {b}?",
        "Add the {f} of the {a} and the {b}.",
    ),
}
TASKS = {1: "one", 2: "compare", 3: "total"}


def shop(rng: random.Random, size: int = 4) -> dict[str, Any]:
    """A small shop: every fact about `size` things; no two prices and no two stocks are equal."""
    things = [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, size)]
    prices, stocks = rng.sample(range(11, 100), size), rng.sample(range(11, 100), size)
    return {
        "price": dict(zip(things, prices, strict=True)),
        "stock": dict(zip(things, stocks, strict=True)),
        "owner": {thing: rng.choice(PEOPLE) for thing in things},
        "city": {thing: rng.choice(CITIES) for thing in things},
    }


def _conclude(task: str, a: str, b: str, results: list[str]) -> tuple[str, list[str]]:
    if task == "one":
        return results[0], [results[0]]
    left, right = int(results[0]), int(results[1])
    if task == "compare":
        winner = a if left > right else b
        return winner, [f"{a} {left} {b} {right}", f"{max(left, right)} is {winner}"]
    return str(left + right), [f"{left}+{right}", *add_steps(left, right)]


def make(draw: ItemDraw) -> Draft:
    """One question about the shop, answered by calls where tools are declared."""
    rng = draw.rng
    task = TASKS[min(draw.difficulty, 3)]
    state = shop(rng)
    fact = rng.choice(FACTS if task == "one" else FACTS[:2])
    a, b = rng.sample(sorted(state["price"]), 2)
    requested = [a] if task == "one" else [a, b]
    other = rng.choice([name for name in FACTS if name != fact])
    names = [f"get_{fact}", f"get_{other}"]
    rng.shuffle(names)
    key = f"lookup {fact} {' '.join(requested)}"
    question = worded(draw, WORDINGS[task], f=fact, a=a, b=b)
    if not draw.with_tools:
        return Draft(
            key=key,
            task=task,
            question=question,
            reference=answered(draw, [f"no tool for {fact}"], "unknown", opening=f"{fact} of {a}."),
            gold="unknown",
            grading="unknown",
            answerable=False,
        )
    script, tool = Transcript(draw, state, tools=names), f"get_{fact}"
    results = [
        script.call(tool, {"item": thing}, f"{tool} {thing}", opening=f"{fact} of {thing}.")
        for thing in requested
    ]
    gold, steps = _conclude(task, a, b, results)
    script.answer(gold, "\n".join(steps))
    numeric = task == "total" or (task == "one" and fact in FACTS[:2])
    grading = "number" if numeric else "words"
    return script.draft(key=key, task=task, question=question, gold=gold, grading=grading)
