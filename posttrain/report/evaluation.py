"""Sections of an evaluation: the paper's Table 7 for this run, all figures, completions to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import sha256_file
from posttrain.errors import DataError
from posttrain.report.charts import Interval, intervals
from posttrain.report.evaluation_examples import examples
from posttrain.report.html import Markup, figure, folded, paragraph, percent, table
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page

Row = Mapping[str, Any]
METRICS = "metrics.json"
# what NVIDIA states of its own model in its own harness: never a figure of this run
_NVIDIA = (
    ("AIME25", "80.88 %", "84.58 %", "1.25 %", "0 %"),
    ("GPQA", "65.15 %", "69.19 %", "8.33 %", "0.7 %"),
)
_SOURCE = "Nemotron 3 Nano report, arXiv 2512.20848, Appendix C, Table 7"


def add_evaluation(page: Page, node: Node) -> None:
    """All sections of one `evaluation` artifact."""
    metrics = _metrics(node)
    cells, pairs = metrics["cells"], metrics["pairs"]
    page.add("Before and after", *_table_7(cells, pairs))
    page.add("Every figure", *_figures(cells))
    page.add("Lengths", *_lengths(cells))
    if pairs:
        page.add("Differences", *_differences(pairs))
    rows = listed_rows(node, "examples.jsonl")
    if rows is None:
        page.leave_out("Completions to read", f"{node.name} lists no examples.jsonl")
    else:
        page.add("Completions to read", *examples(rows))


def headline(node: Node) -> list[tuple[str, str, str]]:
    """Figures for the top of the page: of the last checkpoint, all tasks together."""
    cells = _metrics(node)["cells"]
    last = cells[-1]["checkpoint"]
    own = [cell for cell in cells if cell["checkpoint"] == last]
    pooled = [cell for cell in own if cell["task"] == "all"] or own
    found: list[tuple[str, str, str]] = []
    for name, title in (
        ("accuracy", "correct"),
        ("hallucination", "undeclared calls"),
        ("truncated", "truncated"),
    ):
        for cell in [c for c in pooled if name in c["rates"]][:2]:
            rate = cell["rates"][name]
            where = f"{last}, {cell['setting']}, reasoning {cell['thinking']}"
            between = f"{percent(rate['low'])} – {percent(rate['high'])}"
            found.append((percent(rate["value"], 2), title, f"{where}: {between}"))
    return found


def _metrics(node: Node) -> Row:
    assert node.manifest is not None
    path = node.path / METRICS
    listed = {file.path: file.sha256 for file in node.manifest.files}
    if not path.is_file() or sha256_file(path) != listed.get(METRICS):
        raise DataError(f"{path} is missing or has changed since its manifest was written")
    return json.loads(path.read_text("utf-8"))


def _table_7(cells: Sequence[Row], pairs: Sequence[Row]) -> list[str]:
    """Accuracy and undeclared calls of the first checkpoint and of every other."""
    names = list(dict.fromkeys(cell["checkpoint"] for cell in cells))
    shown: list[list[object]] = []
    for cell in [c for c in cells if c["checkpoint"] == names[0]]:
        where = (cell["task"], cell["setting"], cell["thinking"])
        row: list[object] = [*where, cell["samples"]]
        for figure_name in ("accuracy", "hallucination"):
            row.append(_rate(cell, figure_name))
            for name in names[1:]:
                row.append(_rate(_find(cells, name, where), figure_name))
                pair = _find(pairs, name, where, key="b")
                row.append(_change(pair, figure_name))
        shown.append(row)
    head = ["task", "setting", "reasoning", "samples"]
    for title in ("correct", "undeclared calls"):
        head.append(f"{title}, {names[0]}")
        for name in names[1:]:
            head += [name, "change, p"]
    nvidia = table(
        ["NVIDIA's", "correct, before DPO", "after", "hallucinated calls, before", "after"],
        _NVIDIA,
        numeric=range(1, 5),
    )
    return [
        table(head, shown, numeric=range(3, len(head))),
        paragraph(
            "95 % intervals below each share: Wilson's, with the samples of a question counted as "
            "what they are worth. A change is in points, over the questions that both answered; p "
            "is McNemar's exact test with one sample a question, else a permutation test, each of "
            "its own figure alone. Undeclared calls: share of completions with a tool call in "
            "reasoning or answer where no tool is declared."
        ),
        folded(
            "NVIDIA's own figures, of its own model, for the shape of the effect",
            nvidia + paragraph(_SOURCE, ". None of them was measured here."),
        ),
        _chart(cells, names),
    ]


def _chart(cells: Sequence[Row], names: Sequence[str]) -> str:
    rows = [
        Interval(
            f"{cell['checkpoint']}, {cell['task']}, {cell['setting']}, {cell['thinking']}",
            rate["low"],
            rate["value"],
            rate["high"],
            "b" if cell["checkpoint"] == names[0] and len(names) > 1 else "a",
        )
        for cell in cells
        if (rate := cell["rates"].get("hallucination")) is not None
    ]
    if not rows:
        return ""
    drawing = intervals(rows, x="completions with an undeclared call, with 95 % interval")
    return figure(drawing, "Where no tool is declared.")


def _find(rows: Sequence[Row], name: str, where: tuple[str, ...], key: str = "checkpoint") -> Row:
    places = ("task", "setting", "thinking")
    found = (r for r in rows if r[key] == name and tuple(r[p] for p in places) == where)
    return next(found, {"rates": {}, "lengths": {}})


def _rate(cell: Row, name: str) -> object:
    rate = cell["rates"].get(name)
    if rate is None:
        return None
    between = f"{percent(rate['low'])} – {percent(rate['high'])}"
    return Markup(f'{percent(rate["value"], 2)}<br><span class="faint">{between}</span>')


def _change(pair: Row, name: str) -> object:
    found = pair["rates"].get(name)
    if found is None:
        return None
    points = f"{100 * found['difference']:+.2f}".replace("-", "−")
    p = f"{found['p']:.3f}" if found["p"] >= 0.001 else f"{found['p']:.0e}"
    return Markup(f'{points}<br><span class="faint">p {p}</span>')


def _figures(cells: Sequence[Row]) -> list[str]:
    """Every rate of every cell, a table a checkpoint."""
    parts: list[str] = []
    for name in dict.fromkeys(cell["checkpoint"] for cell in cells):
        own = [cell for cell in cells if cell["checkpoint"] == name]
        rates = list(dict.fromkeys(rate for cell in own for rate in cell["rates"]))
        rates = [rate for rate in rates if rate not in ("accuracy", "hallucination")]
        rows = [
            [*_where(cell), *(_rate(cell, rate) for rate in rates), _passes(cell), _lost(cell)]
            for cell in own
        ]
        head = ["task", "setting", "reasoning", *(rate.replace("_", " ") for rate in rates)]
        head += ["pass@k", "without a figure"]
        parts += [f"<h3>{name}</h3>", table(head, rows, numeric=range(3, len(head)))]
    note = "Adherence: with reasoning on, every step has a closed think block with something in it;"
    return [*parts, paragraph(note, " off, no think tag at all.")]


def _where(cell: Row) -> list[object]:
    return [cell["task"], cell["setting"], cell["thinking"]]


def _passes(cell: Row) -> str | None:
    found = [f"@{k} {percent(rate['value'])}" for k, rate in cell["pass"].items() if k != "1"]
    return ", ".join(found) or None


def _lost(cell: Row) -> str | None:
    found = [f"{name} {cell[name]:,}" for name in ("failed", "unscored") if cell[name]]
    return ", ".join(found) or None


def _lengths(cells: Sequence[Row]) -> list[str]:
    rows: list[list[object]] = []
    for cell in cells:
        for name, found in cell["lengths"].items():
            stats = [
                f"{found[s]['value']:.1f} ({found[s]['low']:.1f} – {found[s]['high']:.1f})"
                for s in ("mean", "median", "p90")
            ]
            rows.append([cell["checkpoint"], *_where(cell), name.replace("_", " "), *stats])
    head = ["checkpoint", "task", "setting", "reasoning", "length", "mean", "median", "90 %"]
    note = paragraph("Tokens of a completion, all its steps; bootstrap intervals over questions.")
    return [table(head, rows, numeric=range(5, 8)), note]


def _differences(pairs: Sequence[Row]) -> list[str]:
    rows: list[list[object]] = []
    for pair in pairs:
        for name, found in {**pair["rates"], **pair["lengths"]}.items():
            scale = 100 if name in pair["rates"] else 1
            rows.append(
                [
                    f"{pair['a']} → {pair['b']}",
                    *(pair[key] for key in ("task", "setting", "thinking")),
                    name.replace("_", " "),
                    f"{scale * found['a']:.2f}",
                    f"{scale * found['b']:.2f}",
                    f"{scale * found['difference']:+.2f}".replace("-", "−"),
                    f"{scale * found['low']:+.2f} … {scale * found['high']:+.2f}".replace("-", "−"),
                    f"{found['p']:.3g}",
                    found["questions"],
                ]
            )
    head = ["checkpoints", "task", "setting", "reasoning", "figure", "before", "after", "change",
            "95 %", "p", "questions"]  # fmt: skip
    body = table(head, rows, numeric=range(5, 11))
    return [folded(f"{len(rows):,} figures; shares in per cent and points", body)]
