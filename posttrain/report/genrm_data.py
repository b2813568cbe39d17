"""Sections of a judge's data: where pairs came from, what is held of them, what was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.report.charts import Bar, bars
from posttrain.report.html import figure, paragraph, percent, table
from posttrain.report.lineage import Node
from posttrain.report.page import Page

Stats = Mapping[str, Any]


def add_genrm_data(page: Page, node: Node) -> None:
    """All sections of one `genrm_data` artifact."""
    assert node.manifest is not None
    stats = node.manifest.stats
    page.add("Judging prompts", *_sides(stats))
    page.add("Pairs by source", *_sources(stats))


def headline(stats: Stats) -> list[tuple[str, str, str]]:
    """Figures for the top of the page."""
    train, held_out = stats["train"], stats["held_out"]
    return [
        (f"{train['prompts']:,}", "judging prompts", f"of {train['pairs']:,} pairs"),
        (f"{held_out['pairs']:,}", "pairs held out", "each in both orders"),
    ]


def _sides(stats: Stats) -> list[str]:
    sides = {"train": stats["train"], "held out": stats["held_out"]}
    rows = [
        [name, side["pairs"], side["prompts"], side["with_scores"], side["with_principle"],
         side["scores_and_ranking_at_odds"], side["characters"]["median"],
         side["characters"]["longest"]]
        for name, side in sides.items()
    ]  # fmt: skip
    head = ["", "pairs", "prompts", "with scores", "with a principle", "scores against ranking"]
    head += ["median characters", "longest"]
    drawn = [Bar(ranking, [n]) for ranking, n in stats["train"]["rankings"].items()]
    swap = "in both orders" if stats["swap"] else "in one order"
    return [
        paragraph(
            f"Layout {stats['layout']}; trained {swap}. Questions are held out, not pairs: neither "
            "the other order of a pair nor another pair of its question is on the other side."
        ),
        table(head, rows, numeric=range(1, 8)),
        figure(
            bars(drawn, x="ranking: 1 is response 1 by far, 6 is response 2", y="prompts"),
            "Gold rankings that are trained on. Both orders of a pair mirror each other.",
        ),
    ]


def _sources(stats: Stats) -> list[str]:
    rows = [
        [name, found["rows_in"], found["kept"], percent(found["kept"] / max(1, found["rows_in"])),
         found["held_out"], ", ".join(f"{k} {n:,}" for k, n in found["dialects"].items())]
        for name, found in stats["sources"].items()
    ]  # fmt: skip
    dropped = [
        [name, reason, count, found["examples"].get(reason)]
        for name, found in stats["sources"].items()
        for reason, count in found["dropped"].items()
    ]
    head = ["source", "rows", "pairs", "kept", "held out", "read as"]
    parts = [table(head, rows, numeric={1, 2, 3, 4})]
    if dropped:
        parts.append(table(["source", "dropped as", "rows", "such as"], dropped, numeric={2}))
    return parts
