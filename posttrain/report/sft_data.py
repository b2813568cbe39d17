"""Sections of an SFT data set: mixture, drops, lengths, reasoning control, packing, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import Manifest
from posttrain.report.charts import Bar, bars
from posttrain.report.html import (
    Markup,
    figure,
    paragraph,
    percent,
    table,
    text,
)
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page
from posttrain.report.samples import sample_conversations
from posttrain.report.sft_sources import drops, mixture, origins
from posttrain.report.supervision import add_supervision

Stats = Mapping[str, Any]


def add_sft_data(page: Page, node: Node) -> None:
    """All sections of one `sft_data` artifact; each is left out, and said to be, without stats."""
    assert node.manifest is not None
    stats = node.manifest.stats
    for title, needed, write in (
        ("Mixture", ("sources",), mixture),
        ("Drops by source", ("sources",), drops),
        ("Sources", ("sources", "inputs", "template"), origins),
        ("Lengths", ("histograms",), _lengths),
        ("Reasoning control", ("control", "histograms"), _control),
        ("Packing", ("splits", "max_length", "histograms"), _packing),
    ):
        missing = [name for name in needed if name not in stats]
        if missing:
            page.leave_out(title, f"{node.name} has no stats on {', '.join(missing)}")
        else:
            page.add(title, *write(stats))
    add_supervision(page, node)
    rows = listed_rows(node, "samples.jsonl")
    if rows is None:
        page.leave_out("Sample conversations", f"{node.name} lists no samples.jsonl")
    else:
        page.add("Sample conversations", *sample_conversations(rows))


def _lengths(stats: Stats) -> list[str]:
    histogram: Sequence[Mapping[str, int]] = stats["histograms"]["length"]
    if not histogram:
        return []
    first, last = histogram[0]["up_to"], histogram[-1]["up_to"]
    by_bin = {row["up_to"]: row for row in histogram}
    empty = {"sequences": 0, "trained": 0, "untrained": 0}
    bins = [first << k for k in range((last // first).bit_length())]
    rows = [(f"≤ {size:,}", by_bin.get(size, empty)) for size in bins]
    return [
        figure(
            bars(
                [Bar(label, [row["sequences"]]) for label, row in rows],
                x="length of a sequence, tokens",
                y="sequences",
            ),
            "Sequences of the training split by length; each bin reaches from half its label.",
        ),
        figure(
            bars(
                [Bar(label, [row["trained"], row["untrained"]]) for label, row in rows],
                names=("trained", "not trained"),
                x="length of a sequence, tokens",
                y="tokens",
            ),
            "The same bins by the tokens they hold: those in the loss, and those only read.",
        ),
    ]


def _control(stats: Stats) -> list[str]:
    sources: Mapping[str, Any] = stats.get("sources", {})
    rows: list[list[object]] = [
        [name, *_control_row(source["control"])]
        for name, source in sources.items()
        if source["control"].get("reasoned")
    ]
    without = len(sources) - len(rows)
    rows.append(["all", *_control_row(stats["control"])])
    head = ["source", "records with reasoning", "stripped", "share"]
    head += ["traces", "cut to a budget", "share", "too short to cut"]
    parts = [
        paragraph(
            "Reasoning is switched off for some records, and some traces are cut to a budget, "
            "chosen by a keyed hash of the record's id. Counted before the mixture is drawn. "
            + (f"{without} sources have no reasoning and are not listed." if without else "")
        ),
        table(head, rows, numeric=range(1, 8), total=True),
    ]
    budgets: Sequence[tuple[int, int]] = stats["histograms"]["budgets"]
    if budgets:
        drawn = [Bar(label, [number]) for label, number in _binned(budgets)]
        chart = bars(drawn, x="budget, tokens of reasoning kept", y="traces")
        parts.append(figure(chart, "Budgets of the traces that were cut."))
    return parts


def _control_row(control: Mapping[str, int]) -> list[object]:
    reasoned, stripped = control.get("reasoned", 0), control.get("stripped", 0)
    traces, cut = control.get("traces", 0), control.get("truncated", 0)
    return [
        reasoned,
        stripped,
        percent(stripped / reasoned, 2) if reasoned else None,
        traces,
        cut,
        percent(cut / traces, 2) if traces else None,
        control.get("too_short", 0),
    ]


def _binned(budgets: Sequence[tuple[int, int]], most: int = 12) -> list[tuple[str, int]]:
    """Few budgets one bar each, many by powers of two."""
    if len(budgets) <= most:
        return [(f"{budget:,}", number) for budget, number in budgets]
    counts: dict[int, int] = {}
    for budget, number in budgets:
        power = budget.bit_length() - 1
        counts[power] = counts.get(power, 0) + number
    bins = range(min(counts), max(counts) + 1)
    return [(f"{1 << k:,} – {(2 << k) - 1:,}", counts.get(k, 0)) for k in bins]


def _packing(stats: Stats) -> list[str]:
    groups: Mapping[str, Any] = stats.get("eval_groups", {})
    named = {**stats["splits"], **{f"  {name}": split for name, split in groups.items()}}
    rows: list[list[object]] = [
        [
            Markup(("&emsp;" if name.startswith(" ") else "") + text(name.strip())),
            split["packs"],
            split["sequences"],
            split["tokens"],
            percent(split["trained"] / split["tokens"]) if split["tokens"] else None,
            percent(split["fill"], 2),
            f"{split['sequences_per_pack']:.1f}",
            split["longest"],
        ]
        for name, split in named.items()
    ]
    head = ["split", "packs", "sequences", "tokens", "trained", "fill"]
    head += ["sequences a pack", "longest"]
    parts = [
        paragraph(f"Packs of {stats['max_length']:,} tokens."),
        table(head, rows, numeric=range(1, 8)),
    ]
    fills: Sequence[int] = stats["histograms"]["fill_percent"]
    if sum(fills):
        chart = bars(_fill_bars(fills), x="fill, rounded down to whole percent", y="packs")
        parts.append(figure(chart, "How full the packs of the training split are."))
    return parts


def _fill_bars(fills: Sequence[int]) -> list[Bar]:
    """Single percents from 90 on; where many packs are emptier than that, steps of ten."""
    if sum(fills[:90]) <= 0.1 * sum(fills):
        return [Bar("< 90 %", [sum(fills[:90])])] + [
            Bar(f"{k} %", [fills[k]]) for k in range(90, 101)
        ]
    tens = [sum(fills[k : k + 10]) for k in range(0, 100, 10)] + [fills[100]]
    return [Bar(f"{10 * k} %", [number]) for k, number in enumerate(tens)]


def headline(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Tiles of a data set."""
    counts = manifest.counts
    found = [(f"{counts.kept:,}", "rows kept", f"of {counts.rows_in:,}")]
    if "splits" in manifest.stats:
        train = manifest.stats["splits"]["train"]
        share = percent(train["trained"] / train["tokens"], 0) if train["tokens"] else "–"
        size = f"{train['tokens'] / 1e6:,.2f} M"
        found.append((size, "training tokens", f"{share} trained, repeats counted"))
        found.append(fill(manifest.stats))
    return found


def fill(stats: Stats) -> tuple[str, str, str]:
    """The tile of how full packs are."""
    train = stats["splits"]["train"]
    packs = f"{train['packs']:,} packs of {stats['max_length']:,}"
    return percent(train["fill"], 2), "packing fill", packs
