"""Honest step-by-step texts for the repetition filter: the same sentence with other content.

step_by_step("seen", "accumulation")  → ["Let us go through this.\nStep 1: …", …]

A kind of step-by-step text is a function below, which yields what changes from step to step, and
its sentences in `repetition_forms.txt`. Thresholds were chosen on what is named "seen" alone;
"unseen" and "last" are for measuring.
"""

# ruff: noqa: B007 - `locals()` reads them
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Rng = random.Random
Steps = Iterator[dict[str, Any] | str]
NAMES = (
    "Ada", "Bo", "Chen", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Karl", "Lena",
    "Milo", "Nia", "Otto", "Pia", "Quin", "Rosa", "Sven", "Tara", "Uma", "Vito", "Wren", "Yuri",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def accumulation(rng: Rng) -> Steps:
    new, step = 0, rng.choice([None, 1, 5])
    for k in range(1, rng.randint(40, 90)):
        x, old = step or rng.randint(1, 99), new
        new += x
        yield locals()


def simulation_rounds(rng: Rng) -> Steps:
    a, b = rng.sample(NAMES, 2)
    s = t = 0
    for k in range(1, rng.randint(40, 80)):
        x, y = rng.sample(range(1, 7), 2)
        w, s, t = (a, s + 1, t) if x > y else (b, s, t + 1)
        yield locals()


def patient_records(rng: Rng) -> Steps:
    for k in range(1, rng.randint(30, 60)):
        name, age, t = rng.choice(NAMES), rng.randint(18, 90), rng.randint(360, 402) / 10
        p, cough = rng.randint(55, 120), rng.choice(["mild", "severe", "dry", "chronic"])
        yield locals()


def binary_search(rng: Rng) -> Steps:
    for _ in range(rng.randint(5, 9)):
        wanted, low, high, k = rng.randrange(1024), 0, 1023, 1
        yield f"Search for {wanted}:"
        while low < high:
            mid = (low + high) // 2
            side, way = ("greater", "up") if wanted > mid else ("at most that", "down")
            yield locals()
            low, high, k = (mid + 1, high, k + 1) if wanted > mid else (low, mid, k + 1)


def passed_coin(rng: Rng) -> Steps:
    players = rng.sample(NAMES, rng.choice([1, 2, 2, 3]) + 1)
    for k in range(1, rng.randint(50, 120)):
        a, b = players[k % len(players)], players[(k + 1) % len(players)]
        yield locals()


def sieve(rng: Rng) -> Steps:
    only = rng.random() < 0.4  # list the primes alone
    for k in range(2, rng.randint(150, 400) if only else rng.randint(60, 150)):
        divisor = next((d for d in range(2, k) if k % d == 0), None)
        what = "not prime" if divisor else "prime"
        why = f"{divisor} divides it" if divisor else "nothing smaller divides it"
        if not (divisor and only):
            yield locals()


def weekdays(rng: Rng) -> Steps:
    start, seven = rng.randrange(7), rng.random() < 0.4  # every seventh day: one name
    first, last = DAYS[start], rng.randint(60, 140)
    for k in range(7, 7 * last, 7) if seven else range(1, last):
        day = DAYS[(start + k) % 7]
        what = "is closed" if day in DAYS[5:] else "is open"
        yield locals()


def brackets(rng: Rng) -> Steps:
    depth, flat = 0, rng.random() < 0.3
    for k in range(1, rng.randint(60, 120)):
        opens = depth == 0 or (rng.random() < 0.5 and depth < 9 and not flat)
        depth += 1 if opens else -1
        what, way, c = ("opens", "up", "(") if opens else ("closes", "down", ")")
        yield locals()


def unit_tests(rng: Rng) -> Steps:
    kinds = "empty negative large unicode nested sorted random single missing cyclic".split()  # noqa: SIM905  a list reads worse
    calls = "add sort parse merge split find insert delete render".split()  # noqa: SIM905
    tests = [(a, b) for a in kinds for b in calls]
    rng.shuffle(tests)
    for k, (a, b) in enumerate(tests[: rng.randint(40, 90)], 1):
        x, y = rng.randint(1, 99), rng.randint(1, 99)
        yield locals()


def table_cells(rng: Rng) -> Steps:
    wide = rng.randint(6, 12)
    for i in range(1, rng.randint(8, 12)):
        v, x, h = rng.randint(1, 9), 0, i - 1
        for j in range(1, wide):
            equal, r = rng.random() < 0.3, max(j - 2, 0)
            x += rng.randint(0, 2) if equal else 0
            same = "are equal" if equal else "differ"
            yield locals()


# the other half: nothing was run on these before the thresholds stood


def long_division(rng: Rng) -> Steps:
    m, s = rng.choice([3, 7, 9, 11, 13, 17]), 0
    for _ in range(rng.randint(50, 90)):
        d = rng.randint(0, 9)
        r = 10 * s + d
        q, s = divmod(r, m)
        p = q * m
        yield locals()


def greatest_divisor(rng: Rng) -> Steps:
    for _ in range(rng.randint(12, 18)):
        a, b = rng.randint(2000, 9999), rng.randint(500, 2000)
        yield f"The pair is {a} and {b}."
        while b:
            q, r = divmod(a, b)
            yield locals()
            a, b = b, r


def state_machine(rng: Rng) -> Steps:
    states = rng.sample("ABCDEFG", rng.randint(2, 4))
    state, ring = 0, rng.random() < 0.4
    for k in range(1, rng.randint(60, 110)):
        c = 1 if ring else rng.randint(0, 1)
        s, state = states[state], (state + c) % len(states)
        t = states[state]
        yield locals()


def medication_plan(rng: Rng) -> Steps:
    a, b, taper = rng.choice([10, 20, 50]), rng.choice([5, 10]), rng.random() < 0.5
    for k in range(1, rng.randint(45, 90)):
        a, day = max(a - 1, 1) if taper and k % 7 == 0 else a, DAYS[k % 7]
        yield locals()


def warehouse(rng: Rng) -> Steps:
    total = rng.randint(500, 2000)
    for k in range(1, rng.randint(45, 80)):
        n, comes = rng.randint(5, 60), rng.random() < 0.5
        total += n if comes else -n
        kind, verb = ("delivery", "arrives") if comes else ("pick-up", "leaves")
        h, m = 6 + k // 6, k % 6 * 10
        yield locals()


def bubble_sort(rng: Rng) -> Steps:
    list = [rng.randint(1, 99) for _ in range(rng.randint(10, 13))]
    for last in range(len(list) - 1, 0, -1):
        for i in range(last):
            (a, b), j = list[i : i + 2], i + 1
            what = "they are in order" if a <= b else "we swap them"
            list[i : i + 2] = sorted((a, b))
            yield locals()


def caesar_letters(rng: Rng) -> Steps:
    n = rng.randint(1, 25)
    for k in range(1, rng.randint(60, 100)):
        i = rng.randrange(26) + 1
        a, b = chr(64 + i), chr(65 + (i - 1 + n) % 26)
        yield locals()


def elevator(rng: Rng) -> Steps:
    t = 0
    for k in range(1, rng.randint(50, 90)):
        f, t = t, rng.choice([x for x in range(10) if x != t])
        n, doors = rng.randint(0, 4), rng.choice(["open", "shut"])
        yield locals()


def multiples(rng: Rng) -> Steps:
    n = rng.randint(2, 19)
    for k in range(1, rng.randint(60, 120)):
        p, what = n * k, "odd" if n * k % 2 else "even"
        yield locals()


def queue_of_people(rng: Rng) -> Steps:
    b = rng.choice(NAMES)
    for _ in range(rng.randint(45, 80)):
        a, b = b, rng.choice([name for name in NAMES if name != b])
        n = rng.randint(1, 9)
        yield locals()


# written after a loss among the unseen kinds (`queue_of_people`) had been looked at and repaired


def dice_game(rng: Rng) -> Steps:
    players = rng.sample(NAMES, rng.randint(2, 4))
    for k in range(rng.randint(50, 90)):
        x, y = rng.randint(1, 6), rng.randint(1, 6)
        a, s = players[k % len(players)], (7 * k) % 40
        what = "That is a double" if x == y else "No double"
        yield locals()


def inspection(rng: Rng) -> Steps:
    for k in range(rng.randint(100, 500), rng.randint(560, 600), rng.choice([1, 2, 3, 5])):
        what = rng.choice(["good", "good", "good", "too long", "scratched"])
        colour = rng.choice(["red", "green", "blue", "white"])
        x, y = rng.randint(1, 5), rng.randint(1, 9)
        yield locals()


def water_jugs(rng: Rng) -> Steps:
    big, small = rng.choice([(11, 7), (13, 8), (17, 5), (19, 12)])
    x = y = 0
    for _ in range(rng.randint(45, 80)):
        if x == 0:
            what, x = "fill the first jug", big
        elif y == small:
            what, y = "empty the second jug", 0
        else:
            what, poured = "pour from the first into the second", min(x, small - y)
            x, y = x - poured, y + poured
        yield locals()


def timetable(rng: Rng) -> Steps:
    every, stops = rng.choice([10, 15, 20]), rng.sample(NAMES, 3)
    for k in range(rng.randint(50, 70)):
        h, m = divmod(300 + every * k, 60)
        x, y, a = rng.randint(1, 4), 1 + k % 3, f"{stops[k % 3]}ville"
        yield locals()


def truth_table(rng: Rng) -> Steps:
    for k in range(1, 33):
        p, q, r, s, t = (bool(k - 1 >> n & 1) for n in (4, 3, 2, 1, 0))
        what = (p or q) and (r or s) != t
        yield locals()


Kinds = dict[str, Callable[[Rng], Steps]]


def _kinds(*kinds: Callable[[Rng], Steps]) -> Kinds:
    return {kind.__name__: kind for kind in kinds}


STEPS: dict[str, Kinds] = {
    "seen": _kinds(accumulation, simulation_rounds, patient_records, binary_search, passed_coin,
                   sieve, weekdays, brackets, unit_tests, table_cells),
    "unseen": _kinds(long_division, greatest_divisor, state_machine, medication_plan, warehouse,
                     bubble_sort, caesar_letters, elevator, multiples, queue_of_people),
    "last": _kinds(dice_game, inspection, water_jugs, timetable, truth_table),
}  # fmt: skip
_FORMS = {
    kind: forms.splitlines()
    for text in Path(__file__).with_name("repetition_forms.txt").read_text("utf-8").split("# ")
    if text
    for kind, _, forms in [text.partition("\n")]
}


def step_by_step(half: str, kind: str, count: int = 20) -> list[str]:
    """Honest texts of one kind; one in two has its steps in lines, the others in paragraphs."""
    texts = list[str]()
    for seed in range(count):
        rng = random.Random(f"{kind} {seed}")
        form, written = rng.choice(_FORMS[kind]), list[str]()
        for step in STEPS[half][kind](rng):
            written.append(step if isinstance(step, str) else form.format(**step))
        joint = " " if rng.random() < 0.3 else "\n"
        texts.append(f"Let us go through this.\n{joint.join(written)}\nThat was the last one.")
    return texts
