"""Bar charts as inline SVG, without matplotlib.

    bar_chart_svg(BarChart([("10", [3]), ("20", [5])], x="tokens", y="rows"))  →  "<svg …>"

The pages of data draw no other charts, and a small build would wait for matplotlib's import longer
than for its rows. Colours are variables of the style sheet, as in `charts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from posttrain.jsontext import writable
from posttrain.report.section import BarChart

WIDTH = 480
HEIGHT = 260
CHARACTER = 8  # pixels of a text's width, about
STEPS = (1, 2, 2.5, 5, 10)
_MAX_INTERVALS = 5  # between the ticks of an axis
_RIGHT = 18  # pixels beside the bars
_BOTTOM = 52  # pixels below them: labels and title
_KEY = 24  # pixels of a line of keys
_FILL = ("accent", "second", "third")


def bar_chart_svg(chart: BarChart) -> Markup:
    """Draw stacked bars from zero, with a tooltip for each part."""
    labels = [label for label, _ in chart.bars]
    totals = [sum(parts) for _, parts in chart.bars]
    are_counts = all(total == int(total) for total in totals)
    ticks = _round_ticks(max(totals, default=0), integer=are_counts)
    tick_labels = [tick_label(tick, ticks[1]) for tick in ticks]
    # edges of the area of the bars, in pixels from the top left
    left = 34 + CHARACTER * max(map(len, tick_labels))
    keys = chart.parts if len(chart.parts) > 1 else ()
    columns = max(1, min(len(keys), 400 // (CHARACTER * max(map(len, keys), default=0) + 34)))
    key_lines = math.ceil(len(keys) / columns)
    top = 10 + _KEY * key_lines
    bottom = HEIGHT - 10 - _BOTTOM + top  # lines of keys take nothing from the bars
    height = bottom + _BOTTOM
    right = WIDTH - _RIGHT
    middle = (left + right) / 2
    scale = (bottom - top) / ticks[-1]
    slot = (right - left) / max(len(labels), 1)
    half_bar = min(0.82 * slot, 64) / 2

    shapes: list[Markup] = []
    for tick, label in zip(ticks, tick_labels, strict=True):
        y = bottom - tick * scale
        shapes.append(_line(left, right, y, "rule" if tick else "third"))
        shapes.append(_text(left - 8, y + 4, label, anchor="end"))
    for index, (label, parts) in enumerate(chart.bars):
        centre = left + (index + 0.5) * slot
        low = float(bottom)
        for part, colour in zip(parts, _FILL, strict=False):
            high = low - part * scale
            bar = _rectangle(centre - half_bar, centre + half_bar, low, high, colour)
            tooltip = writable(f"{label}: {part:,.0f}")
            shapes.append(Markup("<g><title>{}</title>{}</g>").format(tooltip, bar))
            low = high
    # labels of some bars are left out where they would overlap
    stride = math.ceil(CHARACTER * (max(map(len, labels), default=0) + 1) / slot)
    for index in range(0, len(labels), stride):
        shapes.append(_text(left + (index + 0.5) * slot, bottom + 20, labels[index]))
    for index, (name, colour) in enumerate(zip(keys, _FILL, strict=False)):
        x = left + (right - left) * (index % columns) / columns
        y = 4 + _KEY * (index // columns)
        shapes.append(_rectangle(x, x + 14, y + 10, y, colour))
        shapes.append(_text(x + 22, y + 10, name, anchor="start"))
    shapes.append(_text(middle, height - 8, chart.x))
    y_middle = (top + bottom) / 2
    rotation = f"rotate(-90 14 {y_middle:.1f})"
    shapes.append(_text(14, y_middle, chart.y, transform=rotation))

    # a name may hold text of the data, and surrogates would make the page unwritable
    name = writable(f"{chart.y} by {chart.x}")
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, name, Markup("").join(shapes)
    )


def tick_label(value: float, step: float) -> str:
    """Label of a tick (12k, 0.25, 3M), with the digits that tell it from a tick one step away."""
    digits = 6
    if value:
        digits = max(digits, math.floor(math.log10(abs(value))) - math.floor(math.log10(step)) + 2)
    # thousands are shortened from 10,000 on: "1500" reads better than "1.5k"
    sizes = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0.0, 1.0, ""))
    scale, unit = next((scale, unit) for size, scale, unit in sizes if abs(value) >= size)
    return f"{value / scale:.{digits}g}{unit}"


def _round_ticks(highest: float, *, integer: bool) -> Sequence[float]:
    """Ticks at round numbers from zero to at least the highest value; integers for counts."""
    highest = highest or 1.0
    magnitude = 10.0 ** math.floor(math.log10(highest / _MAX_INTERVALS))
    steps = [magnitude * step for step in STEPS]
    if integer:
        steps = [step for step in steps if step == int(step)] or [1.0]
    # 1e-9 forgives rounding: a value at a tick needs no tick above it
    step = next(step for step in steps if step * _MAX_INTERVALS >= highest * (1 - 1e-9))
    return [step * k for k in range(math.ceil(highest / step - 1e-9) + 1)]


def _rectangle(left: float, right: float, low: float, high: float, colour: str) -> Markup:
    path = f"M {left:.2f} {low:.2f} L {right:.2f} {low:.2f} L {right:.2f} {high:.2f} "
    path += f"L {left:.2f} {high:.2f} z"
    return Markup('<path d="{}" style="fill: var(--{})"></path>').format(path, colour)


def _line(left: float, right: float, y: float, colour: str) -> Markup:
    path = f"M {left:.2f} {y:.2f} L {right:.2f} {y:.2f}"
    return Markup('<path d="{}" style="stroke: var(--{})"></path>').format(path, colour)


def _text(
    x: float, y: float, words: str, *, anchor: str = "middle", transform: str | None = None
) -> Markup:
    attribute = Markup(' transform="{}"').format(transform) if transform else ""
    return Markup(
        '<text x="{:.2f}" y="{:.2f}"{} style="font-size: 13px; text-anchor: {}; '
        'fill: var(--muted)">{}</text>'
    ).format(x, y, attribute, anchor, writable(words))
