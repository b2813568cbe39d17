"""Charts show the numbers they are given: read back from the SVG's coordinates."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from posttrain.report import charts
from posttrain.report.charts import VARIABLES, chart_svg
from posttrain.report.html import page_html
from posttrain.report.section import (
    BarChart,
    Interval,
    IntervalChart,
    LineChart,
    Section,
    Series,
)

LINE = [Series("loss", [0, 50, 100], [4.0, 1.0, 2.0])]
STYLE = (Path(charts.__file__).parent / "page.css").read_text()


def lines(series: list[Series], *, from_zero: bool = True) -> str:
    return chart_svg(LineChart(series, "step", "loss", from_zero=from_zero))


def bars(data: list, names: tuple[str, ...] = (), x: str = "x", y: str = "y") -> str:
    return chart_svg(BarChart(data, x, y, parts=names))


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


def test_a_line_goes_where_its_numbers_say():
    svg = lines(LINE)
    ((name, ((x0, y4), (x50, y1), (x100, y2))),) = drawn(svg)
    assert name == "loss"
    assert x50 - x0 == pytest.approx(x100 - x50, abs=0.01)
    assert (y1 - y4) / (y2 - y4) == pytest.approx(3 / 2, abs=0.001)  # up is less y
    ticks = tick_places(svg)
    assert {"step", "loss", "0", "100", "4"} <= set(ticks)
    assert ticks["100"][0] == pytest.approx(x100, abs=0.01)
    assert ticks["1"][1] - ticks["4"][1] == pytest.approx(y1 - y4, abs=0.01)


def test_steps_are_whole_and_a_loss_is_shown_from_where_it_begins():
    svg = lines([Series("loss", [1, 2, 3, 4], [2.31, 2.30, 2.29, 2.28])], from_zero=False)
    numbers = [text for text in tick_places(svg) if re.fullmatch(r"[\d.]+", text)]
    assert {"0", "1", "2", "3", "4"} <= set(numbers)
    assert [text for text in numbers if "." in text and float(text) < 2] == []
    ((_, points),) = drawn(svg)
    assert max(y for _, y in points) - min(y for _, y in points) > 80


def test_points_that_are_not_finite_are_left_out_and_extremes_survive_thinning():
    nan = float("nan")
    ((_, points),) = drawn(lines([Series("loss", [1, 2, 3], [4.0, nan, 2.0])]))
    assert len(points) == 2
    spiked = [1.0 + 0.001 * (k % 3) for k in range(20_000)]
    spiked[7_001] = 9.0
    svg = lines([Series("loss", range(20_000), spiked)])
    ((_, points),) = drawn(svg)
    assert len(points) < 5_000
    top, flat = min(y for _, y in points), max(y for _, y in points)
    axis = tick_places(svg)
    unit = (axis["0"][1] - axis["10"][1]) / 10
    assert flat - top == pytest.approx(8 * unit, rel=0.02)


def test_stacked_bars_have_the_heights_of_their_parts():
    svg = bars([("a", [30, 10]), ("b", [0, 20])], names=("p", "<b>$x^2$&"), x="<i>", y="&")
    assert "<b>" not in svg  # labels are text, no markup and no mathematics
    spans = {name: (max(y for _, y in c), min(y for _, y in c)) for name, c in drawn(svg)}
    assert set(spans) == {"a: 30", "b: 0", "a: 10", "b: 20"}
    (foot, top), (foot_2, top_2) = spans["a: 30"], spans["a: 10"]
    assert foot - top == pytest.approx(3 * (foot_2 - top_2), abs=0.01)
    assert top == pytest.approx(foot_2, abs=0.01)
    assert spans["b: 0"][0] == spans["b: 0"][1] == foot
    assert {"a", "b", "p", "<b>$x^2$&", "<i>", "&"} <= set(tick_places(svg))


def test_intervals_keep_their_order_and_their_place():
    rows = [Interval("on", 0.5, 0.6, 0.7), Interval("off", 0.0, 0.0, 0.1, "b")]
    svg = chart_svg(IntervalChart(rows, "c"))
    (on, ((on_x, on_y),)), (off, ((off_x, off_y),)) = drawn(svg)
    assert (on, off) == ("on: 60.0 %", "off: 0.0 %")
    places = tick_places(svg)
    assert on_y < off_y
    assert off_x == pytest.approx(places["0 %"][0], abs=0.01)
    whole = places["100 %"][0] - places["0 %"][0]
    assert on_x - places["0 %"][0] == pytest.approx(0.6 * whole, abs=0.01)


def test_long_names_leave_room_for_what_is_drawn():
    label = "nemotron-3-nano-after-dpo, gpqa_diamond, with_tools, reasoning on"
    (text,) = (t for t in tick_places(chart_svg(IntervalChart([Interval(label, 0, 0.5, 1)], "c")))
               if t.startswith("nemotron"))  # fmt: skip
    assert len(text) < 46
    assert text.endswith(", reasoning on")
    one, six = (
        lines([Series(f"runs/experiment-of-november-{k}", [0, 1], [1, k], "a") for k in range(n)])
        for n in (1, 6)
    )
    high = [tick_places(svg)["0"][1] - tick_places(svg)["1"][1] for svg in (one, six)]
    assert high[1] * 6 > high[0]  # six lines of keys take nothing from the axes


def test_the_page_gives_the_colours():
    pair = [LINE[0], Series("off", [0, 100], [1, 1], "c")]
    for svg in (lines(pair), bars([("a", [1, 2, 3])])):
        assert re.findall(r"#[0-9a-f]{6}", svg) == []
        assert "<style" not in svg
        used = set(re.findall(r"var\(--(\w+)\)", svg))
        assert {"accent", "muted", "rule", "third"} <= used <= set(VARIABLES.values())
    for name in VARIABLES.values():
        assert STYLE.count(f"--{name}:") == 2  # light and dark


def test_the_same_bytes_in_another_process_whatever_matplotlib_is_set_to(tmp_path):
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    code = (
        "from posttrain.report.charts import *; from posttrain.report.section import *;"
        "print(chart_svg(LineChart([Series('loss', [0, 50, 100], [4.0, 1.0, 2.0])], 'step', 'loss')))"
    )
    fonts = {"MPLCONFIGDIR": matplotlib.get_configdir(), "PYTHONHASHSEED": "1"}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"MATPLOTLIBRC": str(tmp_path), **fonts},
    )  # fmt: skip
    before = dict(matplotlib.rcParams)
    assert other.stdout.strip() == lines(LINE)
    assert dict(matplotlib.rcParams) == before


def test_lines_of_one_label_are_a_group_below_what_their_styles_mean():
    rows = [
        Interval(task, share - 0.1, share, share + 0.1, style)
        for task, shares in (("all", (0.3, 0.6)), ("maths", (0.2, 0.8)))
        for style, share in zip("ba", shares, strict=True)
    ]
    svg = chart_svg(IntervalChart(rows, "x", keys={"b": "sft", "a": "dpo"}))
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert [text for text in texts if text in ("all", "maths")] == ["all", "maths"]
    assert {"● sft", "● dpo"} < set(texts)
    places = [y for _, [(_, y)] in (dot for dot in drawn(svg) if len(dot[1]) == 1)]
    steps = [after - before for before, after in itertools.pairwise(places)]
    assert steps[0] == pytest.approx(steps[2], abs=0.01)
    assert steps[0] < steps[1]
    titles = re.findall("<title>(.*?): .*?</title>", svg)
    assert titles == ["sft, all", "dpo, all", "sft, maths", "dpo, maths"]


def test_every_chart_of_a_page_has_a_title_and_shares_are_per_cent():
    caption = "Rollouts cut off by a limit. Few are good."
    chart = LineChart([Series("truncated", [1, 2], [0.0, 0.5])], "step", "share", caption)
    page = page_html([Section("S", [chart])], title="t")
    assert "<h3>Rollouts cut off by a limit</h3><svg" in page
    assert "<figcaption>Few are good.</figcaption>" in page
    assert re.search(r"<text[^>]*>40 %</text>", page)


def test_names_stand_beside_the_shares_where_styles_would_repeat():
    rows = [Interval("all", 0.1, 0.2, 0.3, "a", name=f"policy {k}") for k in range(6)]
    chart = IntervalChart(rows, "x")
    svg = chart_svg(chart)
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert texts.count("all") == 1
    assert [text for text in texts if text.startswith("policy")] == [row.name for row in rows]
    assert re.findall("<title>(.*?): .*?</title>", svg) == [f"policy {k}, all" for k in range(6)]
    # eight pixels a character, within the drawing
    assert tick_places(svg)["policy 5"][0] + 8 * len("policy 5") <= charts.WIDTH
