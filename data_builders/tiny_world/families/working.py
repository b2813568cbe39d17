"""Families that are worked out step by step: sums, lists, tables, days and prescribed steps."""

from __future__ import annotations

import random
from typing import NamedTuple

from data_builders.tiny_world.drafts import (
    IDLE_TOOLS,
    PEOPLE,
    SERVICES,
    THINGS,
    Draft,
    ItemDraw,
    Transcript,
    answer_message,
    draw_idle_tools,
    pick_wording,
    reasoned_draft,
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

# share of the items with tools that declare the calculator: declared tools alone must not tell that
# one is called
CALCULATOR_SHARE = 0.45
OTHER_TOOLS = tuple(name for name in IDLE_TOOLS if name != "calculate")


def _digits(number: int, width: int) -> list[int]:
    """Digits of a number, ones first, padded with zeros to `width`."""
    return [number // 10**exponent % 10 for exponent in range(width)]


def add_steps(a: int, b: int) -> list[str]:
    """Write column addition, ones first."""
    width = max(len(str(a)), len(str(b)))
    carry = 0
    steps: list[str] = []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        total = left + right + carry
        steps.append(f"{left}+{right}{f'+{carry}' if carry else ''}={total}")
        carry = total // 10
    return steps


def subtract_steps(a: int, b: int) -> list[str]:
    """Write column subtraction of b ≤ a, ones first; a borrowed ten shows in the upper digit."""
    width = len(str(a))
    borrow = 0
    steps: list[str] = []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        upper = left + 10 if left - borrow < right else left
        steps.append(f"{upper}{f'-{borrow}' if borrow else ''}-{right}={upper - borrow - right}")
        borrow = int(upper != left)
    return steps


def multiply_steps(a: int, b: int) -> list[str]:
    """Write the multiplication of a by one digit, ones first."""
    carry = 0
    steps: list[str] = []
    for digit in _digits(a, len(str(a))):
        total = digit * b + carry
        steps.append(f"{digit}*{b}={digit * b}{f'+{carry}={total}' if carry else ''}")
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


def _draw_operands(draw: ItemDraw, task: str) -> tuple[int, int]:
    low = 10 ** (draw.difficulty - 1)
    high = 10**draw.difficulty - 1
    a = draw.rng.randint(low, high)
    b = draw.rng.randint(low, high)
    if task == "multiply":
        return a, draw.rng.randint(2, 5)
    if task == "subtract":
        return max(a, b), min(a, b)
    return a, b


def _draw_declared_tools(draw: ItemDraw) -> tuple[str, ...]:
    """Draw two tools, the calculator among them or not; () if none is to be declared."""
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
    a, b = _draw_operands(draw, task)
    result = {"add": a + b, "subtract": a - b, "multiply": a * b}[task]
    sign, write_steps, wordings = MATHS[task]
    question = pick_wording(draw, wordings, a=a, b=b)
    expression = f"{a}{sign}{b}"
    tools = _draw_declared_tools(draw)
    transcript = Transcript(draw, None, tools=tools)
    if "calculate" in tools:
        arguments = {"expression": expression}
        transcript.call("calculate", arguments, expression, opening="calculate.", result=expression)
        transcript.answer(str(result))
    else:
        steps = [expression, *write_steps(a, b)]
        message = answer_message(draw, steps, str(result), opening="from the right.")
        transcript.messages.append(message)
    # the same for both orders: 3 + 5 must not be held out where 5 + 3 is trained
    key = f"{task} {min(a, b)} {max(a, b)}"
    return transcript.draft(key=key, task=task, question=question, gold=str(result))


# lists

Pool = tuple[str, ...]


class ListWork(NamedTuple):
    """A piece of work on a list.

    Attributes:
        items: items of the list.
        argument: word that the question needs beside the list; "" without one.
    """

    items: list[str]
    argument: str
    gold: str
    steps: list[str]


def _number_items(items: list[str]) -> list[str]:
    return [f"{number} {item}" for number, item in enumerate(items, 1)]


def _make_reverse(rng: random.Random, pool: Pool, n: int) -> ListWork:
    items = rng.sample(pool, n)
    steps = [" ".join(_number_items(items)), " ".join(reversed(_number_items(items)))]
    return ListWork(items, "", " ".join(reversed(items)), steps)


def _make_nth(rng: random.Random, pool: Pool, n: int) -> ListWork:
    items = rng.sample(pool, n)
    index = rng.randrange(n)
    steps = _number_items(items)[: index + 1]
    return ListWork(items, ORDINALS[index], items[index], steps)


def _make_count(rng: random.Random, pool: Pool, n: int) -> ListWork:
    target, *distractors = rng.sample(pool, 3)
    # about half of the items are the target: short lists would seldom hold it by chance
    items = [target if rng.random() < 0.5 else rng.choice(distractors) for _ in range(n + 1)]
    count = 0
    counts: list[str] = []
    for item in items:
        count += item == target
        counts.append(f"{item} {count}")
    return ListWork(items, target, str(count), [" ".join(counts)])


def _make_dedupe(rng: random.Random, pool: Pool, n: int) -> ListWork:
    # fewer different items than places, so that at least one repeats
    different_items = rng.sample(pool, max(2, n - 1))
    items = [rng.choice(different_items) for _ in range(n + 1)]
    kept_items: list[str] = []
    decisions: list[str] = []
    for item in items:
        if item in kept_items:
            decisions.append(f"{item} no")
            continue
        decisions.append(f"{item} yes")
        kept_items.append(item)
    return ListWork(items, "", " ".join(kept_items), [" ".join(decisions)])


def _make_sort(rng: random.Random, _: Pool, n: int) -> ListWork:
    items = [str(digit) for digit in rng.sample(range(10), n)]
    unsorted = list(items)
    steps: list[str] = []
    while len(unsorted) > 1:
        least = min(unsorted)
        unsorted.remove(least)
        steps.append(f"{least} left {' '.join(unsorted)}")
    return ListWork(items, "", " ".join(sorted(items)), steps)


def _make_largest(rng: random.Random, _: Pool, n: int) -> ListWork:
    numbers = rng.sample(range(10, 100), n)
    largest = 0
    steps: list[str] = []
    for number in numbers:
        largest = max(largest, number)
        steps.append(f"{number} best {largest}")
    return ListWork([str(number) for number in numbers], "", str(largest), steps)


LISTS = {
    "reverse": (_make_reverse, "Reverse: {x}|Write backwards: {x}|What is {x} in reverse order?"),
    "nth": (_make_nth, "Which is {n}: {x}|Give the {n} of: {x}|In {x} what is {n}?"),
    "count": (_make_count, "How many {n} in: {x}|Count {n} in: {x}|In {x} how often is {n}?"),
    "dedupe": (_make_dedupe, "Drop repeats: {x}|Keep each once: {x}|Without repeats, what is {x}?"),
    "sort": (_make_sort, "Sort: {x}|Put in order: {x}|What is {x} sorted?"),
    "largest": (_make_largest, "Largest of: {x}|Find the largest: {x}|In {x} what is the largest?"),
}


def lists(draw: ItemDraw) -> Draft:
    """String and list work; difficulty is the length minus 2.

        "Reverse: sun cat map"  →  1 sun 2 cat 3 map / 3 map 2 cat 1 sun  →  map cat sun

    Strings are spelled as single letters with spaces between, so that a letter is always one token.
    """
    task = draw.rng.choice(tuple(LISTS))
    pool = draw.rng.choice((WORDS, LETTERS))
    make_work, wordings = LISTS[task]
    work = make_work(draw.rng, pool, draw.difficulty + 2)
    text = " ".join(work.items)
    return reasoned_draft(
        draw,
        work.steps,
        work.gold,
        opening=f"{task} {text}.",
        key=f"{task} {work.argument} {text}",
        task=task,
        question=pick_wording(draw, wordings, n=work.argument, x=text),
    )


# logs

TABLE_WORDINGS = (
    "{table}\nHow many for {requested}?|Sales:\n{table}\nWhat is the sum for {requested}?|"
    "{table}\nAdd up {requested}."
)
LOG_WORDINGS = (
    "{table}\nHow many lines say {requested}?|Log:\n{table}\nCount {requested}.|"
    "{table}\nHow often is there {requested}?"
)
TWO_WORDS_FROM = 3  # difficulty from which a label has two words


class LogWork(NamedTuple):
    """A table or log to count in.

    Attributes:
        label: label that the question asks for.
        lines: lines of the table.
        steps: reasoning, line by line.
        result: sum or count of the lines with the label.
    """

    label: str
    lines: list[str]
    steps: list[str]
    result: int


def _draw_labels(
    draw: ItemDraw, first_words: tuple[str, ...], second_words: tuple[str, ...]
) -> tuple[str, list[str]]:
    """Draw the label asked for, and a label for each line; at least one line has the first."""
    rng = draw.rng
    first_pair = rng.sample(first_words, 2)
    second_pair = rng.sample(second_words, 2)
    pool = first_pair
    if draw.difficulty >= TWO_WORDS_FROM:
        pool = [f"{first} {second}" for first in first_pair for second in second_pair]
    requested = pool[0]
    labels = [requested]
    for _ in range(draw.difficulty + 1):
        # the label asked for stands twice in what is drawn from
        labels.append(rng.choice([requested, *pool]))
    rng.shuffle(labels)
    return requested, labels


def _write_line(index: int, *words: object) -> str:
    """Line of a table or log, after a letter that tells it from the others."""
    return " ".join([LETTERS[index], *map(str, words)])


def _make_table(draw: ItemDraw) -> LogWork:
    requested, labels = _draw_labels(draw, PEOPLE, THINGS)
    counts = [draw.rng.randint(1, 5) for _ in labels]
    total = 0
    lines: list[str] = []
    steps = [requested]
    for index, (label, count) in enumerate(zip(labels, counts, strict=True)):
        lines.append(_write_line(index, label, count))
        if label == requested:
            steps.append(_write_line(index, label, count, f"yes {total}+{count}={total + count}"))
            total += count
        else:
            steps.append(_write_line(index, label, count, f"no {total}"))
    return LogWork(requested, lines, steps, total)


def _make_log(draw: ItemDraw) -> LogWork:
    requested, labels = _draw_labels(draw, SERVICES, LEVELS)
    count = 0
    lines: list[str] = []
    steps = [requested]
    for index, label in enumerate(labels):
        lines.append(_write_line(index, label))
        matches = label == requested
        count += matches
        steps.append(_write_line(index, label, "yes" if matches else "no", count))
    return LogWork(requested, lines, steps, count)


def logs(draw: ItemDraw) -> Draft:
    """Tables and logs to count in, among distractors; difficulty is the number of lines minus 2.

        a ana 4 / b ben 3 / c ana 5 — "How many for ana?"
        →  a ana 4 yes 0+4=4 / b ben 3 no 4 / …  →  9

    From difficulty 3 on two words of a line must fit. Each line begins with a letter: names repeat,
    and a line that is copied is found by what does not.
    """
    is_table = draw.rng.random() < 0.5
    if is_table:
        task = "table"
        work = _make_table(draw)
        wordings = TABLE_WORDINGS
    else:
        task = "log"
        work = _make_log(draw)
        wordings = LOG_WORDINGS
    table = "\n".join(work.lines)
    question = pick_wording(draw, wordings, table=table, requested=work.label)
    return reasoned_draft(
        draw,
        work.steps,
        str(work.result),
        opening="line by line.",
        key=f"{task} {work.label} {table}",
        task=task,
        question=question,
        tools=draw_idle_tools(draw),
    )


# steps

STEPS_WORDINGS = (
    "Start with {x}. {steps} What is the result?|Begin at {x}. {steps} Where do you end?|"
    "x is {x}. {steps} What is x now?"
)
LARGEST_VALUE = 20  # results stay within what a small model can learn by heart


def steps(draw: ItemDraw) -> Draft:
    """Prescribed steps to carry out on a number; difficulty is the number of steps minus 1.

    "Start with 7. Add 5. Take 3. Double."  →  7+5=12 / 12-3=9 / 9*2=18  →  18
    """
    rng = draw.rng
    start = rng.randint(1, 12)
    value = start
    orders: list[str] = []
    worked_steps: list[str] = []
    while len(orders) < draw.difficulty + 1:
        kind = rng.choice(("Add", "Take", "Double"))
        amount = rng.randint(1, 9)
        next_value = {"Add": value + amount, "Take": value - amount, "Double": value * 2}[kind]
        if not 0 <= next_value <= LARGEST_VALUE:
            continue
        orders.append("Double." if kind == "Double" else f"{kind} {amount}.")
        operation = {"Add": f"+{amount}", "Take": f"-{amount}", "Double": "*2"}[kind]
        worked_steps.append(f"{value}{operation}={next_value}")
        value = next_value
    order_text = " ".join(orders)
    question = pick_wording(draw, STEPS_WORDINGS, x=start, steps=order_text)
    return reasoned_draft(
        draw,
        worked_steps,
        str(value),
        opening=f"start {start}.",
        key=f"steps {start} {order_text}",
        task="chain",
        question=question,
        tools=draw_idle_tools(draw),
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
    start = rng.randrange(7)
    start_day = DAYS[start]
    direction = rng.choice(("after", "before"))
    distance = rng.randint(1, 3 * draw.difficulty + (draw.difficulty > 1))
    sign = 1 if direction == "after" else -1
    steps = [f"{DAYS[(start + sign * step) % 7]} {step}" for step in range(1, distance + 1)]
    person = rng.choice(PEOPLE)
    thing = rng.choice(THINGS)
    question = pick_wording(
        draw,
        CALENDAR_WORDINGS,
        n=distance,
        way=direction,
        day=start_day,
        who=person,
        thing=thing,
    )
    return reasoned_draft(
        draw,
        steps,
        DAYS[(start + sign * distance) % 7],
        opening=f"{distance} {direction} {start_day}.",
        key=f"calendar {distance} {direction} {start_day} {person} {thing}",
        task=direction,
        question=question,
    )
