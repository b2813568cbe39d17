"""Sections of a checkpoint that RLHF made: reward in parts, lengths, the judge, groups to read."""

from __future__ import annotations

import statistics
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
from posttrain.report.html import paragraph, percent, stats_list, table
from posttrain.report.lineage import Node
from posttrain.report.log_charts import logged, side_by_side
from posttrain.report.page import Page
from posttrain.report.rollout_files import Batch, read_rollouts

Row = Mapping[str, Any]
SHOWN = {
    "reward": "reward",
    "part/base": "base reward, the judge's",
    "reward_std": "deviation of the rewards",
    "part/accuracy": "accuracy on checkable prompts",
    "reasoning_tokens": "reasoning tokens",
    "answer_tokens": "answer tokens",
    "truncated": "truncated, share",
    "zero_variance": "groups without advantage, share",
    "unscored": "unscored, share",
    "entropy": "entropy, nats a token",
}
# parts that are added to the base; the others are only watched
ADDED = {
    "reasoning_length": "reasoning length, zero-sum",
    "answer_length": "answer length, zero-sum",
    "reasoning_bonus": "bonus of the shortest reasoning",
    "answer_bonus": "bonus of the shortest answer",
    "style": "style, zero-sum",
    "absolute_penalty": "absolute length penalty",
}


def add_rlhf(page: Page, node: Node, stats: Row, rows: Sequence[Row]) -> None:
    """All sections but the speed of one run."""
    logs = batch_rows(rows)
    batches = read_rollouts(node)
    page.add("RLHF", run_stats(stats), before_and_after(stats, SHOWN), *_rewards(logs))
    page.add("Added to the judge's reward", *_parts(batches))
    page.add("Lengths of rollouts", *lengths(logs))
    page.add("The judge", *_judge(logs))
    page.add("Health of RLHF", *health(rows))
    page.add("Advantages and importance weights", *spreads(node, batches))
    page.add("Groups to read", *groups_to_read(batches))
    add_seconds(page, node, title="Seconds of RLHF")


def _rewards(rows: Sequence[Row]) -> list[str]:
    chart = logged(
        rows,
        {"reward": "reward", "base reward": "part/base"},
        y="reward",
        caption="Mean over the scored rollouts of a batch; each batch has other prompts. A judge "
        "compares rollouts of one policy with each other: this curve says less than a comparison "
        "with the initial policy.",
    )
    accuracy = logged(
        rows,
        {"accuracy": "part/accuracy"},
        y="share",
        caption="Right answers on the prompts that can be checked; watched, not rewarded.",
        half=True,
    )
    spread = logged(
        rows,
        {"deviation": "reward_std"},
        y="reward",
        caption="Deviation of the rewards over all rollouts of a batch.",
        half=True,
    )
    return [chart, side_by_side(accuracy, spread)]


def _parts(batches: Sequence[Batch]) -> list[str]:
    """Mean and size of each part, over the batches that were read."""
    rows: list[list[object]] = []
    for key, name in ADDED.items():
        values = [
            value
            for batch in batches
            for rollout in batch.rollouts
            if (value := rollout["parts"].get(key)) is not None
        ]
        if values:
            given = sum(value != 0 for value in values) / len(values)
            rows.append(
                [
                    name,
                    f"{statistics.fmean(values):+.3f}",
                    f"{statistics.fmean(map(abs, values)):.3f}",
                    percent(given),
                    f"{min(values):+.2f} to {max(values):+.2f}",
                ]
            )
    if not rows:
        return []
    note = f"Over the scored rollouts of {len(batches)} batches, in points of the judge's scale."
    head = ["part", "mean", "mean size", "rollouts it changes", "from, to"]
    return [paragraph(note), table(head, rows, numeric={1, 2, 3, 4})]


def judge_shares(row: Row) -> dict[str, float]:
    """What a batch's counts say of its judge, as shares; those without a base are left out."""

    def count(name: str) -> float:
        return row.get(f"count/{name}", 0)

    matches = count("matches")
    judged = matches - count("judge_failed")
    decided = count("position_1_wins") + count("position_2_wins")
    found: dict[str, float] = {}
    if matches:
        found["failed"] = count("judge_failed") / matches
    if judged:
        found["ties"] = count("ties") / judged
    if decided:
        found["first preferred"] = count("position_1_wins") / decided
    return found


def _judge(rows: Sequence[Row]) -> list[str]:
    judged = [row for row in rows if row.get("count/matches")]
    if not judged:
        return []
    shares = [{"step": row["step"], **judge_shares(row)} for row in judged]
    charts = [
        logged(shares, {"first": "first preferred"}, y="share", half=True,
               caption="Rankings that prefer the answer shown first, of those that prefer one."),
        logged(shares, {"ties": "ties"}, y="share", half=True,
               caption="Equal scores: parted by the ranking."),
        logged(shares, {"failed": "failed"}, y="share", half=True,
               caption="Matches left without a verdict."),
        logged(judged, {"calls": "count/judge_calls"}, y="calls", half=True,
               caption="Calls of the judge, a batch."),
        logged(judged, {"read": "count/judge_prompt_tokens",
                        "written": "count/judge_completion_tokens"}, y="tokens", half=True,
               caption="Tokens the judge read and wrote, a batch."),
    ]  # fmt: skip
    return [_totals(judged), side_by_side(*charts)]


def _totals(rows: Sequence[Row]) -> str:
    names = {name for row in rows for name in row if name.startswith("count/")}
    total = {name: sum(row.get(name, 0) for row in rows) for name in names}
    shares = judge_shares(total)
    calls, batches = total.get("count/judge_calls", 0), len(rows)
    decided = total.get("count/position_1_wins", 0) + total.get("count/position_2_wins", 0)
    pairs: list[tuple[str, object]] = [
        (
            "matches",
            f"{total['count/matches']:,.0f}, {total['count/matches'] / batches:,.1f} a batch",
        ),
        ("calls", f"{calls:,.0f}, of them retries {total.get('count/judge_retries', 0):,.0f}"),
        ("verdicts from the cache", f"{total.get('count/judge_cached', 0):,.0f}"),
        (
            "tokens read, written",
            f"{total.get('count/judge_prompt_tokens', 0):,.0f}, "
            f"{total.get('count/judge_completion_tokens', 0):,.0f}",
        ),
        ("failed", percent(shares["failed"], 2)),
    ]
    if "ties" in shares:
        pairs.append(("equal scores", percent(shares["ties"])))
    if "first preferred" in shares:
        preferred = f"{percent(shares['first preferred'])} of {decided:,.0f} rankings"
        pairs.append(("first answer preferred", f"{preferred} (50 % without position bias)"))
    return stats_list(pairs)
