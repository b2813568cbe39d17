"""Charts of quantities in the rows of a training log, and histograms over equal bins.

curves(rows, [Curve("Groups without advantage.", "share", "zero_variance")])
bins([0.1, 0.4, 2.2], most=4) → [Bin(0.0, 1.0, 2), Bin(1.0, 2.0, 0), Bin(2.0, 3.0, 1)]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.report.section import Bar, BarChart, Block, LineChart, Row, Series

MOST_BINS = 24


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of a key of the log, or of named ones, over steps; counts and shares start at 0."""

    caption: str
    y: str
    keys: str | Mapping[str, str]


def points(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of one logged quantity."""
    found = [(row["step"], row[key]) for row in rows if key in row and "step" in row]
    # json writes a diverged loss as NaN; the row stays, the charts leave it out
    return [float(step) for step, _ in found], [float(value) for _, value in found]


def curves(rows: Sequence[Row], wanted: Sequence[Curve]) -> list[Block]:
    """A chart of each curve that was logged; below them, in words, what is 0 at every step."""
    charts: list[Block] = []
    zero: list[Block] = []
    for curve in wanted:
        keys = {curve.keys: curve.keys} if isinstance(curve.keys, str) else curve.keys
        series = [
            Series(name, *points(rows, key), style)
            for (name, key), style in zip(keys.items(), ("a", "b", "c"), strict=False)
        ]
        series = [one for one in series if any(math.isfinite(value) for value in one.y)]
        if any(value for one in series for value in one.y):
            from_zero = curve.y not in ("nats", "reward")
            charts.append(LineChart(series, "step", curve.y, curve.caption, from_zero))
        elif series:
            zero.append(f"{curve.caption.removesuffix('.')}: 0 at every step.")
    return charts + zero


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


def histogram(values: Sequence[float], *, x: str, y: str, caption: str) -> BarChart:
    """The bins as bars, each labelled with its lower edge."""
    bars = [Bar(f"{one.low:.6g}", (one.count,)) for one in bins(values)]
    return BarChart(bars, f"{x}, from", y, caption)
