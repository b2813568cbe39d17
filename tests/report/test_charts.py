"""Charts show the numbers they are given: read back from the SVG's coordinates."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest

from posttrain.report.charts import Bar, Interval, Series, bars, intervals, lines, number, spark
from posttrain.report.inline_svg import VARIABLES
from posttrain.report.style import STYLE

LINE = [Series("loss", [0, 50, 100], [4.0, 1.0, 2.0])]


def drawn(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """Each tooltip with the corners of the path it is of, or the places of its dots."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own output
    found = []
    for group in root.iter("g"):
        title = group.find("title")
        if title is not None and (path := group.find("path")) is not None:
            pairs = re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path.attrib["d"])
            found.append((title.text or "", [(float(x), float(y)) for x, y in pairs]))
        elif title is not None:
            uses = [(float(use.attrib["x"]), float(use.attrib["y"])) for use in group.iter("use")]
            found.append((title.text or "", uses))
    return found


def tick_places(svg: str) -> dict[str, tuple[float, float]]:
    """Where each text of a drawing stands."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own output
    return {t.text or "": (float(t.attrib["x"]), float(t.attrib["y"])) for t in root.iter("text")}


def test_tick_labels_are_short():
    values = (0, 0.25, 0.1 + 0.2, 5000, 12000, 3e6, 2.5e9)
    assert [number(v) for v in values] == ["0", "0.25", "0.3", "5000", "12k", "3M", "2.5G"]


def test_a_line_goes_where_its_numbers_say():
    svg = lines(LINE, x="step", y="loss")
    ((name, ((x0, y4), (x50, y1), (x100, y2))),) = drawn(svg)
    assert name == "loss"
    assert x50 - x0 == pytest.approx(x100 - x50, abs=0.01)
    assert (y1 - y4) / (y2 - y4) == pytest.approx(3 / 2, abs=0.001)  # up is less y
    ticks = tick_places(svg)
    assert {"step", "loss", "0", "100", "4"} <= set(ticks)
    assert ticks["100"][0] == pytest.approx(x100, abs=0.01)
    assert ticks["1"][1] - ticks["4"][1] == pytest.approx(y1 - y4, abs=0.01)


@pytest.mark.parametrize(("x", "y"), [([7], [3.0]), ([0], [0.0]), ([1, 2], [1e-9, 2e-9]), ([5, 900], [-2.0, 8e9])])  # fmt: skip
def test_both_axes_begin_at_zero_or_below_it(x: list[float], y: list[float]):
    svg = lines([Series("s", x, y)], x="step", y="loss")
    assert "0" in tick_places(svg)
    ((_, points),) = drawn(svg)
    assert len(points) == len(x)


def test_points_that_are_not_finite_are_left_out_and_extremes_survive_thinning():
    nan = float("nan")
    ((_, points),) = drawn(lines([Series("loss", [1, 2, 3], [4.0, nan, 2.0])], x="step", y="loss"))
    assert len(points) == 2
    spiked = [1.0 + 0.001 * (k % 3) for k in range(20_000)]
    spiked[7_001] = 9.0
    svg = lines([Series("loss", range(20_000), spiked)], x="step", y="loss")
    ((_, points),) = drawn(svg)
    assert len(points) < 5_000
    top, flat = min(y for _, y in points), max(y for _, y in points)
    axis = tick_places(svg)
    unit = (axis["0"][1] - axis["10"][1]) / 10
    assert flat - top == pytest.approx(8 * unit, rel=0.02)


def test_stacked_bars_have_the_heights_of_their_parts():
    svg = bars([Bar("a", [30, 10]), Bar("b", [0, 20])], names=("p", "q"), x="x", y="y")
    spans = {name: (max(y for _, y in c), min(y for _, y in c)) for name, c in drawn(svg)}
    assert set(spans) == {"a: 30", "b: 0", "a: 10", "b: 20"}
    (foot, top), (foot_2, top_2) = spans["a: 30"], spans["a: 10"]
    assert foot - top == pytest.approx(3 * (foot_2 - top_2), abs=0.01)
    assert top == pytest.approx(foot_2, abs=0.01)
    assert spans["b: 0"][0] == spans["b: 0"][1] == foot
    assert {"a", "b", "p", "q", "x", "y"} <= set(tick_places(svg))


def test_many_bars_are_all_drawn_and_labelled_as_there_is_room():
    svg = bars([Bar(f"bin {k}", [k]) for k in range(100)], x="x", y="y")
    assert len(drawn(svg)) == 100
    labels = [text for text in tick_places(svg) if text.startswith("bin")]
    assert 5 <= len(labels) <= 20
    assert bars([Bar("a", [0])], x="x", y="y")


def test_intervals_keep_their_order_and_their_place():
    svg = intervals([Interval("on", 0.5, 0.6, 0.7), Interval("off", 0.0, 0.0, 0.1, "b")], x="c")
    (on, ((on_x, on_y),)), (off, ((off_x, off_y),)) = drawn(svg)
    assert (on, off) == ("on: 60.0 %", "off: 0.0 %")
    places = tick_places(svg)
    assert on_y < off_y
    assert off_x == pytest.approx(places["0 %"][0], abs=0.01)
    whole = places["100 %"][0] - places["0 %"][0]
    assert on_x - places["0 %"][0] == pytest.approx(0.6 * whole, abs=0.01)


def test_labels_are_text_and_not_markup_or_mathematics():
    svg = bars([Bar("<b>$x^2$&", [1])], x="<i>", y="&")
    assert {"<b>$x^2$&", "<i>", "&"} <= set(tick_places(svg))
    assert "<b>" not in svg


def test_a_spark_needs_a_finite_value():
    assert spark("s", [float("nan")], highest=1.0) == ""
    assert spark("s", [0.0], highest=0.0) == ""
    assert drawn(spark("s", [1.0], highest=1.0)) == []


def test_the_page_gives_the_colours():
    pair = [LINE[0], Series("off", [0, 100], [1, 1], "c")]
    for svg in (lines(pair, x="step", y="loss"), bars([Bar("a", [1, 2, 3])], x="x", y="y")):
        assert re.findall(r"#[0-9a-f]{6}", svg) == []
        assert "<style" not in svg
        used = set(re.findall(r"var\(--(\w+)\)", svg))
        assert {"accent", "muted", "rule", "third"} <= used <= set(VARIABLES.values())
    for name in VARIABLES.values():
        assert STYLE.count(f"--{name}:") == 2  # light and dark


def test_two_charts_share_no_ids_and_every_reference_resolves():
    first = lines(LINE, x="step", y="loss")
    second = lines([Series("loss", [0, 50], [4.0, 1.0])], x="step", y="loss")
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for own, svg in zip(ids, (first, second), strict=True):
        assert own == set(re.findall(r'href="#([^"]+)"', svg))


def test_the_same_bytes_in_another_process_whatever_matplotlib_is_set_to(tmp_path):
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    code = (
        "from posttrain.report.charts import *;"
        "print(lines([Series('loss', [0, 50, 100], [4.0, 1.0, 2.0])], x='step', y='loss'))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "MATPLOTLIBRC": str(tmp_path),
            "MPLCONFIGDIR": matplotlib.get_configdir(),
            "PYTHONHASHSEED": "1",
        },
    )
    before = dict(matplotlib.rcParams)
    assert other.stdout.strip() == lines(LINE, x="step", y="loss")
    assert dict(matplotlib.rcParams) == before
