"""Short multi-document retrieval: several notes, one question, one or two of the notes needed.

    [1] ana keeps the red lamp in oslo. [2] ben … — "Where is the red lamp of ana?"  →  oslo

Difficulty is the number of documents minus 2; from difficulty 3 on, half of the questions need two
documents ("Where does the boss of ana live?").
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, answered, worded
from data_builders.tiny_world.vocabulary import CITIES, COLOURS, PEOPLE, THINGS

WORDINGS = {
    "one": (
        "Where is the {x} of {a}?",
        "In which city is the {x} of {a}?",
        "City of the {x} of {a}?",
    ),
    "two": (
        "Where is the {x} of the boss of {a}?",
        "In which city is the {x} of the boss of {a}?",
        "City of the {x} of the boss of {a}?",
    ),
}


def make(draw: ItemDraw) -> Draft:
    """A few notes about who keeps what where; the same thing belongs to several people."""
    rng = draw.rng
    size = draw.difficulty + 2
    task = "two" if draw.difficulty >= 3 and rng.random() < 0.5 else "one"
    names = rng.sample(PEOPLE, size)
    thing = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
    cities = [rng.choice(CITIES) for _ in names]
    bosses = [names[(place + 1) % size] for place in range(size)]
    notes = [
        f"[{place}] {name} works for {boss}. {name} keeps the {thing} in {city}."
        for place, (name, boss, city) in enumerate(zip(names, bosses, cities, strict=True), 1)
    ]
    requested = rng.randrange(size)
    holder = (requested + 1) % size if task == "two" else requested
    gold = cities[holder]
    steps = [f"[{requested + 1}] boss {bosses[requested]}"] if task == "two" else []
    steps.append(f"[{holder + 1}] {names[holder]} {thing} {gold}")
    text = "\n".join(notes)
    paraphrase, question = worded(draw, WORDINGS[task], x=thing, a=names[requested])
    return Draft(
        key=f"documents {task} {requested} {text}",
        task=task,
        question=(paraphrase, f"{text}\n{question}"),
        reference=answered(draw, steps, gold, opening=f"{thing} of {names[requested]}."),
        gold=gold,
        grading="words",
    )
