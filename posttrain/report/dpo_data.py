"""Sections of a preference data set: categories, samples, length balance, pairs to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.charts import Bar, bars
from posttrain.report.html import Markup, figure, folded, paragraph, percent, table, text
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page

Stats = Mapping[str, Any]
SHOWN_PAIRS = 4  # of each category
SHOWN_CHARACTERS = 3000


def add_dpo_data(page: Page, node: Node) -> None:
    """All sections of one `dpo_data` artifact."""
    assert node.manifest is not None
    stats = node.manifest.stats
    page.add("Preference pairs", *_categories(stats))
    page.add("Graded samples", *_samples(stats))
    page.add("Length balance", *_lengths(stats))
    page.add("Distance of chosen and rejected", *_distances(stats))
    rows = listed_rows(node, "samples.jsonl")
    if rows is None:
        page.leave_out("Pairs to read", f"{node.name} lists no samples.jsonl")
    else:
        page.add("Pairs to read", *_pairs(rows))


def headline(stats: Stats) -> list[tuple[str, str, str]]:
    """Figures for the top of the page."""
    total, parts = stats["pairs"]["total"], stats["pairs"]["by_category"]
    tiles = [(f"{total:,}", "preference pairs", ", ".join(f"{k} {v:,}" for k, v in parts.items()))]
    made, cut = (
        sum(found.get(key, 0) for found in stats["samples"].values())
        for key in ("completions", "truncated")
    )
    if made:
        tiles.append((percent(cut / made), "of the samples truncated", f"{cut:,} of {made:,}"))
    return tiles


def _categories(stats: Stats) -> list[str]:
    pairs, modes = stats["pairs"]["by_category"], stats["pairs"]["by_mode"]
    rows: list[list[object]] = [
        [
            category,
            percent(stats["shares_asked"][category]),
            count,
            percent(count / max(1, stats["pairs"]["total"])),
            modes.get(f"{category}/on", 0),
            modes.get(f"{category}/off", 0),
        ]
        for category, count in pairs.items()
    ]
    head = ["category", "share asked", "pairs", "share", "reasoning on", "reasoning off"]
    books = stats["pair_books"]
    dropped = ", ".join(f"{reason} {n:,}" for reason, n in books["dropped"].items()) or "none"
    limit = stats["limited_by"]
    outcomes = [
        [category, outcome, count]
        for category, found in stats["prompts"].items()
        for outcome, count in found.items()
    ]
    return [
        table(head, rows, numeric=range(1, 6)),
        paragraph(
            f"{books['in']:,} candidate pairs = {books['kept']:,} kept + not: {dropped}. "
            f"Rule: {stats['rule']} (ours; the paper states none). "
            + (f"The total is limited by {limit}: there are no more such pairs." if limit else "")
        ),
        table(["category", "prompt", "prompts"], outcomes, numeric={2}) if outcomes else "",
    ]


def _samples(stats: Stats) -> list[str]:
    names = ("right", "with_call", "truncated", "unscored", "failed")
    rows = [
        [setting, found["completions"]]
        + [percent(found.get(name, 0) / max(1, found["completions"])) for name in names]
        for setting, found in stats["samples"].items()
    ]
    if not rows:
        return []
    head = ["setting / reasoning", "completions", "right", "with a call"]
    head += ["truncated", "unscored", "failed"]
    note = "Of the on-policy samples, before pairing. Where no tool is declared, any call counts."
    return [paragraph(note), table(head, rows, numeric=range(1, 7))]


def _lengths(stats: Stats) -> list[str]:
    rows = [
        [
            category,
            found["pairs"],
            f"{found['chosen_mean']:.1f}",
            f"{found['rejected_mean']:.1f}",
            f"{found['difference_median']:+.0f}",
            percent(found["chosen_longer"]),
            percent(found["rejected_longer"]),
        ]
        for category, found in stats["lengths"].items()
    ]
    head = ["category", "pairs", "chosen, tokens", "rejected, tokens", "median difference"]
    head += ["chosen longer", "rejected longer"]
    note = (
        "Tokens that the model sampled. Where one side is longer throughout, DPO can learn length "
        "in place of what the pairs are about; match_length evens it out."
    )
    return [paragraph(note), table(head, rows, numeric=range(1, 7))]


def _distances(stats: Stats) -> list[str]:
    found = stats["distances"].get("all")
    if not found:
        return []
    shown = [Bar(f"{k}0–{k + 1}0 %", [count]) for k, count in enumerate(found["tenths"])]
    chart = bars(shown, x="tokens between common beginning and common end", y="pairs")
    return [
        figure(chart, "How much of the longer completion lies where the two differ."),
        paragraph(
            f"Median {percent(found['median'])}; {percent(found['below_a_tenth'])} of the pairs "
            "differ in less than a tenth. What DPO pushes down in such a pair it nearly pushes "
            "down in the chosen too; minimum_distance drops them."
        ),
    ]


def _pairs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shown: dict[str, int] = {}
    parts: list[str] = []
    for row in rows:
        shown[row["category"]] = shown.get(row["category"], 0) + 1
        if shown[row["category"]] <= SHOWN_PAIRS:
            parts.append(_pair(row, opened=not parts))
    return parts


def _pair(row: Mapping[str, Any], *, opened: bool) -> str:
    mode = "on" if row["thinking"] else "off"
    title = Markup(f"<b>{text(row['category'])}</b> · reasoning {mode} · {text(row['id'])}")
    sides = [
        f"<h4>{name}{_score(row.get(f'{name}_score'))}</h4>"
        f'<pre class="chat">{text(row[name][:SHOWN_CHARACTERS])}</pre>'
        for name in ("chosen", "rejected")
    ]
    prompt = f'<h4>prompt</h4><pre class="chat">{text(row["prompt"][-SHOWN_CHARACTERS:])}</pre>'
    return folded(title, prompt + "".join(sides), opened=opened)


def _score(value: float | None) -> str:
    return "" if value is None else f" (score {value:g})"
