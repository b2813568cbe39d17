"""Families that are worked out step by step: sums, lists, tables, days and prescribed steps."""

from __future__ import annotations

import random

from data_builders.tiny_world.drafts import (
    IDLE_TOOLS,
    PEOPLE,
    SERVICES,
    THINGS,
    Draft,
    ItemDraw,
    Transcript,
    answered,
    idle_tools,
    worded,
    worked_out,
)

WORDS = (
    "sun", "cat", "map", "tree", "fish", "ring", "bell", "coat",
    "door", "milk", "road", "star", "leaf", "salt", "wolf", "nest",
)  # fmt: skip
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
LEVELS = ("ok", "warn", "error")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

# maths

# of the items with tools: so that tools are declared does not tell that one is called
CALCULATOR_SHARE = 0.45
OTHER_TOOLS = tuple(name for name in IDLE_TOOLS if name != "calculate")


def _digits(number: int, width: int) -> list[int]:
    return [number // 10**place % 10 for place in range(width)]


def add_steps(a: int, b: int) -> list[str]:
    """Column addition, ones first."""
    width, carry, steps = max(len(str(a)), len(str(b))), 0, []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        total = left + right + carry
        steps.append(f"{left}+{right}{f'+{carry}' if carry else ''}={total}")
        carry = total // 10
    return steps


def subtract_steps(a: int, b: int) -> list[str]:
    """Column subtraction of b ≤ a, ones first; a borrowed ten shows in the upper number."""
    width, borrow, steps = len(str(a)), 0, []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        upper = left + 10 if left - borrow < right else left
        steps.append(f"{upper}{f'-{borrow}' if borrow else ''}-{right}={upper - borrow - right}")
        borrow = int(upper != left)
    return steps


def multiply_steps(a: int, b: int) -> list[str]:
    """Multiplication of a by one digit, ones first."""
    carry, steps = 0, []
    for left in _digits(a, len(str(a))):
        total = left * b + carry
        steps.append(f"{left}*{b}={left * b}{f'+{carry}={total}' if carry else ''}")
        carry = total // 10
    return steps


MATHS = {
    "add": ("+", add_steps, "What is {a} + {b}?|Add {a} and {b}.|{a} + {b} = ?|Find {a} plus {b}."),
    "subtract": (
        "-",
        subtract_steps,
        "What is {a} - {b}?|Subtract {b} from {a}.|{a} - {b} = ?|Find {a} minus {b}.",
    ),
    "multiply": (
        "*",
        multiply_steps,
        "What is {a} * {b}?|Multiply {a} by {b}.|{a} * {b} = ?|Find {a} times {b}.",
    ),
}


def _operands(draw: ItemDraw, task: str) -> tuple[int, int]:
    low, high = 10 ** (draw.difficulty - 1), 10**draw.difficulty - 1
    a, b = draw.rng.randint(low, high), draw.rng.randint(low, high)
    if task == "multiply":
        return a, draw.rng.randint(2, 5)
    return (max(a, b), min(a, b)) if task == "subtract" else (a, b)


def _declared(draw: ItemDraw) -> tuple[str, ...]:
    """Two tools, the calculator among them or not; () where none is to be declared."""
    if not draw.with_tools:
        return ()
    if draw.rng.random() >= CALCULATOR_SHARE:
        return tuple(draw.rng.sample(OTHER_TOOLS, 2))
    names = ["calculate", draw.rng.choice(OTHER_TOOLS)]
    draw.rng.shuffle(names)
    return tuple(names)


def arithmetic(draw: ItemDraw) -> Draft:
    """Maths with carries: add, subtract, multiply by 2…5; difficulty is the number of digits.

        "What is 345 + 278?"  →  345+278 / 5+8=13 / 4+7+1=12 / 3+2+1=6  →  623

    One place a line, so that each step is a fact about single digits and the answer is read off the
    lines. A calculator, where declared, is called instead; other tools are of no use.
    """
    task = draw.rng.choice(("add", "add", "subtract", "multiply"))
    a, b = _operands(draw, task)
    result = {"add": a + b, "subtract": a - b, "multiply": a * b}[task]
    sign, by_hand, wordings = MATHS[task]
    question = worded(draw, wordings, a=a, b=b)
    expression = f"{a}{sign}{b}"
    tools = _declared(draw)
    script = Transcript(draw, None, tools=tools)
    if "calculate" in tools:
        arguments = {"expression": expression}
        script.call("calculate", arguments, expression, opening="calculate.", result=expression)
        script.answer(str(result))
    else:
        steps = [expression, *by_hand(a, b)]
        script.messages.append(answered(draw, steps, str(result), opening="from the right."))
    key = f"{task} {min(a, b)} {max(a, b)}"
    return script.draft(key=key, task=task, question=question, gold=str(result))


# lists

Pool = tuple[str, ...]
Made = tuple[list[str], str, str, list[str]]  # items, argument of the question, gold, steps


def _numbered(items: list[str]) -> list[str]:
    return [f"{place} {item}" for place, item in enumerate(items, 1)]


def _reverse(rng: random.Random, pool: Pool, n: int) -> Made:
    items = rng.sample(pool, n)
    steps = [" ".join(_numbered(items)), " ".join(reversed(_numbered(items)))]
    return items, "", " ".join(reversed(items)), steps


def _nth(rng: random.Random, pool: Pool, n: int) -> Made:
    items = rng.sample(pool, n)
    place = rng.randrange(n)
    return items, ORDINALS[place], items[place], _numbered(items)[: place + 1]


def _count(rng: random.Random, pool: Pool, n: int) -> Made:
    target, *others = rng.sample(pool, 3)
    items = [target if rng.random() < 0.5 else rng.choice(others) for _ in range(n + 1)]
    seen, steps = 0, []
    for item in items:
        seen += item == target
        steps.append(f"{item} {seen}")
    return items, target, str(seen), [" ".join(steps)]


def _dedupe(rng: random.Random, pool: Pool, n: int) -> Made:
    some = rng.sample(pool, max(2, n - 1))
    items = [rng.choice(some) for _ in range(n + 1)]
    kept: list[str] = []
    steps = []
    for item in items:
        steps.append(f"{item} {'no' if item in kept else 'yes'}")
        kept += [] if item in kept else [item]
    return items, "", " ".join(kept), [" ".join(steps)]


def _sort(rng: random.Random, _: Pool, n: int) -> Made:
    items = [str(digit) for digit in rng.sample(range(10), n)]
    left, steps = list(items), []
    while len(left) > 1:
        least = min(left)
        left.remove(least)
        steps.append(f"{least} left {' '.join(left)}")
    return items, "", " ".join(sorted(items)), steps


def _largest(rng: random.Random, _: Pool, n: int) -> Made:
    numbers = rng.sample(range(10, 100), n)
    best, steps = 0, []
    for number in numbers:
        best = max(best, number)
        steps.append(f"{number} best {best}")
    return [str(number) for number in numbers], "", str(best), steps


LISTS = {
    "reverse": (_reverse, "Reverse: {x}|Write backwards: {x}|What is {x} in reverse order?"),
    "nth": (_nth, "Which is {n}: {x}|Give the {n} of: {x}|In {x} what is {n}?"),
    "count": (_count, "How many {n} in: {x}|Count {n} in: {x}|In {x} how often is {n}?"),
    "dedupe": (_dedupe, "Drop repeats: {x}|Keep each once: {x}|Without repeats, what is {x}?"),
    "sort": (_sort, "Sort: {x}|Put in order: {x}|What is {x} sorted?"),
    "largest": (_largest, "Largest of: {x}|Find the largest: {x}|In {x} what is the largest?"),
}


def lists(draw: ItemDraw) -> Draft:
    """String and list work; difficulty is the length minus 2.

        "Reverse: sun cat map"  →  1 sun 2 cat 3 map / 3 map 2 cat 1 sun  →  map cat sun

    Strings are spelled as single letters with spaces between, so that a letter is always one token.
    """
    task = draw.rng.choice(tuple(LISTS))
    pool = draw.rng.choice((WORDS, LETTERS))
    make, wordings = LISTS[task]
    items, argument, gold, steps = make(draw.rng, pool, draw.difficulty + 2)
    text = " ".join(items)
    key, opening = f"{task} {argument} {text}", f"{task} {text}."
    question = worded(draw, wordings, n=argument, x=text)
    return worked_out(draw, steps, gold, opening=opening, key=key, task=task, question=question)


# logs

TABLE_WORDINGS = (
    "{table}\nHow many for {requested}?|Sales:\n{table}\nWhat is the sum for {requested}?|"
    "{table}\nAdd up {requested}."
)
LOG_WORDINGS = (
    "{table}\nHow many lines say {requested}?|Log:\n{table}\nCount {requested}.|"
    "{table}\nHow often is there {requested}?"
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


def logs(draw: ItemDraw) -> Draft:
    """Interpreting a table or log among distractors; difficulty is the number of lines minus 2.

        a ana 4 / b ben 3 / c ana 5 — "How many for ana?"
        →  a ana 4 yes 0+4=4 / b ben 3 no 4 / …  →  9

    From difficulty 3 on two words of a line must fit. Each line begins with a letter: names repeat,
    and a line that is copied is found by what does not.
    """
    is_table = draw.rng.random() < 0.5
    requested, lines, steps, result = _table(draw) if is_table else _log(draw)
    wordings = TABLE_WORDINGS if is_table else LOG_WORDINGS
    table = "\n".join(lines)
    task = "table" if is_table else "log"
    key, opening = f"{task} {requested} {table}", "line by line."
    about = {"task": task, "question": worded(draw, wordings, table=table, requested=requested)}
    return worked_out(
        draw, steps, str(result), opening=opening, key=key, tools=idle_tools(draw), **about
    )


# steps

STEPS_WORDINGS = (
    "Start with {x}. {steps} What is the result?|Begin at {x}. {steps} Where do you end?|"
    "x is {x}. {steps} What is x now?"
)
LARGEST_STEP = 20


def steps(draw: ItemDraw) -> Draft:
    """Prescribed execution; difficulty is the number of steps minus 1.

    "Start with 7. Add 5. Take 3. Double."  →  7+5=12 / 12-3=9 / 9*2=18  →  18
    """
    rng = draw.rng
    start = value = rng.randint(1, 12)
    orders: list[str] = []
    worked: list[str] = []
    while len(orders) < draw.difficulty + 1:
        kind, by = rng.choice(("Add", "Take", "Double")), rng.randint(1, 9)
        after = {"Add": value + by, "Take": value - by, "Double": value * 2}[kind]
        if not 0 <= after <= LARGEST_STEP:
            continue
        orders.append("Double." if kind == "Double" else f"{kind} {by}.")
        sign = {"Add": f"+{by}", "Take": f"-{by}", "Double": "*2"}[kind]
        worked.append(f"{value}{sign}={after}")
        value = after
    steps = " ".join(orders)
    key, opening = f"steps {start} {steps}", f"start {start}."
    about = {"task": "chain", "question": worded(draw, STEPS_WORDINGS, x=start, steps=steps)}
    return worked_out(
        draw, worked, str(value), opening=opening, key=key, tools=idle_tools(draw), **about
    )


# calendar

CALENDAR_WORDINGS = (
    "{who} gets the {thing} {n} days {way} {day}. Which day?|"
    "What day is {n} days {way} {day}, when {who} gets the {thing}?|"
    "{n} days {way} {day} {who} gets the {thing}. Name the day."
)


def calendar(draw: ItemDraw) -> Draft:
    """Days of the week: difficulty 1 counts up to 3 days forward or back, then 7, 10, …

    "What day is 2 days after Friday?"  →  Saturday 1 / Sunday 2  →  Sunday
    """
    rng = draw.rng
    start, way = rng.randrange(7), rng.choice(("after", "before"))
    n = rng.randint(1, 3 * draw.difficulty + (draw.difficulty > 1))
    sign = 1 if way == "after" else -1
    steps = [f"{DAYS[(start + sign * step) % 7]} {step}" for step in range(1, n + 1)]
    who, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    words = {"n": n, "way": way, "day": DAYS[start], "who": who, "thing": thing}
    question = worded(draw, CALENDAR_WORDINGS, **words)
    gold, opening = DAYS[(start + sign * n) % 7], f"{n} {way} {DAYS[start]}."
    key = f"calendar {n} {way} {DAYS[start]} {who} {thing}"
    return worked_out(draw, steps, gold, opening=opening, key=key, task=way, question=question)
