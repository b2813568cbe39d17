"""How sure a share is: Wilson's score interval (Wilson 1927).

wilson(45, 50)  →  (0.786, 0.957)
"""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # two-sided 95 %


def wilson(successes: int, trials: int, *, z: float = Z95) -> tuple[float, float]:
    """The interval that holds a share's true value, for `successes` out of `trials`.

    Unlike the normal approximation it stays inside [0, 1] and has a width at 0 and at 1.

    Raises:
        ValueError: no trials, or not 0 ≤ successes ≤ trials.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes of {trials} trials have no interval")
    share = successes / trials
    spread = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / spread
    half = z / spread * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # at the ends the exact bound is 0 or 1; rounding must not move it off the share
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high
