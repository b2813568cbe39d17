"""Charts show the numbers they are given: read back from the SVG's coordinates."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.report.charts import (
    MOST_POINTS,
    Bar,
    Interval,
    Series,
    bars,
    intervals,
    lines,
    number,
    spark,
    ticks,
)

SPAN = st.floats(-1e9, 1e9, allow_nan=False)


def drawing(svg: str) -> ElementTree.Element:
    """The SVG, parsed strictly; a legend before it is cut off."""
    return ElementTree.fromstring(svg[svg.index("<svg") :])  # noqa: S314 - our own output


def path_points(root: ElementTree.Element, style: str) -> list[tuple[float, float]]:
    (path,) = [p for p in root.iter("path") if p.get("class") == f"line {style}"]
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.-]+) ([\d.-]+)", path.get("d"))]


@given(SPAN, SPAN)
def test_ticks_cover_the_values_in_equal_round_steps(a, b):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 9
    steps = [second - first for first, second in itertools.pairwise(found)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3, abs=1e-9)


def test_tick_labels_are_short():
    assert [number(v) for v in (0, 0.25, 5000, 12000, 3e6, 2.5e9)] == [
        "0",
        "0.25",
        "5000",
        "12k",
        "3M",
        "2.5G",
    ]


def test_a_line_goes_where_its_numbers_say():
    root = drawing(lines([Series("loss", [0, 50, 100], [4.0, 1.0, 2.0])], x="step", y="loss"))
    (x0, y4), (x50, y1), (x100, y2) = path_points(root, "a")
    assert x50 - x0 == pytest.approx(x100 - x50, abs=0.2)
    assert (y1 - y4) / (y2 - y4) == pytest.approx(3 / 2, abs=0.02)  # up is less y


def test_points_that_are_not_finite_are_left_out_and_many_are_thinned():
    nan = float("nan")
    root = drawing(lines([Series("loss", [1, 2, 3], [4.0, nan, 2.0])], x="step", y="loss"))
    assert len(path_points(root, "a")) == 2
    many = Series("loss", range(10_000), [1.0] * 9_999 + [7.0])
    points = path_points(drawing(lines([many], x="step", y="loss")), "a")
    assert len(points) <= MOST_POINTS + 1
    assert points[-1][1] < points[0][1]  # the last point is kept


def test_stacked_bars_have_the_heights_of_their_parts():
    root = drawing(bars([Bar("a", [30, 10]), Bar("b", [0, 20])], names=("x", "y"), x="x", y="y"))
    rects = [(r.get("class"), float(r.get("y")), float(r.get("height"))) for r in root.iter("rect")]
    (_, bottom_y, bottom), (_, top_y, top), _, (_, _, other) = rects
    assert bottom == pytest.approx(3 * top, abs=0.3)
    assert other == pytest.approx(2 * top, abs=0.3)
    assert top_y + top == pytest.approx(bottom_y, abs=0.2)


def test_intervals_keep_their_order_and_their_place():
    rows = [Interval("on", 0.5, 0.6, 0.7), Interval("off", 0.0, 0.0, 0.1, "b")]
    root = drawing(intervals(rows, x="correct"))
    on, off = [float(c.get("cx")) for c in root.iter("circle")]
    grid = [float(p.get("d")[1:].split()[0]) for p in root.iter("path") if "V" in p.get("d")]
    assert off == pytest.approx(grid[0], abs=0.1)
    assert on == pytest.approx(grid[0] + 0.6 * (grid[-1] - grid[0]), abs=0.2)


def test_labels_are_escaped():
    svg = bars([Bar("<b>&", [1])], x="<i>", y="&")
    assert drawing(svg) is not None
    assert "<b>" not in svg


def test_a_spark_needs_a_finite_value():
    assert spark([float("nan")], highest=1.0) == ""
    assert drawing(spark([1.0], highest=1.0)) is not None
