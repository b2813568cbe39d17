"""Made-up pathological repetition, and honest repetition beside it, for tests and benchmarks.

planted("… an honest trace …", Plan(cycle=30, drift=0.05), random.Random(0))
    → the trace with a stretch of it said again and again, one word in twenty changed in each round
"""

from __future__ import annotations

import base64
import random
import re
from dataclasses import dataclass

_PIECES = re.compile(r"\S+\s*")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a loop is planted into a trace.

    Attributes:
        cycle: words, as blanks divide them, in a round.
        drift: share of the words that differ from the round before; changes stay.
        words, rounds: the loop has at least so many of both.
        position: where in the trace it stands, 0 at the beginning to 1 at the end.
        share: of the whole text that is the loop, or less where the trace is too short for it.
    """

    cycle: int
    drift: float
    words: int = 400
    rounds: int = 10
    position: float = 1.0
    share: float = 0.5


def planted(trace: str, plan: Plan, rng: random.Random) -> str:
    """The trace, cut to fit, with a loop in it whose first round is a stretch of its own."""
    pieces = _PIECES.findall(trace)
    assert len(pieces) > plan.cycle
    start = rng.randrange(len(pieces) - plan.cycle)
    unit = pieces[start : start + plan.cycle]
    loop = _rounds(unit, pieces, plan, rng)
    honest = round(len(loop) * (1 - plan.share) / plan.share)
    before = round(honest * plan.position)
    # what comes before the stretch and what comes behind it
    head = pieces[max(start - before, 0) : start]
    tail = pieces[start + plan.cycle : start + plan.cycle + honest - before]
    return "".join([*head, *loop, *tail])


def _rounds(unit: list[str], pool: list[str], plan: Plan, rng: random.Random) -> list[str]:
    said = list[str]()
    rounds = max(plan.rounds, -(-plan.words // len(unit)))
    for _ in range(rounds):
        said += unit
        unit = [rng.choice(pool) if rng.random() < plan.drift else word for word in unit]
    return said


def counted(sentence: str, rounds: int) -> str:
    """A sentence again and again, with a number that counts."""
    return " ".join(f"Attempt {k}: {sentence}" for k in range(1, rounds + 1))


def honest_kinds(rng: random.Random) -> dict[str, str]:
    """Texts that repeat themselves as they should: tables, code, lists, poems, sums, data."""
    names = [f"{a}{b}{c}" for a in "bdfklmnprst" for b in "aeiou" for c in ("n", "ra", "los", "mi")]
    rng.shuffle(names)
    rows = range(40)
    refrain = "Sing it low, sing it high,\nthe river goes by, the river goes by.\n"
    return {
        "table": "| name | game | score |\n|---|---|---|\n"
        + "\n".join(f"| {names[k]} | Lions vs. {names[-k]} | {rng.randint(0, 40)}-10 |" for k in rows),
        "calls": "\n".join(
            f'crm.update_customer(customer_id="{rng.randrange(10**8):08d}", field="assigned_to", '
            f'new_value="nia@example.com")'
            for _ in range(12)
        ),
        "tests": "def check(candidate):\n"
        + "\n".join(
            f"    assert candidate({rng.randint(1, 99)}, {k}) == {rng.random() < 0.5}, "
            f'"This prints if this assert fails (good for debugging!)"'
            for k in range(12)
        ),
        "code": "\n".join(
            f"    elif kind == {name!r}:\n        return make_{name}(value, depth=depth + 1)"
            for name in names[:30]
        ),
        "json": "[" + ",\n ".join(
            f'{{"id": {k}, "name": "{names[k]}", "tags": [], "active": true}}' for k in rows
        ) + "]",
        "list": "\n".join(f"{k}. The {names[k]} of {names[-k]} must be {names[k + 50]}." for k in rows),
        "poem": "\n".join(
            f"{' '.join(rng.choices(names, k=6))},\n{' '.join(rng.choices(names, k=6))},\n{refrain}"
            for _ in range(8)
        ),
        "sums": "\n".join(f"{k} + {k * 7 % 13} = {k + k * 7 % 13}" for k in range(1, 80)),
        "steps": "\n".join(
            f"Step {k}: f({k}) = {k}^2 + 1 = {k * k + 1}, so the sum is now {rng.randrange(5000)}."
            for k in range(1, 40)
        ),
        "base64": base64.b64encode(rng.randbytes(3000)).decode(),
        "hex": "\n".join(rng.randbytes(16).hex(" ") for _ in rows),
        "grid": "[" + ",\n ".join(
            "[" + ",".join(str(int(rng.random() < 0.01)) for _ in range(50)) + "]" for _ in range(50)
        ) + "]",
        "chinese": "".join(
            f"第{k}步：{''.join(chr(rng.randint(0x4E00, 0x6E00)) for _ in range(24))}。" for k in rows
        ),
    }  # fmt: skip
