"""The filter against loops on honest step-by-step texts, whose rounds differ in their numbers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from data_builders.filters.repetition import find_repetitions
from posttrain.config.filters import RepetitionFilter
from tests.data_builders.loops import Plan, counted, planted

SEEDS = 20
NAMES = (
    "Ada", "Bo", "Chen", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Karl", "Lena",
    "Milo", "Nia", "Otto", "Pia", "Quin", "Rosa", "Sven", "Tara", "Uma", "Vito", "Wren", "Yuri",
)  # fmt: skip


def accumulation(rng: random.Random) -> str:
    """A sum taken up number by number."""
    form = rng.choice([
        "step {k}: total = {old} + {x} = {new}",
        "Step {k}: add {x} to {old} and the total is now {new}.",
        "After adding {x}, the running total goes from {old} to {new}.",
        "- i = {k}: sum is {old} + {x} = {new}",
        "In step {k} we take the next number of the list, which is {x}, and add it to the running "
        "total so far, which is {old}, so that the new running total of the list is {new}.",
        "Step {k}: the next number that we have to add is {x}. The total before this step was "
        "{old}, so after this step the total is equal to {old} + {x}, and that is {new}.",
    ])  # fmt: skip
    total, lines, own = 0, list[str](), rng.random() < 0.5
    for k in range(1, rng.randint(40, 80)):
        x = k if own else rng.randint(1, 99)
        lines.append(form.format(k=k, x=x, old=total, new=total + x))
        total += x
    return "\n".join([*lines, f"So the sum is {total}."])


def rounds(rng: random.Random) -> str:
    """A game played out."""
    form = rng.choice([
        "Round {k}: {a} rolls a {x} and {b} rolls a {y}, so {w} wins and the score is {s} to {t}.",
        "Round {k}. {a} draws {x}, {b} draws {y}. {w} takes the point: {s} to {t}.",
        "In round {k}, {a} has {s} points and {b} has {t} points; {w} moves next with a {x}.",
        "Now we play round {k}. First {a} rolls the die and gets a {x}, then {b} rolls the die and "
        "gets a {y}. The higher roll wins the round, so {w} gets a point and the score is {s} to {t}.",
    ])  # fmt: skip
    a, b = rng.sample(NAMES, 2)
    score, lines = {a: 0, b: 0}, list[str]()
    for k in range(1, rng.randint(40, 70)):
        x, y = rng.sample(range(1, 13), 2)
        w = a if x > y else b
        score[w] += 1
        lines.append(form.format(k=k, a=a, b=b, x=x, y=y, w=w, s=score[a], t=score[b]))
    return "\n".join(lines)


def binary_search(rng: random.Random) -> str:
    """Several numbers found by halving."""
    lines = list[str]()
    for _ in range(rng.randint(4, 8)):
        wanted, low, high, step = rng.randrange(1024), 0, 1023, 1
        lines.append(f"Search for {wanted}:")
        while low < high:
            middle = (low + high) // 2
            side = "greater" if wanted > middle else "at most that"
            lines.append(
                f"Step {step}: low is {low}, high is {high}, the middle is {middle}. The number is "
                f"{side}, so we go {'up' if wanted > middle else 'down'}."
            )
            low, high = (middle + 1, high) if wanted > middle else (low, middle)
            step += 1
        lines.append(f"Found {low}.")
    return "\n".join(lines)


def ledger(rng: random.Random) -> str:
    """An account, entry by entry."""
    balance, lines = rng.randint(500, 2000), list[str]()
    lines.append(f"The account opens with a balance of {balance} dollars.")
    for k in range(1, rng.randint(35, 60)):
        amount = rng.randint(5, 300)
        kind = rng.choice(["deposit", "withdrawal"])
        balance += amount if kind == "deposit" else -amount
        lines.append(f"Entry {k}: a {kind} of {amount} dollars, the balance is {balance} dollars.")
    return "\n".join(lines)


def patients(rng: random.Random) -> str:
    """Records of people, one sentence each."""
    lines = [
        f"Patient {k}: {rng.choice(NAMES)}, aged {rng.randint(18, 90)}, was admitted with a "
        f"temperature of {rng.randint(360, 402) / 10} degrees, a pulse of {rng.randint(55, 120)} "
        f"and a {rng.choice(['mild', 'severe', 'dry', 'chronic'])} cough."
        for k in range(1, rng.randint(30, 50))
    ]
    return "\n".join(lines)


def matrix_rows(rng: random.Random) -> str:
    """The rows of a product, one after the other."""
    width = rng.randint(3, 6)
    return "\n".join(
        f"Row {k} of the product is {' '.join(str(rng.randint(-50, 50)) for _ in range(width))}, "
        f"and its sum is {rng.randint(-99, 99)}."
        for k in range(1, rng.randint(30, 60))
    )


def countdown(rng: random.Random) -> str:
    """A log that counts down while readings change."""
    start, fuel = rng.randint(40, 80), rng.randint(4000, 6000)
    lines = list[str]()
    for k in range(start, 0, -1):
        fuel -= rng.randint(10, 60)
        lines.append(
            f"T minus {k} seconds: fuel at {fuel} litres, pressure {rng.randint(90, 130)} bar, all "
            f"systems {rng.choice(['nominal', 'nominal', 'nominal', 'under watch'])}."
        )
    return "\n".join([*lines, "Lift-off."])


def unrolled_loop(rng: random.Random) -> str:
    """A loop traced by hand with its invariant."""
    n, x, y = rng.randint(35, 60), 0, 1
    lines = list[str]()
    for k in range(n):
        lines.append(
            f"Iteration {k}: before it x is {x} and y is {y}, so the invariant holds; after it x is "
            f"{y % 1009} and y is {(x + y) % 1009}."
        )
        x, y = y % 1009, (x + y) % 1009
    return "\n".join(lines)


def collatz(rng: random.Random) -> str:
    """Halving and tripling until one is left."""
    lines = list[str]()
    for value in rng.sample([27, 31, 41, 47, 54, 55, 62, 63, 71, 73, 82, 83, 91, 94, 97], 1):
        number, step = value, 1
        while number != 1 and step < 70:
            after = number // 2 if number % 2 == 0 else 3 * number + 1
            how = "even, so we halve it" if number % 2 == 0 else "odd, so we triple it and add one"
            lines.append(f"Step {step}: {number} is {how} and get {after}.")
            number, step = after, step + 1
    return "\n".join(lines)


def divisors(rng: random.Random) -> str:
    """Trial division, divisor by divisor."""
    number = rng.randint(1500, 9000)
    lines = [f"Is {number} divisible by anything up to {rng.randint(40, 70)}?"]
    for k in range(2, rng.randint(40, 70)):
        rest = number % k
        said = f"leaves a remainder of {rest}" if rest else "leaves no remainder"
        lines.append(f"Dividing {number} by {k} gives {number // k} and {said}.")
    return "\n".join(lines)


KINDS: dict[str, Callable[[random.Random], str]] = {
    kind.__name__: kind
    for kind in (
        accumulation, rounds, binary_search, ledger, patients,
        matrix_rows, countdown, unrolled_loop, collatz, divisors,
    )
}  # fmt: skip


def texts_of(kind: str) -> list[str]:
    return [KINDS[kind](random.Random(f"{kind} {seed}")) for seed in range(SEEDS)]


def dropped(texts: list[str]) -> int:
    return sum(loop is not None for loop in find_repetitions(texts, RepetitionFilter()))


@pytest.mark.parametrize("kind", KINDS)
def test_honest_step_by_step_texts_stay(kind: str):
    """Of the rounds, two lie so close together that they look like a loop that counts."""
    assert dropped(texts_of(kind)) <= {"rounds": 2}.get(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_in_a_step_by_step_text_is_found(kind: str):
    stuck = counted("the sum is still not equal to ten, so I go on and add them again.", 30)
    wait = "But wait, is that right? Let me check the numbers of the last step once more. " * 15
    said = random.Random(kind)
    for loop in (stuck, wait):
        assert dropped([f"{text}\n{loop}" for text in texts_of(kind)]) == SEEDS
    again = [planted(text, Plan(12, 0.0, share=0.9), said) for text in texts_of(kind)]
    assert dropped(again) >= 0.9 * SEEDS
