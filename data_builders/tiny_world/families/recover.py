"""Recover and verify: the first call fails, and another tool succeeds with the wrong value.

    get_price(red lamp) → error: busy; get_price(red lamp) → 42; check_price(red lamp, 42) → right

The lure is `cached_price`: it always answers, and its answer is old. The reference tries again and
checks; in a third of the items it first falls for the lure, sees the check fail and recovers.
Difficulty is the number of times the tool is busy.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, Transcript, worded
from data_builders.tiny_world.families.lookups import shop
from data_builders.tiny_world.vocabulary import PEOPLE

WORDINGS = (
    "What is the price of the {a} for {who}? Check it.",
    "Give {who} the checked price of the {a}.",
    "Find and check the price of the {a} for {who}.",
)


def make(draw: ItemDraw) -> Draft:
    """One price behind a busy tool; difficulty 1…3 failures."""
    rng = draw.rng
    state = shop(rng)
    item = rng.choice(sorted(state["price"]))
    price = state["price"][item]
    lure = rng.choice([number for number in range(11, 100) if number != price])
    state["cached_price"] = {item: lure}
    names = ["get_price", "cached_price", "check_price"]
    rng.shuffle(names)
    times = min(draw.difficulty, 3)
    fault = {"tool": "get_price", "kind": "busy", "times": times}
    falls = rng.random() < 1 / 3
    who = rng.choice(PEOPLE)
    question = worded(draw, WORDINGS, a=item, who=who)
    script = Transcript(draw, state, tools=names, fault=fault)
    _carry_out(script, item, falls=falls)
    return script.draft(
        key=f"recover {item} {who}",
        task="lured" if falls else "retry",
        question=question,
        gold=str(price),
        grading="number",
        minimum_calls=times + 2,
    )


def _carry_out(script: Transcript, item: str, *, falls: bool) -> None:
    def call(tool: str, step: str, **more: str) -> str:
        given = {"item": item, **more}
        return script.call(tool, given, step, opening=f"price of {item}.", result=step)

    price = call("get_price", "get_price")
    if falls:
        price = call("cached_price", "busy, cached_price")
        call("check_price", "check_price", price=price)
        price = call("get_price", "wrong, get_price")
    while price.startswith("error"):
        price = call("get_price", "busy, get_price")
    call("check_price", "check_price", price=price)
    script.answer(price, f"{price} is right")
