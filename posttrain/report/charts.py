"""Charts as inline SVG: they take the page's colours, scale, and are the same bytes every time.

    lines([Series("loss", [10, 20], [3.1, 2.2])], x="step", y="loss")  →  "<svg …>"

Drawn by hand rather than by a plotting library: a stage that ends with a report need not load one,
and the drawings follow the page into dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.report.html import text

WIDTH, HALF, HEIGHT = 912, 440, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 42
MOST_POINTS = 1500


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `style` is `a` (accent), `b` (muted) or `c` (muted and dashed, without dots)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Two or more round numbers that cover [low, high] in about `most` steps."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        high = low + (abs(low) or 1.0)  # one value: an axis needs a length all the same
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def number(value: float) -> str:
    """A tick's label: 12k, 0.25, 3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, label: str, anchor: str = "middle", kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{_at(x)}" y="{_at(y)}" text-anchor="{anchor}"{shown}>{text(label)}</text>'


def _svg(body: Sequence[str], label: str, *, width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(label)}">'
        f"{''.join(body)}</svg>"
    )


def _frame(y_ticks: Sequence[float], place: float, width: int) -> list[str]:
    """Horizontal grid lines with their labels; `place` is the pixels of one unit of y."""
    base, first = HEIGHT - BOTTOM, y_ticks[0]
    out: list[str] = []
    for value in y_ticks:
        y = base - (value - first) * place
        kind = "axis" if value == first else "grid"
        out.append(f'<path class="{kind}" d="M{LEFT} {_at(y)}H{width - RIGHT}"/>')
        out.append(_text(LEFT - 8, y + 4, number(value), "end"))
    return out


def _axis_names(x: str, y: str, width: int) -> list[str]:
    middle = LEFT + (width - LEFT - RIGHT) / 2
    return [
        _text(middle, HEIGHT - 4, x, kind="name"),
        f'<text class="name" transform="translate(12 {_at((HEIGHT - BOTTOM + TOP) / 2)}) '
        f'rotate(-90)" text-anchor="middle">{text(y)}</text>',
    ]


def lines(series: Sequence[Series], *, x: str, y: str, width: int = WIDTH) -> str:
    """Lines over a shared x axis; both axes include 0. Points that are not finite are left out.

    Of more than 1,500 points every k-th is drawn, and the last.
    """
    drawn = [_finite(one) for one in series]
    drawn = [one for one in drawn if one.x]
    assert drawn, "a chart needs at least one point"
    x_ticks = _covering([value for one in drawn for value in one.x], 9 if width == WIDTH else 4)
    y_ticks = _covering([value for one in drawn for value in one.y], 5)
    x_unit = (width - LEFT - RIGHT) / (x_ticks[-1] - x_ticks[0])
    y_unit = (HEIGHT - TOP - BOTTOM) / (y_ticks[-1] - y_ticks[0])
    base = HEIGHT - BOTTOM
    out = _frame(y_ticks, y_unit, width)
    out += [_text(LEFT + (v - x_ticks[0]) * x_unit, base + 18, number(v)) for v in x_ticks]
    for one in drawn:
        points = [
            f"{_at(LEFT + (px - x_ticks[0]) * x_unit)} {_at(base - (py - y_ticks[0]) * y_unit)}"
            for px, py in zip(one.x, one.y, strict=True)
        ]
        out.append(f'<path class="line {one.style}" d="M{"L".join(points)}"/>')
        if len(points) <= 24 and one.style != "c":
            out += [
                f'<circle class="dot {one.style}" r="3" cx="{cx}" cy="{cy}"/>'
                for cx, cy in (point.split() for point in points)
            ]
    drawing = _svg([*out, *_axis_names(x, y, width)], f"{y} over {x}", width=width)
    return _legend(drawn, "line") + drawing


def _covering(values: Sequence[float], most: int) -> list[float]:
    return ticks(min(0.0, *values), max(0.0, *values), most)


