"""Near-miss and undeclared tool names: what the user names is not, or not quite, what is declared.

    "Use fetch_price on the red lamp." with get_price declared  →  get_price(red lamp) → 42
    the same with no tool for prices declared                  →  no tool

Side 0 declares a tool that does the job under its own name; side 1 (the twin) does not. A call to
a name that is not declared is wrong whatever is answered. Difficulty is the number of other tools
declared, minus 1: 1 declares none beside the tool in question.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, Transcript, answered, worded
from data_builders.tiny_world.families.lookups import FACTS, shop

NEAR = ("fetch_{f}", "get_{f}s", "{f}_of", "read_{f}", "get_{f}_now")
WORDINGS = (
    "Use {tool} on the {a}.",
    "Call {tool} for the {a}.",
    "What does {tool} say of the {a}?",
)


def make(draw: ItemDraw) -> Draft:
    """One request that names a tool which does not exist."""
    rng = draw.rng
    state = shop(rng)
    item = rng.choice(sorted(state["price"]))
    fact = rng.choice(FACTS)
    requested = rng.choice(NEAR).format(f=fact)
    unrelated = [f"get_{name}" for name in FACTS if name != fact]
    others = rng.sample(unrelated, min(draw.difficulty, 4) - 1)
    question = worded(draw, WORDINGS, tool=requested, a=item)
    names = others if draw.side else [*others, f"get_{fact}"]
    rng.shuffle(names)
    script, opening = Transcript(draw, state, tools=names), f"{requested}."
    if draw.side:
        gold = "no tool"
        script.messages += answered(draw, [f"no {requested}"], gold, opening=opening)
    else:
        step = f"no {requested}, get_{fact}"
        gold = script.call(f"get_{fact}", {"item": item}, step, opening=opening)
        script.answer(gold)
    return script.draft(
        key=f"near {requested} {item}",
        task="undeclared" if draw.side else "near_miss",
        question=question,
        gold=gold,
        grading="no_tool" if draw.side else ("number" if gold.isdigit() else "words"),
        answerable=not draw.side,
    )
