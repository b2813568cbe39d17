"""Interpreting a small table or log among distractors; difficulty is the number of lines minus 2.

    ana lamp 4 / ben lamp 3 / ana lamp 5 — "How many lamp for ana?"  →  9

Only some lines count, and the question does not say how to find them (`steps` does say).
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, Draw, assistant, reason, user
from data_builders.tiny_world.vocabulary import LEVELS, PEOPLE, SERVICES, THINGS

TABLE_WORDINGS = (
    "{table}\nHow many {thing} for {name}?",
    "Sales:\n{table}\nWhat did {name} sell of {thing}?",
    "{table}\nAdd up {name} {thing}.",
)
LOG_WORDINGS = (
    "{log}\nHow many {level} of {service}?",
    "Log:\n{log}\nCount {service} {level}.",
    "{log}\nHow often did {service} say {level}?",
)


def _table(draw: Draw) -> Draft:
    rng = draw.rng
    names, things = rng.sample(PEOPLE, 2), rng.sample(THINGS, 2)
    rows = [(names[0], things[0], rng.randint(1, 5))]
    for _ in range(draw.difficulty + 1):
        name = names[0] if rng.random() < 0.7 else names[1]
        thing = things[0] if rng.random() < 0.7 else things[1]
        rows.append((name, thing, rng.randint(1, 5)))
    rng.shuffle(rows)
    table = "\n".join(f"{name} {thing} {count}" for name, thing, count in rows)
    total, steps = 0, [f"{names[0]} {things[0]}"]
    for name, thing, count in rows:
        counts = (name, thing) == (names[0], things[0])
        found = f"yes {total}+{count}={total + count}" if counts else f"no {total}"
        steps.append(f"{name} {thing} {count} {found}")
        total += count if counts else 0
    paraphrase = rng.randrange(len(TABLE_WORDINGS))
    question = TABLE_WORDINGS[paraphrase].format(table=table, name=names[0], thing=things[0])
    worked = reason(draw.verbosity, steps, opening="line by line.", result=str(total))
    return Draft(
        key=f"table {names[0]} {things[0]} {table}",
        task="table",
        paraphrase=paraphrase,
        prompt=(user(question),),
        reference=(assistant(str(total), worked),),
        gold=str(total),
        grading="number",
    )


def _log(draw: Draw) -> Draft:
    rng = draw.rng
    service, other = rng.sample(SERVICES, 2)
    level = rng.choice(LEVELS)
    rows = []
    for _ in range(draw.difficulty + 2):
        says = level if rng.random() < 0.6 else rng.choice(LEVELS)
        rows.append((service if rng.random() < 0.7 else other, says))
    log = "\n".join(f"{who} {says}" for who, says in rows)
    seen, steps = 0, [f"{service} {level}"]
    for who, says in rows:
        counts = (who, says) == (service, level)
        seen += counts
        steps.append(f"{who} {says} {'yes' if counts else 'no'} {seen}")
    paraphrase = rng.randrange(len(LOG_WORDINGS))
    question = LOG_WORDINGS[paraphrase].format(log=log, service=service, level=level)
    worked = reason(draw.verbosity, steps, opening="line by line.", result=str(seen))
    return Draft(
        key=f"log {service} {level} {log}",
        task="log",
        paraphrase=paraphrase,
        prompt=(user(question),),
        reference=(assistant(str(seen), worked),),
        gold=str(seen),
        grading="number",
    )


def make(draw: Draw) -> Draft:
    """A table to add up, or a log to count in."""
    return _table(draw) if draw.rng.random() < 0.5 else _log(draw)
