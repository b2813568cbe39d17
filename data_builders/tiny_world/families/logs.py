"""Interpreting a small table or log among distractors; difficulty is the number of lines minus 2.

    a ana 4 / b ben 3 / c ana 5 — "How many for ana?"  →  a ana 4 yes 0+4=4 / b ben 3 no 4 / …  →  9

Only some lines count, and the question does not say how to find them (`steps` does say). Up to
difficulty 2 one word decides whether a line counts; from 3 on two words must fit. Each line
begins with a letter: names repeat, and a line that is copied is found by what does not.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import Draft, ItemDraw, answered, idle_tools, worded
from data_builders.tiny_world.vocabulary import LETTERS, LEVELS, PEOPLE, SERVICES, THINGS

TABLE_WORDINGS = (
    "{table}\nHow many for {requested}?",
    "Sales:\n{table}\nWhat is the sum for {requested}?",
    "{table}\nAdd up {requested}.",
)
LOG_WORDINGS = (
    "{table}\nHow many lines say {requested}?",
    "Log:\n{table}\nCount {requested}.",
    "{table}\nHow often is there {requested}?",
)
TWO_WORDS_FROM = 3


def _labels(
    draw: ItemDraw, first: tuple[str, ...], second: tuple[str, ...]
) -> tuple[str, list[str]]:
    """The label asked for, and one label a line: about half are the one asked for, never none."""
    rng = draw.rng
    a, b = rng.sample(first, 2), rng.sample(second, 2)
    two = draw.difficulty >= TWO_WORDS_FROM
    pool = [f"{x} {y}" for x in a for y in b] if two else a
    others = [rng.choice([pool[0], *pool]) for _ in range(draw.difficulty + 1)]
    labels = [pool[0], *others]
    rng.shuffle(labels)
    return pool[0], labels


def _line(place: int, *words: object) -> str:
    return " ".join([LETTERS[place], *map(str, words)])


def _table(draw: ItemDraw) -> tuple[str, list[str], list[str], int]:
    requested, labels = _labels(draw, PEOPLE, THINGS)
    rows = [(label, draw.rng.randint(1, 5)) for label in labels]
    total, steps = 0, [requested]
    for place, (label, count) in enumerate(rows):
        counts = label == requested
        found = f"yes {total}+{count}={total + count}" if counts else f"no {total}"
        steps.append(_line(place, label, count, found))
        total += count if counts else 0
    return requested, [_line(place, *row) for place, row in enumerate(rows)], steps, total


def _log(draw: ItemDraw) -> tuple[str, list[str], list[str], int]:
    requested, labels = _labels(draw, SERVICES, LEVELS)
    seen, steps = 0, [requested]
    for place, label in enumerate(labels):
        seen += label == requested
        steps.append(_line(place, label, "yes" if label == requested else "no", seen))
    return requested, [_line(place, label) for place, label in enumerate(labels)], steps, seen


def make(draw: ItemDraw) -> Draft:
    """A table to add up, or a log to count in."""
    is_table = draw.rng.random() < 0.5
    requested, lines, steps, result = _table(draw) if is_table else _log(draw)
    wordings = TABLE_WORDINGS if is_table else LOG_WORDINGS
    table = "\n".join(lines)
    task = "table" if is_table else "log"
    return Draft(
        key=f"{task} {requested} {table}",
        task=task,
        question=worded(draw, wordings, table=table, requested=requested),
        reference=answered(draw, steps, str(result), opening="line by line."),
        gold=str(result),
        grading="number",
        tools=idle_tools(draw),
    )
