"""Histograms over equal bins with round edges.

bins([0.1, 0.4, 2.2], most=4) → [Bin(0.0, 1.0, 2), Bin(1.0, 2.0, 0), Bin(2.0, 3.0, 1)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.report.charts import Bar, bars

MOST_BINS = 24


@dataclass(frozen=True, slots=True)
class Bin:
    """Values in [low, high)."""

    low: float
    high: float
    count: int


def bins(values: Sequence[float], *, most: int = MOST_BINS) -> list[Bin]:
    """At most `most` bins of 1, 2 or 5 times a power of ten that hold every (finite) value."""
    assert values, "a histogram needs a value"
    lowest, highest = min(values), max(values)
    # one value, or values that differ by rounding, are one bin
    least = max(abs(lowest), abs(highest)) * 1e-6 or 1.0
    width = _round_up(max((highest - lowest) / (most - 1), least))
    first = math.floor(lowest / width)
    counts: dict[int, int] = {}
    for value in values:
        place = math.floor(value / width) - first
        counts[place] = counts.get(place, 0) + 1
    return [
        Bin((first + k) * width, (first + k + 1) * width, counts.get(k, 0))
        for k in range(max(counts) + 1)
    ]


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next((step * power for step in (1, 2, 5) if step * power >= width), 10 * power)


def histogram(values: Sequence[float], *, x: str, y: str) -> str:
    """The bins as bars, each labelled with its lower edge."""
    found = bins(values)
    return bars([Bar(f"{one.low:.6g}", (one.count,)) for one in found], x=f"{x}, from", y=y)
