"""Rows that only compare numbers: the one step of a tiny judge that no other row teaches.

    drill_row(7, seed=3)
    → {"messages": [user "613 623\\n7 7\\n…", assistant reasoning "613 66 yes 12 no wrong\\n…"], …}

Whether two digits are equal is 100 facts. In a judgement a few tokens in a hundred depend on them,
and a model of 0.6 M parameters learns everything else long before; here most tokens do.
"""

from __future__ import annotations

import random
from typing import Any

from data_builders.keyed import key64
from data_builders.tiny_world.drafts import assistant, user
from data_builders.tiny_world.responses import compared, near_miss

LINES = 8
EQUAL = 0.4


def drill_row(index: int, *, seed: int) -> dict[str, Any]:
    """One conversation of `LINES` comparisons; the same seed and index are always the same row."""
    rng = random.Random(key64(seed, "drill", index))
    asked: list[str] = []
    worked: list[str] = []
    said: list[str] = []
    for _ in range(LINES):
        gold = rng.randrange(10 ** rng.randint(1, 2))
        other = gold if rng.random() < EQUAL else near_miss(rng, gold)
        result = compared(str(other), str(gold))
        asked.append(f"{other} {gold}")
        worked.append(f"{other} {result}")
        said.append(result.rpartition(" ")[2])
    return {
        "id": f"drill-{seed}-{index}",
        "messages": [user("\n".join(asked)), assistant(" ".join(said), "\n".join(worked))],
        "metadata": {"family": "drill", "difficulty": 1},
    }
