"""The report's charts, drawn with matplotlib as inline SVG.

lines([Series("loss", [10, 20], [3.1, 2.2])], x="step", y="loss")  →  "<svg …>"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posttrain.report.inline_svg import ACCENT, INK, SECOND, THIRD, drawing, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDTH, HALF, HEIGHT = 912, 440, 250
STEPS = [1, 2, 2.5, 5, 10]
LINE = {"a": ACCENT, "b": THIRD, "c": THIRD}
FILL = (ACCENT, SECOND, THIRD)


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `style` is `a` (accent), `b` (muted) or `c` (muted and dashed, without dots)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: a label below it and the heights of its parts, the lowest first."""

    label: str
    parts: Sequence[float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with its interval; `style` as for `Series`."""

    label: str
    low: float
    share: float
    high: float
    style: str = "a"


def number(value: float) -> str:
    """A tick's label: 12k, 0.25, 3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def lines(series: Sequence[Series], *, x: str, y: str, width: int = WIDTH) -> str:
    """Lines over a shared x axis; both axes include 0. Points that are not finite are left out."""
    drawn = [one for one in map(_finite, series) if one.x]
    assert drawn, "a chart needs at least one point"
    with drawing(f"{y} over {x}", width=width, height=HEIGHT, data=drawn) as (axes, svg):
        for one in reversed(drawn):  # the first on top
            axes.plot(
                one.x,
                one.y,
                color=LINE[one.style],
                linestyle=(0, (3, 2.2)) if one.style == "c" else "solid",
                marker="o" if len(one.x) <= 24 and one.style != "c" else "",
                label=one.name,
                gid=titled(one.name),
                clip_on=False,
            )
        axes.update_datalim([(0, 0)])
        _axes(axes, x=x, y=y)
        _ticks(axes.xaxis, 9 if width == WIDTH else 4)
        axes.autoscale_view()
        _legend(axes, len(drawn))
    return svg.html


def _finite(one: Series) -> Series:
    points = [(a, b) for a, b in zip(one.x, one.y, strict=True) if math.isfinite(b)]
    return Series(one.name, [a for a, _ in points], [b for _, b in points], one.style)


def bars(data: Sequence[Bar], *, names: Sequence[str] = (), x: str, y: str) -> str:
    """Vertical bars; several parts are stacked, the first in the accent colour."""
    slot = 840 / max(len(data), 1)  # pixels, about
    every = math.ceil(52 / slot)  # labels need about 52 pixels each
    with drawing(f"{y} by {x}", width=WIDTH, height=HEIGHT, data=data) as (axes, svg):
        feet = [0.0] * len(data)
        for part, colour in enumerate(FILL[: max((len(bar.parts) for bar in data), default=0)]):
            heights = [bar.parts[part] if part < len(bar.parts) else 0 for bar in data]
            drawn = axes.bar(
                range(len(data)),
                heights,
                min(0.82, 64 / slot),
                bottom=feet,
                color=colour,
                label=names[part] if part < len(names) else "",
                clip_on=False,
            )
            for patch, bar, height in zip(drawn, data, heights, strict=True):
                patch.set_gid(titled(f"{bar.label}: {height:,.0f}"))
            feet = [foot + height for foot, height in zip(feet, heights, strict=True)]
        axes.update_datalim([(0, 0), (0, 0 if max(feet, default=0) else 1)])
        _axes(axes, x=x, y=y)
        axes.autoscale_view(scalex=False)
        axes.set_xlim(-0.5, max(len(data), 1) - 0.5)
        shown = range(0, len(data), every)
        axes.set_xticks(shown, [data[k].label for k in shown])
        _legend(axes, len(names))
    return svg.html


def intervals(rows: Sequence[Interval], *, x: str) -> str:
    """Shares in [0, 1] as dots with whiskers, one line each."""
    height = 52 + 26 * len(rows)
    with drawing(x, width=WIDTH, height=height, data=rows) as (axes, svg):
        for place, row in enumerate(rows):
            colour = LINE[row.style]
            axes.plot(
                [row.low, row.high],
                [place, place],
                color=colour,
                alpha=0.5,
                linewidth=2.4,
                solid_capstyle="round",
                clip_on=False,
            )
            (dot,) = axes.plot(row.share, place, "o", color=colour, markersize=9, clip_on=False)
            dot.set_gid(titled(f"{row.label}: {100 * row.share:.1f} %"))
            axes.text(
                1.02, place, f"{100 * row.share:.1f} %", va="center_baseline", color=INK, size=13
            )
        axes.set_xlim(0, 1)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        tenths = range(0, 11, 2)
        axes.set_xticks([k / 10 for k in tenths], [f"{10 * k} %" for k in tenths])
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.tick_params("y", labelcolor=INK, labelsize=13)
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x", clip_on=False)
        axes.set_xlabel(x)
    return svg.html


def spark(name: str, values: Sequence[float], *, highest: float) -> str:
    """A line without axes for a table cell, from 0 to `highest`."""
    finite = [min(value / highest, 1.0) for value in values if math.isfinite(value) and highest]
    if not finite:
        return ""
    last = len(finite) - 1
    with drawing(name, width=120, height=22, data=finite) as (axes, svg):
        axes.set_axis_off()
        axes.set_xlim(-0.02, max(last, 1) * 1.03)
        axes.set_ylim(-0.05, 1.1)
        axes.plot(finite, color=ACCENT, marker="o", markersize=5, markevery=[last], clip_on=False)
    return f'<span class="spark">{svg.html}</span>'


def _axes(axes: Axes, *, x: str, y: str) -> None:
    """Names, horizontal grid lines and short numbers."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", clip_on=False)
    _ticks(axes.yaxis, 5)


def _ticks(axis: Axis, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _legend(axes: Axes, series: int) -> None:
    """A line of keys above the chart, where there is more than one thing to tell apart."""
    if series > 1:
        handles, labels = axes.get_legend_handles_labels()
        order = slice(None, None, -1) if axes.lines else slice(None)
        axes.legend(
            handles[order],
            labels[order],
            loc="lower left",
            bbox_to_anchor=(0, 1.02),
            ncols=series,
            borderaxespad=0,
            borderpad=0.3,
            handlelength=1.3,
            handleheight=0.8,
        )
