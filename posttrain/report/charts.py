"""The report's charts as inline SVG that takes the page's colours and font; bars are in `bars`.

    chart_svg(LineChart([Series("loss", [10, 20], [3.1, 2.2])], x="step", y="loss"))  →  "<svg …>"

matplotlib draws lines and intervals; it is imported for the first of them, never by importing the
report. A drawing uses only the colours below; each becomes a variable of the style sheet, so it
follows the page into dark mode. Every chart has one width, at which its text can be read on a
telephone too. Ticks and margins are set here: matplotlib's own layout draws everything twice.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from posttrain.jsontext import writable
from posttrain.report.bars import CHARACTER, HEIGHT, STEPS, WIDTH, bar_chart_svg, tick_label
from posttrain.report.section import BarChart, Chart, IntervalChart, LineChart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 26  # pixels of a line of intervals
# stand-ins that no drawing of ours uses for anything else → the style sheet's variables
_NAMES = ("ink", "muted", "rule", "accent", "second", "third")
VARIABLES = {f"#f00d0{k}": name for k, name in enumerate(_NAMES, 1)}
INK, MUTED, RULE, ACCENT, SECOND, THIRD = VARIABLES
TITLE = "title: "  # begins a group's id that becomes the tooltip of what is drawn
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",  # comes with matplotlib: text is measured alike everywhere
    "font.size": 13,
    "text.parse_math": False,
    "text.color": MUTED,
    "axes.edgecolor": THIRD,
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
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
LINE = {"a": ACCENT, "b": THIRD, "c": THIRD, "d": INK, "e": ACCENT, "f": INK}
DASHED = "cef"
SHARE = "share"  # of a y axis: its labels are per cent
Ticks = tuple[Sequence[float], Sequence[str]]  # places and labels


def chart_svg(chart: Chart) -> Markup:
    if isinstance(chart, BarChart):
        return bar_chart_svg(chart)
    if find_spec("matplotlib") is None:
        return Markup("<p>A chart needs <code>pip install 'posttrain[report]'</code>.</p>")
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    height = _interval_height(chart) if isinstance(chart, IntervalChart) else HEIGHT
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change our bytes
        # ids are unique on a page, the same for the same chart
        salt = hashlib.sha256(repr(chart).encode("utf-8", "surrogatepass")).hexdigest()
        matplotlib.rcParams.update({**SETTINGS, "svg.hashsalt": salt})
        axes = Figure((WIDTH / 72, height / 72), frameon=False).add_axes((0, 0, 1, 1))
        axes.patch.set_visible(False)
        match chart:
            case LineChart():
                _lines(axes, chart)
            case IntervalChart():
                _intervals(axes, chart, height)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(axes.get_figure(root=True)).print_svg(out, metadata=metadata)
    name = chart.x if isinstance(chart, IntervalChart) else f"{chart.y} by {chart.x}"
    return Markup(_inline(out.getvalue(), name))  # noqa: S704 - our own drawing


def _ticks(values: Sequence[float], *, whole: bool = False) -> Ticks:
    """Round places that enclose the values."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(5, steps=list(STEPS), integer=whole)
    places = locator.tick_values(*locator.nonsingular(min(values), max(values)))
    return places, [tick_label(place, places[1] - places[0]) for place in places]


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
            gid=f"{TITLE}{one.name}",
            clip_on=False,
        )
    steps = [0.0, *(x for one in series for x in one.x)]
    level = 0.0 if chart.from_zero else series[0].y[0]
    x = _ticks(steps, whole=all(step == int(step) for step in steps))
    y = _ticks([level, *(y for one in series for y in one.y)])
    if chart.y == SHARE:
        y = y[0], [f"{100 * place:.6g} %" for place in y[0]]
    axes.set_xlim(x[0][0], x[0][-1])
    _frame(axes, chart, x, y, [one.name for one in series])


def _finite(one: Series) -> Series:
    points = [(a, b) for a, b in zip(one.x, one.y, strict=True) if math.isfinite(b)]
    return Series(one.name, [a for a, _ in points], [b for _, b in points], one.style)


