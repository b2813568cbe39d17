"""Charts of quantities in the rows of a training log, and histograms over equal bins.

bins([0.1, 0.4, 2.2], most=4) → [(0.0, 2), (1.0, 0), (2.0, 1)]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.report.section import BarChart, Block, LineChart, Row, Series

MOST_BINS = 24
# of these, 0 is no level to measure from
SIGNED = ("loss", "nats", "reward")


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of a key of the log, or of named ones, over steps; counts and shares start at 0."""

    caption: str
    y: str
    keys: str | Mapping[str, str]

    def named(self) -> Mapping[str, str]:
        return {self.keys: self.keys} if isinstance(self.keys, str) else self.keys


def points(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    found = [(row["step"], row[key]) for row in rows if key in row and "step" in row]
    # json writes a diverged loss as NaN; the row stays, the charts leave it out
    return [float(step) for step, _ in found], [float(value) for _, value in found]


def curves(rows: Sequence[Row], wanted: Sequence[Curve], styles: str = "abc") -> list[Block]:
    """A chart of each curve that was logged; below them, in words, what is 0 at every step."""
    charts: list[Block] = []
    zero: list[Block] = []
    for curve in wanted:
        series = [
            Series(name, *points(rows, key), style)
            for (name, key), style in zip(curve.named().items(), styles, strict=False)
        ]
        series = [one for one in series if any(math.isfinite(value) for value in one.y)]
        if any(value for one in series for value in one.y):
            charts.append(LineChart(series, "step", curve.y, curve.caption, curve.y not in SIGNED))
        elif series:
            zero.append(f"{curve.caption.removesuffix('.')}: 0 at every step.")
    return charts + zero


def bins(values: Sequence[float], *, most: int = MOST_BINS) -> list[tuple[float, int]]:
    """Lower edge and count of at most `most` bins, each 1, 2 or 5 times a power of ten wide."""
    lowest, highest = min(values), max(values)
    # one value, or values that differ by rounding, are one bin
    least = max(abs(lowest), abs(highest)) * 1e-6 or 1.0
    narrowest = max((highest - lowest) / (most - 1), least)
    power = 10.0 ** math.floor(math.log10(narrowest))
    width = next(step * power for step in (1, 2, 5, 10) if step * power >= narrowest)
    first = math.floor(lowest / width)
    counts = Counter(math.floor(value / width) - first for value in values)
    return [((first + k) * width, counts[k]) for k in range(max(counts) + 1)]


def histogram(values: Sequence[float], *, x: str, y: str, caption: str) -> BarChart:
    bars = [(f"{low:.6g}", (count,)) for low, count in bins(values)]
    return BarChart(bars, f"{x}, from", y, caption)
