"""Sections of a judge in training: format, right order, distances to gold, place preferred."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.group_training import (
    add_seconds,
    batch_rows,
    before_and_after,
    health,
    lengths,
    run_stats,
    spreads,
)
from posttrain.report.groups_to_read import groups_to_read
from posttrain.report.html import paragraph, percent, table
from posttrain.report.lineage import Node
from posttrain.report.log_charts import logged, side_by_side
from posttrain.report.page import Page
from posttrain.report.rollout_files import Batch, read_rollouts

Row = Mapping[str, Any]
SHOWN = {
    "reward": "reward, at most 0",
    "part/format": "verdicts in their format, share",
    "part/right_order": "pairs ordered right, share",
    "part/score_error_1": "distance of score 1",
    "part/score_error_2": "distance of score 2",
    "part/ranking_error": "distance of the ranking",
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "entropy": "entropy, nats a token",
}


def add_genrm(page: Page, node: Node, stats: Row, rows: Sequence[Row]) -> None:
    """All sections but the speed of one run."""
    logs = batch_rows(rows)
    batches = read_rollouts(node)
    page.add("Training of the judge", run_stats(stats), before_and_after(stats, SHOWN))
    page.add("Verdicts against gold", *_verdicts(logs))
    page.add("Verdicts by source", *_sources(batches))
    page.add("Lengths of judgements", *lengths(logs))
    page.add("Health of the judge's training", *health(rows))
    page.add("Advantages and importance weights of the judge", *spreads(node, batches))
    page.add("Judgements to read", *groups_to_read(batches))
    add_seconds(page, node, title="Seconds of the judge's training")


def _verdicts(rows: Sequence[Row]) -> list[str]:
    places = [{"step": row["step"], **_places(row)} for row in rows]
    charts = [
        logged(rows, {"format": "part/format"}, y="share", half=True,
               caption="Judgements whose verdict can be read."),
        logged(rows, {"right": "part/right_order"}, y="share", half=True,
               caption="Judgements that prefer what the gold prefers; half for a draw."),
        logged(rows, {"score 1": "part/score_error_1", "score 2": "part/score_error_2"}, y="points",
               half=True, caption="Distance of the scores from gold, where there is a verdict."),
        logged(rows, {"ranking": "part/ranking_error"}, y="points", half=True,
               caption="Distance of the ranking from gold, where there is a verdict."),
        logged(places, {"first": "first"}, y="share", half=True,
               caption="Verdicts that prefer the first answer, of those that prefer one."),
        logged(places, {"neither": "neither"}, y="share", half=True,
               caption="Verdicts that prefer neither answer."),
    ]  # fmt: skip
    whole = logged(
        rows,
        {"reward": "reward"},
        y="reward",
        caption="A verdict's distances from gold, in both scores and the ranking, with a minus; a "
        "malformed one pays 10 and the worst distances possible.",
    )
    return [whole, side_by_side(*charts)]


def _places(row: Row) -> dict[str, float]:
    first, second, neither = (row.get(f"count/prefers_{name}", 0) for name in ("1", "2", "neither"))
    found: dict[str, float] = {}
    if first + second:
        found["first"] = first / (first + second)
    if first + second + neither:
        found["neither"] = neither / (first + second + neither)
    return found


def _sources(batches: Sequence[Batch]) -> list[str]:
    """Means by the source of the pairs, over the batches that were read."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for batch in batches:
        for group in batch.groups:
            by_source[group["prompt"]["source"]] += group["rollouts"]
    rows: list[list[object]] = [
        [source, len(found), *(_mean(found, part) for part in ("format", "right_order"))]
        + [_mean(found, part) for part in ("score_error_1", "score_error_2", "ranking_error")]
        for source, found in sorted(by_source.items())
    ]
    if not rows:
        return []
    head = ["source", "judgements", "format", "right order"]
    errors = ["score 1, off by", "score 2, off by", "ranking, off by"]
    note = f"Over {len(batches)} batches of the training, the first and the last among them."
    return [paragraph(note), table([*head, *errors], rows, numeric=range(1, 7))]


def _mean(rollouts: Sequence[Row], part: str) -> str | None:
    values = [value for r in rollouts if (value := r["parts"].get(part)) is not None]
    if not values:
        return None
    mean = statistics.fmean(values)
    return percent(mean) if part in ("format", "right_order") else f"{mean:.3f}"
