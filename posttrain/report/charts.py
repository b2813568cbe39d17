"""Charts of the report as inline SVG in the page's colours and font; bars are drawn by `bars`.

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
from dataclasses import replace
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
LINE = {"a": ACCENT, "b": THIRD, "c": THIRD, "d": INK, "e": ACCENT, "f": INK}  # by style
DASHED = "cef"  # styles
SHARE = "share"  # title of a y axis whose labels are per cent
_SHARE_GAP = 10  # pixels between a plot and the shares beside it
_SHARE_WIDTH = 70  # pixels of a written share
_MAX_NAME = 14  # characters of a name beside it
_MAX_DOTTED_POINTS = 24  # of a line: more dots than that would run into each other
Ticks = tuple[Sequence[float], Sequence[str]]  # positions and labels


def chart_svg(chart: Chart) -> Markup:
    """Draw a chart as an SVG element; without matplotlib, the text that asks for it."""
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
                _draw_lines(axes, chart)
            case IntervalChart():
                _draw_intervals(axes, chart, height)
        # a date would change the bytes of each drawing
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(axes.get_figure(root=True)).print_svg(out, metadata=metadata)
    name = chart.x if isinstance(chart, IntervalChart) else f"{chart.y} by {chart.x}"
    return Markup(_inline_svg(out.getvalue(), name))  # noqa: S704 - our own drawing


def _round_ticks(values: Sequence[float], *, integer: bool = False) -> Ticks:
    """Ticks at round numbers that enclose the values."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(5, steps=list(STEPS), integer=integer)
    positions = locator.tick_values(*locator.nonsingular(min(values), max(values)))
    step = positions[1] - positions[0]
    return positions, [tick_label(position, step) for position in positions]


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    """Draw lines from step 0 on, without points that are not finite."""
    drawn_series = [series for series in map(_finite_points, chart.series) if series.x]
    assert drawn_series, "a chart needs at least one point"
    for series in reversed(drawn_series):  # the first is drawn last, so on top
        dashed = series.style in DASHED
        dotted = len(series.x) <= _MAX_DOTTED_POINTS and not dashed
        axes.plot(
            series.x,
            series.y,
            color=LINE[series.style],
            linestyle=(0, (3, 2.2)) if dashed else "solid",
            marker="o" if dotted else "",
            label=series.name,
            gid=f"{TITLE}{series.name}",
            clip_on=False,
        )
    steps = [0.0]
    levels = [0.0 if chart.from_zero else drawn_series[0].y[0]]
    for series in drawn_series:
        steps += series.x
        levels += series.y
    x = _round_ticks(steps, integer=all(step == int(step) for step in steps))
    y = _round_ticks(levels)
    if chart.y == SHARE:
        shares, _ = y
        y = (shares, [f"{100 * share:.6g} %" for share in shares])
    x_positions, _ = x
    axes.set_xlim(x_positions[0], x_positions[-1])
    _draw_frame(axes, chart, x, y, [series.name for series in drawn_series])


def _finite_points(series: Series) -> Series:
    """Series without the points whose value is not finite, such as a diverged loss."""
    points = [point for point in zip(series.x, series.y, strict=True) if math.isfinite(point[1])]
    return Series(series.name, [x for x, _ in points], [y for _, y in points], series.style)


def _draw_frame(axes: Axes, chart: LineChart, x: Ticks, y: Ticks, keys: Sequence[str]) -> None:
    """Draw ticks and titles beside the lines, and keys above them where there are several."""
    axes.set_xticks(*x)
    axes.set_yticks(*y)
    y_positions, y_labels = y
    axes.set_ylim(y_positions[0], y_positions[-1])
    axes.grid(axis="y", clip_on=False)
    left_margin = 34 + CHARACTER * max(map(len, y_labels))
    top_margin = 10
    bottom_margin = 52
    height = HEIGHT
    if len(keys) > 1:
        columns = max(1, min(len(keys), 400 // (CHARACTER * max(map(len, keys)) + 34)))
        lines = math.ceil(len(keys) / columns)
        top_margin += 24 * lines
        height += 24 * (lines - 1)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.set_size_inches(WIDTH / 72, height / 72)
        # lines were drawn in reverse, so that the first is on top
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1],
            labels[::-1],
            loc="lower left",
            bbox_to_anchor=(0, 1.02),
            ncols=columns,
            borderaxespad=0,
            borderpad=0.3,
            handlelength=1.3,
            handleheight=0.8,
        )
    _set_margins(axes, left_margin, 18, top_margin, bottom_margin, height)
    text = axes.figure.text
    text((left_margin / WIDTH + 1) / 2, 6 / height, chart.x, ha="center")
    vertical: dict[str, Any] = {"rotation": "vertical", "rotation_mode": "anchor", "va": "top"}
    middle = (height - top_margin + bottom_margin) / 2 / height
    text(6 / WIDTH, middle, chart.y, ha="center", **vertical)