def _finite(one: Series) -> Series:
    stride = -(-len(one.x) // MOST_POINTS)
    points = [
        (a, b)
        for k, (a, b) in enumerate(zip(one.x, one.y, strict=True))
        if math.isfinite(b) and (k % stride == 0 or k == len(one.x) - 1)
    ]
    return Series(one.name, [a for a, _ in points], [b for _, b in points], one.style)


def _legend(series: Sequence[Series], kind: str) -> str:
    if len(series) < 2:
        return ""
    keys = "".join(
        f'<span><i class="key {kind} {one.style}"></i>{text(one.name)}</span>' for one in series
    )
    return f'<div class="legend">{keys}</div>'


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: a label below it and the heights of its parts, the lowest first."""

    label: str
    parts: Sequence[float]


def bars(data: Sequence[Bar], *, names: Sequence[str] = (), x: str, y: str) -> str:
    """Vertical bars; several parts are stacked, the first in the accent colour."""
    y_ticks = ticks(0, max((sum(bar.parts) for bar in data), default=1) or 1)
    unit = (HEIGHT - TOP - BOTTOM) / y_ticks[-1]
    slot = (WIDTH - LEFT - RIGHT) / max(len(data), 1)
    width, base = min(slot * 0.82, 64), HEIGHT - BOTTOM
    every = -(-len(data) * 44 // (WIDTH - LEFT - RIGHT))  # labels need about 44 pixels each
    out = _frame(y_ticks, unit, WIDTH)
    for place, bar in enumerate(data):
        middle, foot = LEFT + slot * (place + 0.5), base
        if place % every == 0:
            out.append(_text(middle, base + 18, bar.label))
        for style, part in zip("abc", bar.parts, strict=False):
            height = part * unit
            out.append(
                f'<rect class="fill {style}" x="{_at(middle - width / 2)}" '
                f'y="{_at(foot - height)}" width="{_at(width)}" height="{_at(height)}">'
                f"<title>{text(bar.label)}: {part:,.0f}</title></rect>"
            )
            foot -= height
    keys = [Series(name, [], [], style) for name, style in zip(names, "abc", strict=False)]
    drawing = _svg([*out, *_axis_names(x, y, WIDTH)], f"{y} by {x}")
    return _legend(keys, "fill") + drawing


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with its interval; `style` as for `Series`."""

    label: str
    low: float
    share: float
    high: float
    style: str = "a"


def intervals(rows: Sequence[Interval], *, x: str) -> str:
    """Shares in [0, 1] as dots with whiskers, one line each."""
    left, line = 150, 26
    height = TOP + line * len(rows) + BOTTOM
    unit, base = WIDTH - left - 70, TOP + line * len(rows)
    out: list[str] = []
    for k in range(0, 11, 2):
        at = left + unit * k / 10
        out.append(f'<path class="{"grid" if k else "axis"}" d="M{_at(at)} {TOP}V{base}"/>')
        out.append(_text(at, base + 18, f"{10 * k} %"))
    for place, row in enumerate(rows):
        y = TOP + line * (place + 0.5)
        ends = f"M{_at(left + unit * row.low)} {_at(y)}H{_at(left + unit * row.high)}"
        out += [
            _text(left - 12, y + 4, row.label, "end", "strong"),
            f'<path class="whisker {row.style}" d="{ends}"/>',
            f'<circle class="dot {row.style}" r="4.5" cx="{_at(left + unit * row.share)}" '
            f'cy="{_at(y)}"/>',
            _text(WIDTH - 4, y + 4, f"{100 * row.share:.1f} %", "end", "strong"),
        ]
    out.append(_text(left + unit / 2, height - 4, x, kind="name"))
    return _svg(out, x, height=height)


def spark(values: Sequence[float], *, highest: float) -> str:
    """A line without axes for a table cell, from 0 to `highest`."""
    width, height = 120, 22
    finite = [value for value in values if math.isfinite(value)]
    if not finite or not highest:
        return ""
    step = (width - 6) / max(len(finite) - 1, 1)
    points = [
        (3 + k * step, height - 3 - (height - 6) * min(value / highest, 1.0))
        for k, value in enumerate(finite)
    ]
    path = "L".join(f"{_at(x)} {_at(y)}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path class="line a" d="M{path}"/>'
        f'<circle class="dot a" r="2.5" cx="{_at(x)}" cy="{_at(y)}"/></svg>'
    )