def _frame(axes: Axes, chart: LineChart, x: Ticks, y: Ticks, keys: Sequence[str]) -> None:
    """Ticks, titles, room for both, and keys above where there is more than one thing."""
    axes.set_xticks(*x)
    axes.set_yticks(*y)
    axes.set_ylim(y[0][0], y[0][-1])
    axes.grid(axis="y", clip_on=False)
    left, top, height = 34 + CHARACTER * max(map(len, y[1])), 10, HEIGHT
    if len(keys) > 1:
        columns = max(1, min(len(keys), 400 // (CHARACTER * max(map(len, keys)) + 34)))
        lines = math.ceil(len(keys) / columns)
        top, height = top + 24 * lines, HEIGHT + 24 * (lines - 1)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.set_size_inches(WIDTH / 72, height / 72)
        handles, labels = axes.get_legend_handles_labels()
        order = slice(None, None, -1)
        axes.legend(
            handles[order],
            labels[order],
            loc="lower left",
            bbox_to_anchor=(0, 1.02),
            ncols=columns,
            borderaxespad=0,
            borderpad=0.3,
            handlelength=1.3,
            handleheight=0.8,
        )
    _place(axes, left, 18, top, 52, height)
    text = axes.figure.text
    text((left / WIDTH + 1) / 2, 6 / height, chart.x, ha="center")
    side: dict[str, Any] = {"rotation": "vertical", "rotation_mode": "anchor", "va": "top"}
    text(6 / WIDTH, (height - top + 52) / 2 / height, chart.y, ha="center", **side)


def _place(axes: Axes, left: int, right: int, top: int, bottom: int, height: int) -> None:
    """The axes within so many pixels of the drawing's edges."""
    size = ((WIDTH - left - right) / WIDTH, (height - top - bottom) / height)
    axes.set_position((left / WIDTH, bottom / height, *size))


def _intervals(axes: Axes, chart: IntervalChart, height: int) -> None:
    """One line each, its share written beside it; a group's label stands at its first line."""
    labels = [_short(row.label) for row in chart.rows]
    places = _interval_places(chart)
    for place, row, label in zip(places, chart.rows, labels, strict=True):
        colour, share = LINE[row.style], f"{100 * row.share:.1f} %"
        axes.plot(
            [row.low, row.high],
            [place, place],
            color=colour,
            alpha=0.45,
            linewidth=5,
            solid_capstyle="butt",
            clip_on=False,
        )
        (dot,) = axes.plot(row.share, place, "o", color=colour, markersize=8, clip_on=False)
        named = f"{chart.keys[row.style]}, {label}" if row.style in chart.keys else label
        dot.set_gid(f"{TITLE}{named}: {share}")
        axes.text(1.03, place, share, va="center_baseline", color=INK)
    firsts = [k for k in range(len(labels)) if not k or labels[k] != labels[k - 1]]
    axes.set_xlim(0, 1)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_yticks([places[k] for k in firsts], [labels[k] for k in firsts])
    axes.tick_params("y", labelcolor=INK)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", clip_on=False)
    left = max(54, min(WIDTH * 2 // 3, CHARACTER * max(map(len, labels)) + 10))
    _place(axes, left, 70, 4 + _key_height(chart), 48, height)
    axes.figure.text((left + WIDTH - 70) / WIDTH / 2, 6 / height, chart.x, ha="center")
    x = left / WIDTH
    for style, name in chart.keys.items():
        named = f"● {_short(name, 24)}"
        axes.figure.text(x, 1 - 16 / height, named, color=LINE[style])
        x += (CHARACTER * len(named) + 14) / WIDTH


def _interval_places(chart: IntervalChart) -> list[float]:
    """Where each line stands: a whole line apart, closer within a group."""
    apart = 1.1 if chart.keys else 1.0
    places: list[float] = []
    for number, row in enumerate(chart.rows):
        if not number:
            places.append(0.0)
            continue
        together = chart.rows[number - 1].label == row.label
        places.append(places[-1] + (0.7 if together else apart))
    return places


def _key_height(chart: IntervalChart) -> int:
    return 22 if chart.keys else 0


def _interval_height(chart: IntervalChart) -> int:
    return 52 + _key_height(chart) + round(ROW * (_interval_places(chart)[-1] + 1))


def _short(label: str, most: int = 42) -> str:
    """A label that has room beside the intervals: its beginning and its end."""
    return label if len(label) <= most else f"{label[: most // 2]}…{label[1 - most // 2 :]}"


def _inline(document: str, name: str) -> str:
    """An SVG document of matplotlib's as an element of a page; `name` is for who cannot see it."""
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