def _set_margins(axes: Axes, left: int, right: int, top: int, bottom: int, height: int) -> None:
    """Leave margins, in pixels, between the axes and the edges of a drawing of a given height."""
    width_share = (WIDTH - left - right) / WIDTH
    height_share = (height - top - bottom) / height
    axes.set_position((left / WIDTH, bottom / height, width_share, height_share))


def _draw_intervals(axes: Axes, chart: IntervalChart, height: int) -> None:
    """Draw a line for each interval, its share beside it; a group's label is at its first line."""
    labels = [_shortened_label(row.label) for row in chart.rows]
    positions = _interval_positions(chart)
    left_margin = max(54, min(WIDTH * 2 // 3, CHARACTER * max(map(len, labels)) + 10))
    longest_name = min(_MAX_NAME, max(len(row.name) for row in chart.rows))
    right_margin = _SHARE_GAP + _SHARE_WIDTH + CHARACTER * longest_name
    plot_width = WIDTH - left_margin - right_margin
    for position, row, label in zip(positions, chart.rows, labels, strict=True):
        colour = LINE[row.style]
        share = f"{100 * row.share:.1f} %"
        axes.plot(
            [row.low, row.high],
            [position, position],
            color=colour,
            alpha=0.45,
            linewidth=5,
            solid_capstyle="butt",
            clip_on=False,
        )
        (dot,) = axes.plot(row.share, position, "o", color=colour, markersize=8, clip_on=False)
        dot.set_gid(f"{TITLE}{chart.full_label(replace(row, label=label))}: {share}")
        share_at = 1 + _SHARE_GAP / plot_width
        axes.text(share_at, position, share, va="center_baseline", color=INK)
        if row.name:
            name = _shortened_label(row.name, _MAX_NAME)
            place = share_at + _SHARE_WIDTH / plot_width
            axes.text(place, position, name, va="center_baseline", color=colour)
    # the first line of each group, whose label would otherwise be repeated
    labelled = [k for k in range(len(labels)) if not k or labels[k] != labels[k - 1]]
    axes.set_xlim(0, 1)
    axes.set_ylim(positions[-1] + 0.6, -0.6)  # from above to below
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_yticks([positions[k] for k in labelled], [labels[k] for k in labelled])
    axes.tick_params("y", labelcolor=INK)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", clip_on=False)
    _set_margins(axes, left_margin, right_margin, 4 + _key_height(chart), 48, height)
    middle = (left_margin + WIDTH - right_margin) / WIDTH / 2
    axes.figure.text(middle, 6 / height, chart.x, ha="center")
    x = left_margin / WIDTH
    for style, meaning in chart.keys.items():
        key = f"● {_shortened_label(meaning, 24)}"
        axes.figure.text(x, 1 - 16 / height, key, color=LINE[style])
        x += (CHARACTER * len(key) + 14) / WIDTH


def _interval_positions(chart: IntervalChart) -> list[float]:
    """Vertical position of each interval, in lines from the top; those of a group are closer."""
    several_lines = chart.keys or chart.rows[0].name
    distance = 1.1 if several_lines else 1.0
    positions: list[float] = []
    for number, row in enumerate(chart.rows):
        if not number:
            positions.append(0.0)
            continue
        same_group = chart.rows[number - 1].label == row.label
        positions.append(positions[-1] + (0.7 if same_group else distance))
    return positions


def _key_height(chart: IntervalChart) -> int:
    return 22 if chart.keys else 0


def _interval_height(chart: IntervalChart) -> int:
    """Height in pixels of a chart of intervals."""
    lines = _interval_positions(chart)[-1] + 1
    return 52 + _key_height(chart) + round(ROW * lines)


def _shortened_label(label: str, max_characters: int = 42) -> str:
    """Beginning and end of a label that is longer than the room for it."""
    if len(label) <= max_characters:
        return label
    half = max_characters // 2
    return f"{label[:half]}…{label[1 - half :]}"


def _inline_svg(document: str, name: str) -> str:
    """Turn an SVG document of matplotlib into an element of a page.

    Args:
        name: text for those who cannot see the drawing.
    """
    root = ElementTree.fromstring(document)  # noqa: S314 - written by matplotlib just now
    referenced_ids = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', document))
    for element in root.iter():
        _clean_element(element, referenced_ids)
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


def _clean_element(element: ElementTree.Element, referenced_ids: set[str]) -> None:
    """Remove namespaces and unused ids; an id that begins with `TITLE` becomes a tooltip."""
    element.tag = element.tag.rpartition("}")[2]
    for key in [key for key in element.attrib if "}" in key]:
        element.attrib[key.rpartition("}")[2]] = element.attrib.pop(key)
    element_id = element.get("id", "")
    if element_id not in referenced_ids:
        element.attrib.pop("id", None)
    if element_id.startswith(TITLE):
        tooltip = ElementTree.Element("title")
        tooltip.text = element_id.removeprefix(TITLE)
        element.insert(0, tooltip)
