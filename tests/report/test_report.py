"""The report: self-contained, the same bytes every time, and nothing in it that is not known."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from posttrain.errors import DataError
from posttrain.report import write_report
from posttrain.report.console import print_sections
from posttrain.report.html import page_html
from posttrain.report.pages.sft_data import lengths, mixture
from posttrain.report.section import Section, Table
from posttrain.runs import Counts, Run, read_artifact
from tests.report.conftest import LOG, write_checkpoint

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Checks that tags nest; collects text by section and the attributes that load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.marked: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.loads += [f"{k}={v}" for k, v in attrs if k in ("src", "href") and v[:1] != "#"]
        self.loads += [tag] if tag in ("link", "iframe", "img") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "mark" in self.open and "pre" in self.open:
            self.marked.append(data)


def page_of(artifact: Path, **options: Any) -> str:
    """The report as it reads: spaces that keep a number and its unit on one line are spaces."""
    page = write_report(artifact, **options).read_text("utf-8")
    return page.replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    """The report of the checkpoint."""
    return page_of(finished / "sft")


def cells(page: str, first: str) -> list[str]:
    """The cells of the first table row that begins with this one."""
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page):
        found = [
            re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        ]
        if found and found[0].strip("\u2003↳ ") == first:
            return found
    raise AssertionError(f"no row begins with {first!r}")


def section(page: str, title: str) -> str:
    """The content of one section."""
    found = re.search(rf"<h2>{title}</h2>(.*?)</section>", page, re.DOTALL)
    assert found, title
    return found[1]


def sections(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_checkpoint_shows_its_whole_lineage(finished, page):
    reader = Reader(page)
    assert (finished / "sft" / "report.html").is_file()
    assert reader.loads == []
    assert "url(" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) >= len(sections(page))
    assert "@import" not in page
    assert sections(page) == [
        "Training", "Speed", "Mixture", "Drops by source", "Sources", "Lengths", "Reasoning control",
        "Packing", "Supervision", "Worst offenders", "Sample conversations", "Tiny world", "Counts", "Provenance",
    ]  # fmt: skip
    for folder in ("sft", "sft_data", "world"):
        assert read_artifact(finished / folder).digest in page
    for svg in re.findall(r"<svg.*?</svg>", page):
        ElementTree.fromstring(svg)  # noqa: S314 - our own output


def test_numbers_are_the_manifests(finished, page):
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
    kept = [f"{v:,}" for v in (total.rows_in, total.kept)]
    assert cells(drops, "all")[1:3] == kept


def test_lengths_and_budgets_are_drawn_in_full(finished, page):
    histograms = read_artifact(finished / "sft_data").stats["histograms"]
    lengths = section(page, "Lengths")
    drawn = re.findall(r"<title>≤ ([\d,]+): ([\d,]+)</title>", lengths)
    plain = [(int(a.replace(",", "")), int(b.replace(",", ""))) for a, b in drawn]
    for row in histograms["length"]:
        assert (row["up_to"], row["sequences"]) in plain
        assert (row["up_to"], row["trained"]) in plain
        assert (row["up_to"], row["untrained"]) in plain
    control = section(page, "Reasoning control")
    bars = [int(n.replace(",", "")) for n in re.findall(r"<title>.*?: ([\d,]+)</title>", control)]
    assert sum(bars) == sum(number for _, number in histograms["budgets"]) > 0


def test_samples_highlight_exactly_what_is_trained(finished, page):
    reader = Reader(section(page, "Sample conversations"))
    rows = [json.loads(line) for line in (finished / "sft_data" / "samples.jsonl").open()]
    trained = [text for row in rows for _, on, text in row["segments"] if on]
    assert reader.marked
    assert set(reader.marked) <= set(trained)
    assert all("<|im_end|>" in text for text in reader.marked)


def test_the_same_bytes_again_and_elsewhere(run, tmp_path):
    first = write_report(run / "sft").read_bytes()
    assert write_report(run / "sft").read_bytes() == first
    shutil.copytree(run, tmp_path / "elsewhere" / "run")
    assert write_report(tmp_path / "elsewhere" / "run" / "sft").read_bytes() == first


def test_missing_and_replaced_parents_are_said_to_be(run, tmp_path):
    shutil.rmtree(run / "world")
    page = page_of(run / "sft")
    assert "tiny_world world: not at" in page
    assert "Tiny world" not in sections(page)
    shutil.rmtree(run / "sft_data")
    write_checkpoint(tmp_path / "other", run / "sft")
    shutil.copytree(tmp_path / "other", run / "sft_data")
    page = page_of(run / "sft")
    assert "sft_data sft_data: another artifact lies at ../sft_data now" in page
    assert "Mixture" not in sections(page)


def test_changed_and_unfinished_inputs_are_refused(run):
    with (run / "sft" / "log.jsonl").open("a") as handle:
        handle.write('{"step": 30, "loss": 0.1}\n')
    with pytest.raises(DataError, match=r"log\.jsonl is missing or has changed"):
        write_report(run / "sft")
    (run / "sft_data" / "manifest.json").unlink()
    with pytest.raises(DataError, match="has not finished"):
        write_report(run / "sft_data")


def test_text_from_data_cannot_become_markup(run):
    nasty = "<script>alert(1)</script> & \ud800"
    rows = [{**LOG[0]}, {"step": 10, "epoch": 1, f"eval_{nasty}_loss": 1.5}]
    write_checkpoint(run / "nasty", run / "sft_data", rows)
    page = page_of(run / "nasty")
    assert "<script>alert" not in page
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; &amp; \ud800" in page


def test_held_out_loss_is_per_trained_token_and_by_group(page):
    assert cells(page, "maths/on") == ["maths/on", "30", "3.000", "2.000", "2.000"]
    assert cells(page, "maths/off") == ["maths/off", "10", "1.000", "1.000", "4.000"]
    chart = section(page, "Training")
    grey = re.search(
        r'<title>held-out loss</title><path d="M ([\d.]+) ([\d.]+) +L ([\d.]+) ([\d.]+) +"', chart
    )
    assert cells(page, "all") == ["all", "–", "2.500", "2.500", "2.500"]
    assert grey
    assert grey[2] == grey[4]


def test_speed_counts_the_tokens_of_each_start(page):
    assert cells(page, "0 – 20") == ["0 – 20", "1", "4.0", "200", "50"]
    assert cells(page, "10 – 20") == ["10 – 20", "2", "5.0", "100", "20"]


def test_a_diverged_run_still_has_a_report(run):
    nan = float("nan")
    rows = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": nan}, {"step": 3, "eval_x_loss": nan}]
    write_checkpoint(run / "diverged", run / "sft_data", rows)
    assert "1 logged losses are not finite" in page_of(run / "diverged")
    write_checkpoint(run / "empty", run / "sft_data", [])
    assert "Training" in sections(page_of(run / "empty"))


def test_the_report_loads_nothing_heavy():
    code = (
        "import sys, posttrain.report;"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_an_artifact_without_stats_says_what_is_missing(tmp_path):
    stage = Run.open(tmp_path / "bare", kind="sft_data", config={})
    stage.finish(counts=Counts(3, 2, {"empty_answer": 1}), files={})
    page = page_of(tmp_path / "bare")
    assert sections(page) == ["Counts", "Provenance", "Not in this report"]
    missing = section(page, "Not in this report")
    assert "sft_data bare: bare has no &#39;sources&#39; in its stats" in missing
    assert 'dropped: empty_answer</td><td class="n">1</td>' in page


def test_an_ancestor_of_an_older_version_is_left_out_by_name(tmp_path):
    old = Run.open(tmp_path / "old", kind="sft_data", config={})
    old.finish(counts=Counts(1, 1), files={}, stats={"sources": {"a": {"rows_in": 1}}})
    out = write_checkpoint(tmp_path / "model", tmp_path / "old")
    page = write_report(out).read_text()
    assert "Not in this report" in page
    assert "build it again to see it here" in page


def test_the_console_shows_the_figures_of_the_page(finished):
    stats = read_artifact(finished / "sft_data").stats
    console = Console(file=io.StringIO(), width=200)
    print_sections(console, [mixture(stats), lengths(stats)])
    printed = console.file.getvalue()
    row = next(line for line in printed.splitlines() if "maths" in line)
    shown = [cell.strip() for cell in row.strip("│").split("│")]
    assert shown == cells(page_of(finished / "sft_data"), "maths")
    for one in stats["histograms"]["length"]:
        assert f"≤ {one['up_to']:,}" in printed
        assert f"{one['trained']:,}" in printed


def test_numbers_keep_their_unit_and_values_align():
    table = Table(["source", "share", "note"], [["a", "1.5 % – 2.0 %", "ten rows"]])
    page = page_html([Section("S", [table])], title="t")
    assert '<td class="n">1.5\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}2.0' in page
    assert "<td>ten rows</td>" in page
    assert '<div class="scroll"' in page
