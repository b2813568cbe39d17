"""The report's charts, drawn with matplotlib as inline SVG that takes the page's colours and font.

    chart_svg(LineChart([Series("loss", [10, 20], [3.1, 2.2])], x="step", y="loss"))  →  "<svg …>"

matplotlib is imported when the first chart is drawn, never by importing the report. A drawing uses
only the colours below; each becomes a variable of the style sheet, so it follows the page into dark
mode. Every chart has one width, at which its text can be read on a telephone too.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from posttrain.jsontext import writable
from posttrain.report.section import BarChart, Chart, IntervalChart, LineChart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDTH, HEIGHT = 480, 260
# stand-ins that no drawing of ours uses for anything else → the style sheet's variables
INK, MUTED, RULE, ACCENT, SECOND, THIRD = (f"#f00d0{k}" for k in range(1, 7))
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    SECOND: "second",
    THIRD: "third",
}
TITLE = "title: "
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",  # comes with matplotlib: text is measured alike everywhere
    "font.size": 13,
    "text.parse_math": False,
    "text.color": MUTED,
    "axes.edgecolor": THIRD,
    "axes.labelcolor": MUTED,
    "axes.labelpad": 7,
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "grid.color": RULE,
    "grid.linewidth": 1,
    "legend.frameon": False,
    "lines.solid_joinstyle": "round",
    "lines.linewidth": 1.8,
    "path.simplify_threshold": 0.5,
    "lines.markersize": 6,
    "lines.markeredgewidth": 0,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 7,
    "ytick.major.pad": 7,
}


STEPS = [1, 2, 2.5, 5, 10]
LINE = {"a": ACCENT, "b": THIRD, "c": THIRD, "d": INK, "e": ACCENT, "f": INK}
DASHED = "cef"
FILL = (ACCENT, SECOND, THIRD)


def chart_svg(chart: Chart) -> Markup:
    if find_spec("matplotlib") is None:
        return Markup("<p>A chart needs <code>pip install 'posttrain[report]'</code>.</p>")
    match chart:
        case LineChart():
            svg = _drawn(_lines, chart, name=f"{chart.y} over {chart.x}")
        case BarChart():
            svg = _drawn(_bars, chart, name=f"{chart.y} by {chart.x}")
        case IntervalChart():
            height = 52 + 26 * len(chart.rows)
            svg = _drawn(_intervals, chart, name=chart.x, height=height)
    return Markup(svg)  # noqa: S704 - our own drawing


def number(value: float, step: float) -> str:
    """A tick's label with the digits in which it differs from one a step away: 12k, 0.25, 3M."""
    digits = 6
    if value:
        digits = max(digits, math.floor(math.log10(abs(value))) - math.floor(math.log10(step)) + 2)
    sizes = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0.0, 1.0, ""))
    scale, unit = next((scale, unit) for size, scale, unit in sizes if abs(value) >= size)
    return f"{value / scale:.{digits}g}{unit}"


def _lines(axes: Axes, chart: LineChart) -> None:
    """Lines from step 0 on. Points that are not finite are left out."""
    series = [one for one in map(_finite, chart.series) if one.x]
    assert series, "a chart needs at least one point"
    for one in reversed(series):  # the first on top
        axes.plot(
            one.x,
            one.y,
            color=LINE[one.style],
            linestyle=(0, (3, 2.2)) if one.style in DASHED else "solid",
            marker="o" if len(one.x) <= 24 and one.style not in DASHED else "",
            label=one.name,
            gid=titled(one.name),
            clip_on=False,
        )
    level = 0.0 if chart.from_zero else series[0].y[0]
    axes.update_datalim([(0, level)])
    _axes(axes, x=chart.x, y=chart.y)
    _ticks(axes.xaxis, 5, whole=all(x == int(x) for one in series for x in one.x))
    axes.autoscale_view()
    _legend(axes, len(series))


def _finite(one: Series) -> Series:
    points = [(a, b) for a, b in zip(one.x, one.y, strict=True) if math.isfinite(b)]
    return Series(one.name, [a for a, _ in points], [b for _, b in points], one.style)


