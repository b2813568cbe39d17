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
# y axes of these titles need not include 0, which is no level to measure from
SIGNED = ("loss", "nats", "reward")


@dataclass(frozen=True, slots=True)
class Curve:
    """Description of a chart of logged values over steps; counts and shares start at 0.

    Attributes:
        y: title of the y axis.
        keys: key of the log, or keys by the names of their lines.
    """

    caption: str
    y: str
    keys: str | Mapping[str, str]

    def named(self) -> Mapping[str, str]:
        """Keys of the log by the names of their lines."""
        return {self.keys: self.keys} if isinstance(self.keys, str) else self.keys


def points(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the rows of a log that have a key."""
    logged_rows = [row for row in rows if key in row and "step" in row]
    steps = [float(row["step"]) for row in logged_rows]
    # json writes a diverged loss as NaN; the row stays, the charts leave it out
    values = [float(row[key]) for row in logged_rows]
    return steps, values


def curves(rows: Sequence[Row], wanted: Sequence[Curve], styles: str = "abc") -> list[Block]:
    """Charts of the curves that were logged; curves of 0 at every step follow as sentences.

    Args:
        rows: of a log.
        wanted: curves to draw, in order.
        styles: styles of a chart's lines, in order; further lines are not drawn.
    """
    charts: list[Block] = []
    zero_notes: list[Block] = []
    for curve in wanted:
        logged_series: list[Series] = []
        has_nonzero = False
        for (name, key), style in zip(curve.named().items(), styles, strict=False):
            steps, values = points(rows, key)
            if any(math.isfinite(value) for value in values):
                logged_series.append(Series(name, steps, values, style))
                has_nonzero = has_nonzero or any(values)
        if has_nonzero:
            from_zero = curve.y not in SIGNED
            charts.append(LineChart(logged_series, "step", curve.y, curve.caption, from_zero))
        elif logged_series:
            zero_notes.append(f"{curve.caption.removesuffix('.')}: 0 at every step.")
    return charts + zero_notes


def bins(values: Sequence[float], *, most: int = MOST_BINS) -> list[tuple[float, int]]:
    """Lower edge and count of each bin of a histogram.

    Args:
        most: highest number of bins; each is 1, 2 or 5 times a power of ten wide.
    """
    lowest = min(values)
    highest = max(values)
    # one value, or values that differ by rounding, are one bin
    rounding = max(abs(lowest), abs(highest)) * 1e-6 or 1.0
    # bins begin at multiples of their width, which may take one bin more
    narrowest = max((highest - lowest) / (most - 1), rounding)
    power = 10.0 ** math.floor(math.log10(narrowest))
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= narrowest)
    first_bin = math.floor(lowest / width)
    counts = Counter(math.floor(value / width) - first_bin for value in values)
    return [((first_bin + k) * width, counts[k]) for k in range(max(counts) + 1)]


def histogram(values: Sequence[float], *, x: str, y: str, caption: str) -> BarChart:
    """Chart of a histogram, each bar labelled by the lower edge of its bin."""
    bars = [(f"{low:.6g}", (count,)) for low, count in bins(values)]
    return BarChart(bars, f"{x}, from", y, caption)
