"""Which of the right completions is paired with which of the wrong ones.

    pair_indices(2, 3, "even")  →  (0,0) (1,1) (0,2) (1,0) (0,1) (1,2)
    pair_indices(2, 3, "once")  →  (0,0) (1,1)

The paper's rule is unknown. Ours are these two; both use every completion as evenly as can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from posttrain.config.build_dpo import PairingRule


def pair_indices(right: int, wrong: int, rule: PairingRule) -> Iterator[tuple[int, int]]:
    """Distinct pairs (position among the right, position among the wrong), best spread first.

    Under `even` any beginning of the sequence uses each completion of a side k or k+1 times.
    """
    if not right or not wrong:
        return
    if rule == "once":
        yield from ((k, k) for k in range(min(right, wrong)))
        return
    # diagonals: a diagonal returns to its start after lcm steps, then the next one begins
    cycle = math.lcm(right, wrong)
    for k in range(right * wrong):
        yield k % right, (k + k // cycle) % wrong