def _bars(axes: Axes, chart: BarChart) -> None:
    """The first part in the accent colour, the others stacked on it."""
    labels = [label for label, _ in chart.bars]
    slot = 420 / max(len(labels), 1)  # pixels, about
    widest = max(map(len, labels), default=0)
    every = math.ceil((8 * widest + 8) / slot)  # a character needs about 8 pixels
    feet = [0.0] * len(labels)
    layers = zip(*(parts for _, parts in chart.bars), strict=True)
    for part, (colour, heights) in enumerate(zip(FILL, layers, strict=False)):
        patches = axes.bar(
            range(len(labels)),
            heights,
            min(0.82, 64 / slot),
            bottom=feet,
            color=colour,
            label=chart.parts[part] if part < len(chart.parts) else "",
            clip_on=False,
        )
        for patch, label, height in zip(patches, labels, heights, strict=True):
            patch.set_gid(titled(f"{label}: {height:,.0f}"))
        feet = [foot + height for foot, height in zip(feet, heights, strict=True)]
    axes.update_datalim([(0, 0), (0, 0 if max(feet, default=0) else 1)])
    _axes(axes, x=chart.x, y=chart.y, whole=all(foot == int(foot) for foot in feet))
    axes.autoscale_view(scalex=False)
    axes.set_xlim(-0.5, max(len(labels), 1) - 0.5)
    axes.set_xticks(range(0, len(labels), every), labels[::every])
    _legend(axes, len(chart.parts))


def _intervals(axes: Axes, chart: IntervalChart) -> None:
    """One line each, its share written beside it."""
    rows = chart.rows
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
        axes.text(1.03, place, f"{100 * row.share:.1f} %", va="center_baseline", color=INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.tick_params("y", labelcolor=INK)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", clip_on=False)
    axes.set_xlabel(chart.x)


def _axes(axes: Axes, *, x: str, y: str, whole: bool = False) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", clip_on=False)
    _ticks(axes.yaxis, 5, whole=whole)


def _ticks(axis: Axis, most: int, *, whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=STEPS, integer=whole))

    def label(value: float, _: int | None) -> str:
        places = axis.get_majorticklocs()
        return number(value, abs(places[1] - places[0]) if len(places) > 1 else abs(value) or 1.0)

    axis.set_major_formatter(FuncFormatter(label))


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
            ncols=max(1, min(series, 400 // (8 * max(map(len, labels)) + 34))),  # pixels, about
            borderaxespad=0,
            borderpad=0.3,
            handlelength=1.3,
            handleheight=0.8,
        )


def _drawn(
    draw: Callable[[Axes, Any], None], data: object, *, name: str, height: int = HEIGHT
) -> str:
    """The SVG of what `draw` puts on the axes.

    Args:
        data: what is drawn; with the name it makes the ids unique on a page.
        name: what the drawing shows, for those who cannot see it.
        height: in pixels.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    out = io.StringIO()
    salt = hashlib.sha256(repr((name, data)).encode("utf-8", "surrogatepass")).hexdigest()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change our bytes
        matplotlib.rcParams.update(SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = salt
        layout = ConstrainedLayoutEngine(w_pad=2 / 72, h_pad=2 / 72)
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout=layout, frameon=False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes, data)
        figure.savefig(
            out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _inline(out.getvalue(), name)


def titled(text: str) -> str:
    """A group id that becomes the tooltip of what is drawn: `set_gid(titled("≤ 64: 12"))`."""
    return f"{TITLE}{text}"


def _inline(document: str, name: str) -> str:
    """An SVG document of matplotlib's as an element of a page."""
    root = ElementTree.fromstring(document)  # noqa: S314 - written by matplotlib just now
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', document))
    for element in root.iter():
        _clean(element, used)
    for element in list(root):
        if element.find("style") is not None:  # it would apply to the whole page
            root.remove(element)
    # a name may hold text of the data, and surrogates would make the page unwritable
    label = writable(name)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    markup = ElementTree.tostring(root, encoding="unicode")
    for colour, variable in VARIABLES.items():
        markup = markup.replace(colour, f"var(--{variable})")
    return re.sub(r"\s*\n\s*", "", markup)


def _clean(element: ElementTree.Element, used: set[str]) -> None:
    """Tooltips for ids that ask for one; no ids that nothing refers to, and no namespaces."""
    element.tag = element.tag.rpartition("}")[2]
    for key in [key for key in element.attrib if "}" in key]:
        element.attrib[key.rpartition("}")[2]] = element.attrib.pop(key)
    own = element.get("id", "")
    if own not in used:
        element.attrib.pop("id", None)
    if own.startswith(TITLE):
        tooltip = ElementTree.Element("title")
        tooltip.text = own.removeprefix(TITLE)
        element.insert(0, tooltip)
