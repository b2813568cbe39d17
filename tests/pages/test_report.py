"""The report: self-contained, the same bytes every time, and nothing in it that is not known."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from posttrain.config.base import Strict
from posttrain.errors import DataError
from posttrain.pages.evaluation import before_and_after
from posttrain.pages.sft_data import lengths, mixture
from posttrain.pages.write import show_finished, write_report
from posttrain.report.console import open_console, print_sections
from posttrain.report.html import page_html
from posttrain.report.section import IntervalChart, Section, Table, TableCell
from posttrain.runner import run_data_stage
from posttrain.runs import Counts, Run, read_artifact
from tests.pages.conftest import write_checkpoint
from tests.pages.reading import Reader, cells, page_of, section, sections


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    """The report of the checkpoint."""
    return page_of(finished / "sft")


@pytest.fixture(scope="module")
def data_page(finished: Path) -> str:
    return page_of(finished / "sft_data")


def test_a_page_keeps_to_its_stage_and_leads_to_its_parents(finished, data_page, page):
    reader = Reader(page)
    assert reader.loads == []
    assert set(reader.links) == {"../sft_data/report.html"}
    assert set(Reader(data_page).links) == set()  # the world was written without a page
    assert not {"url(", "@import"} & set(re.findall(r"url\(|@import", page))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) >= len(sections(page))
    assert sections(page) == ["Training", "Speed", "Counts", "Provenance"]
    assert sections(data_page) == [
        "Mixture", "Drops by source", "Sources", "Lengths", "Reasoning control", "Packing",
        "Supervision", "Worst offenders", "Sample conversations", "Counts", "Provenance",
    ]  # fmt: skip
    for folder in ("sft", "sft_data", "world"):
        assert read_artifact(finished / folder).digest in page
    for svg in re.findall(r"<svg.*?</svg>", page):
        ElementTree.fromstring(svg)  # noqa: S314 - our own output


def test_numbers_are_the_manifests(finished, data_page):
    page = data_page
    manifest = read_artifact(finished / "sft_data")
    maths, total = manifest.stats["sources"]["maths"], manifest.counts
    mixture = cells(page, "maths")
    for value in (maths["realised"]["rows"], maths["realised"]["tokens"]):
        assert f"{value:,}" in mixture
    assert f"{maths['requested']['amount']:,.0f} tokens (50.0 %)" in mixture
    counts = section(page, "Counts")
    assert f'<td class="n">{total.rows_in:,}</td>' in counts
    for reason, number in total.dropped.items():
        row = rf'dropped: {reason}</td><td class="n">{number:,}</td>'
        assert not number or re.search(row, counts)
    drops = section(page, "Drops by source")
    assert cells(drops, "all")[1:3] == [f"{v:,}" for v in (total.rows_in, total.kept)]


def test_lengths_and_budgets_are_drawn_in_full(finished, data_page):
    page = data_page
    histograms = read_artifact(finished / "sft_data").stats["histograms"]
    drawn = re.findall(r"<title>≤ ([\d,]+): ([\d,]+)</title>", section(page, "Lengths"))
    plain = [(int(a.replace(",", "")), int(b.replace(",", ""))) for a, b in drawn]
    for row in histograms["length"]:
        for name in ("sequences", "trained", "untrained"):
            assert (row["up_to"], row[name]) in plain
    control = section(page, "Reasoning control")
    bars = [int(n.replace(",", "")) for n in re.findall(r"<title>.*?: ([\d,]+)</title>", control)]
    assert sum(bars) == sum(number for _, number in histograms["budgets"]) > 0


def test_samples_highlight_exactly_what_is_trained(finished, data_page):
    page = data_page
    marked = set(Reader(section(page, "Sample conversations")).marked)
    rows = [json.loads(line) for line in (finished / "sft_data" / "samples.jsonl").open()]
    assert marked == {text for row in rows for _, on, text in row["segments"] if on}
    assert all("<|im_end|>" in text for text in marked)


def test_the_same_bytes_elsewhere(finished, page, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "sft" / "report.html").unlink()
    assert page_of(tmp_path / "run" / "sft") == page


def test_started_again_a_stage_leaves_the_page_that_is_there(tmp_path):
    out, made = tmp_path / "toy", []

    def make(run: Run) -> None:
        made.append(run)
        (out / "work").mkdir()
        run.finish(counts=Counts(1, 1), files={})

    def start() -> None:
        run_data_stage(
            Console(file=io.StringIO()),
            out,
            kind="toy",
            config={},
            recipe=Strict(),
            dry_run=False,
            make=make,
            check=lambda _: made.append(None),
            scratch="work",
        )
        assert not (out / "work").exists()

    start()
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    start()
    assert (out / "report.html").read_bytes() == page
    (out / "report.html").write_text("mine")
    start()
    assert (out / "report.html").read_text() == "mine"
    assert made[1:] == [None, None]  # made once, its inputs checked twice


def test_changed_and_unfinished_inputs_are_refused(tmp_path):
    out = write_checkpoint(tmp_path / "sft")
    with (out / "log.jsonl").open("a") as handle:
        handle.write('{"step": 30, "loss": 0.1}\n')
    with pytest.raises(DataError, match=r"log\.jsonl has changed since"):
        write_report(out)
    (out / "manifest.json").unlink()
    (out / "log.jsonl").unlink()
    with pytest.raises(DataError, match="has not finished"):
        write_report(out)


def test_held_out_loss_is_per_trained_token_and_by_group(page):
    assert cells(page, "maths/on") == ["maths/on", "3.000 → 2.000", "2.000", "30"]
    assert cells(page, "maths/off") == ["maths/off", "1.000 → 4.000", "1.000", "10"]
    assert cells(page, "all") == ["all", "2.500", "2.500", "–"]
    assert page.index("<td>all</td>") < page.index("<td>maths/")
    # 1.96 standard errors on both sides of the last
    assert "last 2.304 … 2.696; nats a trained token" in page
    line = r'<title>held-out loss</title><path d="M ([\d.]+) ([\d.]+) +L ([\d.]+) ([\d.]+) +"'
    grey = re.search(line, section(page, "Training"))
    assert grey
    assert grey[2] == grey[4]


def test_speed_counts_the_tokens_of_each_start(page):
    assert cells(page, "0 – 20") == ["0 – 20", "1", "4.0", "200", "50"]
    assert cells(page, "10 – 20") == ["10 – 20", "2", "5.0", "100", "20"]


def test_logs_that_diverged_or_hold_markup_or_nothing_have_a_report(tmp_path):
    nan, nasty = float("nan"), "<script>alert(1)</script> & \ud800"
    rows = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": nan}, {"step": 3, "eval_x_loss": nan}]
    page = page_of(
        write_checkpoint(tmp_path / "bad", rows=[*rows, {"step": 4, f"eval_{nasty}_loss": 1.5}])
    )
    assert "1 logged losses are not finite" in page
    assert "<script" not in page
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; &amp; \ud800" in page
    assert "Training" in sections(page_of(write_checkpoint(tmp_path / "empty", rows=[])))


def test_the_report_loads_nothing_heavy():
    code = (
        "import sys, posttrain.pages.overlay;"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_what_an_older_version_or_another_machine_left_out_is_named(tmp_path):
    for n, name in enumerate(("old", "gone")):
        Run.open(tmp_path / name, kind="sft_data", config={}).finish(counts=Counts(n, n), files={})
    trained = Run.open(tmp_path / "trained", kind="checkpoint", config={})
    trained.finish(counts=Counts(1, 1), files={}, stats={"steps": 1})
    missing = section(page_of(tmp_path / "trained"), "Not in this report")
    assert "trained lists no log.jsonl" in missing
    out = write_checkpoint(tmp_path / "model", tmp_path / "old", tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    (out / "speed.jsonl").unlink()
    missing = section(page_of(out), "Not in this report")
    old = section(page_of(tmp_path / "old"), "Not in this report")
    assert "sft_data old: old has no &#39;sources&#39; in its stats" in old
    assert "sft_data gone: not at ../gone" in missing
    assert "Speed: model has no speed.jsonl" in missing


def test_names_are_no_markup_on_the_console(capsys):
    open_console().print("runs/[a] [/b] :bug:")
    assert capsys.readouterr().out == "runs/[a] [/b] :bug:\n"


def test_the_console_shows_the_figures_of_the_page(finished, data_page):
    page = data_page
    stats = read_artifact(finished / "sft_data").stats
    console = Console(file=io.StringIO(), width=200)
    print_sections(console, [mixture(stats), lengths(stats)])
    printed = console.file.getvalue()
    row = next(line for line in printed.splitlines() if "maths" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == cells(page, "maths")
    for one in stats["histograms"]["length"]:
        assert f"≤ {one['up_to']:,}" in printed
        assert f"{one['trained']:,}" in printed


def test_numbers_keep_their_unit_and_values_align():
    table = Table(["source", "share", "note"], [["a", "1.5 % – 2.0 %", "ten rows"]])
    page = page_html([Section("S", [table])], title="t")
    assert '<td class="n">1.5\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}2.0' in page
    assert "<td>ten rows</td>" in page
    assert '<div class="scroll"' in page


def test_intervals_below_a_value_stay_whole_and_two_columns_wrap_on_a_telephone():
    change = TableCell("−0.33", below="−1.6 … +0.9, p 0.6")
    words = ["batches", "20 of 32 prompts"]
    tables = [Table(["judges", "change"], [["a → b", change]]), Table(["run", "value"], [words])]
    page = page_html([Section("S", tables)], title="t").replace("\N{NO-BREAK SPACE}", "~")
    assert "<small>−1.6~…~+0.9, p~0.6</small>" in page
    assert 'class="worded"' not in page


def test_a_stage_without_rows_counts_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Merging and quantising take weights: "0 in, 0 kept" would read as if all were lost."""
    run = Run.open(tmp_path / "merged", kind="checkpoint", config={})
    run.finish(counts=Counts(0, 0), files={}, stats={"check": {}, "dtype": "bfloat16"})
    show_finished(open_console(), tmp_path / "merged")
    assert "Counts" not in sections(page_of(tmp_path / "merged"))
    assert "Nothing is lost" not in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_line_of_an_evaluations_picture_says_whose_it_is(count: int):
    rate = {"value": 0.5, "low": 0.4, "high": 0.6}
    cell = {"setting": "plain", "thinking": "on", "lengths": {}, "samples": 9, "unscored": 0}
    cells = [
        {**cell, "task": task, "checkpoint": f"stage {k}", "rates": {"accuracy": rate}}
        for task in ("all", "maths")
        for k in range(count)
    ]
    (chart,) = (
        block
        for block in before_and_after(cells, [], "accuracy").blocks
        if isinstance(block, IntervalChart)
    )
    said = [chart.full_label(row) for row in chart.rows]
    names = [f"stage {k}, " if count > 1 else "" for k in range(count)]
    assert said == [f"{name}{task}" for task in ("all", "maths") for name in names]
