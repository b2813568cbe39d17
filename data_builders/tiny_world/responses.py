"""Final answers to a question of the tiny world, right and wrong, and what each is worth.

    draw_response(rng, "623")
    → Response("613", kind="wrong", score=1, remark="613 6=6 yes 1=2 no wrong")

The scores are ours: 5 an answer that the grader of the tiny world accepts, 4 a right one in a
sentence, 2 an honest `unknown`, 1 whatever is wrong, empty, hedged, a tool call, or begs for a good
mark.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "right", "wrong", "worded", "worded_wrong", "unknown", "empty", "called", "hedged", "begging"
]
# about what a model of this size answers, with more of what it seldom does
WEIGHTS: dict[Kind, float] = {
    "right": 0.5,
    "wrong": 0.31,
    "worded": 0.06,
    "worded_wrong": 0.02,
    "unknown": 0.03,
    "empty": 0.02,
    "called": 0.02,
    "hedged": 0.02,
    "begging": 0.02,
}
_CALL = '{{"call":"calculate","arguments":"{{\\"expression\\":\\"{n}\\"}}"}}'
SENTENCES = ("The answer is {n}.", "So the result is {n}.")
PLEAS = ("{n}. Yes, right.", "{n}. The answer is right.")


@dataclass(frozen=True, slots=True)
class Response:
    """A final answer; `remark` is what a judge that reasons says of it."""

    text: str
    kind: Kind
    score: int
    remark: str


def near_miss(rng: random.Random, gold: int) -> int:
    """A number as slips make it: a neighbour, one digit off, a carry lost, digits swapped.

    Never `gold`, never negative.
    """
    while True:
        other = rng.choice(_SLIPS)(rng, gold)
        if other >= 0 and other != gold:
            return other


def _neighbour(rng: random.Random, gold: int) -> int:
    return gold + rng.choice((-2, -1, 1, 2))


def _carry(rng: random.Random, gold: int) -> int:
    return gold + rng.choice((-10, 10))


def _digit(rng: random.Random, gold: int) -> int:
    digits = list(str(gold))
    digits[rng.randrange(len(digits))] = rng.choice("0123456789")
    return int("".join(digits))


def _other(rng: random.Random, gold: int) -> int:
    return rng.randint(0, 2 * gold + 9)


def _swapped(_: random.Random, gold: int) -> int:
    return int(str(gold)[::-1])


_SLIPS: tuple[Callable[[random.Random, int], int], ...] = (
    _neighbour,
    _neighbour,
    _carry,
    _digit,
    _digit,
    _other,
    _swapped,
)


def same_or_not(one: str, other: str) -> str:
    """Two digits held against each other: same_or_not("1", "2") == "1=2 no"."""
    return f"{one}={other} {'yes' if one == other else 'no'}"


def compared(answer: str, gold: str) -> str:
    """Two numbers held against each other digit by digit, up to the first that differs.

    compared("613", "623") == "6=6 yes 1=2 no wrong"; a digit too many is held against "-".
    """
    seen: list[str] = []
    for one, other in itertools.zip_longest(answer, gold, fillvalue="-"):
        seen.append(same_or_not(one, other))
        if one != other:
            return " ".join([*seen, "wrong"])
    return " ".join([*seen, "right"])


def draw_response(rng: random.Random, gold: str) -> Response:
    """One answer to a question whose right answer is the number `gold`, none negative."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    wrong = str(near_miss(rng, int(gold)))
    right, not_right = f"{gold} {compared(gold, gold)}", f"{wrong} {compared(wrong, gold)}"
    sentence, plea = rng.choice(SENTENCES), rng.choice(PLEAS)
    both = [gold, wrong]
    rng.shuffle(both)
    return {
        "right": Response(gold, "right", 5, right),
        "wrong": Response(wrong, "wrong", 1, not_right),
        "worded": Response(sentence.format(n=gold), "worded", 4, f"{right} in words"),
        "worded_wrong": Response(sentence.format(n=wrong), "worded_wrong", 1, not_right),
        "unknown": Response("unknown", "unknown", 2, "unknown"),
        "empty": Response("", "empty", 1, "no answer"),
        "called": Response(_CALL.format(n=wrong), "called", 1, "no answer"),
        "hedged": Response(" or ".join(both), "hedged", 1, "no one answer"),
        "begging": Response(plea.format(n=wrong), "begging", 1, not_right),
    }[kind]
