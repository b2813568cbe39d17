"""Rows that only compare digits: the one step of a tiny judge that no other row teaches.

    drill_row(7, seed=3)
    → {"messages": [user "6 6\\n1 2\\n…", assistant reasoning "6=6 yes\\n1=2 no\\n…"], …}

Whether two digits are the same is 100 facts. In a judgement a few tokens in a hundred depend on
them, and a model of 0.6 M parameters learns everything else long before; here one in five does.
"""

from __future__ import annotations

import random
from typing import Any

from data_builders.keyed import key64
from data_builders.tiny_world.drafts import assistant, user
from data_builders.tiny_world.responses import same_or_not

LINES = 16
SAME = 0.5  # about half of the lines, where chance would make it a tenth


def drill_row(index: int, *, seed: int) -> dict[str, Any]:
    """One conversation of `LINES` comparisons; the same seed and index are always the same row."""
    rng = random.Random(key64(seed, "drill", index))
    pairs: list[tuple[str, str]] = []
    for _ in range(LINES):
        one = rng.choice("0123456789")
        pairs.append((one, one if rng.random() < SAME else rng.choice("0123456789")))
    asked = "\n".join(f"{one} {other}" for one, other in pairs)
    worked = "\n".join(same_or_not(one, other) for one, other in pairs)
    return {
        "id": f"drill-{seed}-{index}",
        "messages": [user(asked), assistant("done", worked)],
        "metadata": {"family": "drill", "difficulty": 1},
    }
