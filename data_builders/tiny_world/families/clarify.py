"""Ambiguous requests: two things fit, so the first step is a question and not a call.

    "What is the price of the lamp?" with a red and a blue lamp  →  "the red or the blue lamp?"

Side 1 (the twin) names the colour and wants no question. `replies` holds what the user answers to
the question; the item is graded on the question and, after the reply, on the answer. Difficulty is
the number of things that fit, minus 1.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, Transcript, answered, user, worded
from data_builders.tiny_world.vocabulary import COLOURS, THINGS

WORDINGS = (
    "{offer} What is the price of the {a}?",
    "{offer} I want the price of the {a}.",
    "{offer} How much is the {a}?",
)


def make(draw: ItemDraw) -> Draft:
    """One price question about a thing that comes in several colours, all named in the prompt."""
    rng = draw.rng
    thing = rng.choice(THINGS)
    colours = rng.sample(COLOURS, min(draw.difficulty, 4) + 1)
    chosen = rng.choice(colours)
    prices = rng.sample(range(11, 100), len(colours))
    items = [f"{colour} {thing}" for colour in colours]
    offer = f"We have: {', '.join(items)}."
    target = f"{chosen} {thing}"
    question = worded(draw, WORDINGS, offer=offer, a=target if draw.side else thing)
    state = {"price": dict(zip(items, prices, strict=True))}
    script = Transcript(draw, state, tools=["get_price"])
    if not draw.side:
        steps, opening = [f"{' '.join(colours)}: ask"], f"price of {thing}."
        ask = f"the {' or '.join(colours)} {thing}?"
        script.messages += answered(draw, steps, ask, opening=opening, result="ask")
        script.messages.append(user(f"The {chosen} one."))
    opening = f"price of {target}."
    gold = script.call("get_price", {"item": target}, f"get_price {target}", opening=opening)
    script.answer(gold)
    return script.draft(
        key=f"clarify {offer}",
        task="clear" if draw.side else "ambiguous",
        question=question,
        gold=gold,
        grading="number" if draw.side else "question",
        options=() if draw.side else tuple(colours),
        replies=() if draw.side else (f"The {chosen} one.",),
    )
