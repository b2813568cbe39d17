"""Sections of every group-relative run: lengths, health, advantages, importance, seconds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.histograms import histogram
from posttrain.report.html import figure, paragraph, percent, stats_list, table
from posttrain.report.lineage import Node
from posttrain.report.log_charts import logged, side_by_side
from posttrain.report.page import Page
from posttrain.report.rollout_files import Batch, rollout_files

Row = Mapping[str, Any]
TIMING = "timing.jsonl"


def batch_rows(rows: Sequence[Row]) -> list[Row]:
    """The log's rows that are about a whole batch of rollouts."""
    return [row for row in rows if "rollouts" in row]


def headline(stats: Row) -> list[tuple[str, str, str]]:
    """Tiles of a run: what it is trained for, before and after."""
    first, last, averaged = stats["first"], stats["last"], stats["averaged"]
    note = f"mean of the last {averaged} batches"
    found: list[tuple[str, str, str]] = []
    if "reward" in first and "reward" in last:
        found.append((f"{last['reward']:.3f}", "reward", f"was {first['reward']:.3f}; {note}"))
    for key, name in (
        ("part/accuracy", "right on checkable prompts"),
        ("part/right_order", "pairs ordered right"),
        ("part/format", "verdicts in their format"),
    ):
        if key in first and key in last:
            found.append((percent(last[key]), name, f"was {percent(first[key])}; {note}"))
    lengths = ("reasoning_tokens", "answer_tokens")
    before, after = (sum(some.get(key, 0) for key in lengths) for some in (first, last))
    if before:
        change = f"{after / before - 1:+.0%}".replace("-", "−")
        found.append((f"{after:,.0f}", "tokens a rollout", f"{change}; was {before:,.0f}"))
    cut, was = last["truncated"], first["truncated"]
    found.append((percent(cut), "of the rollouts truncated", f"was {percent(was)}; {note}"))
    return found


def run_stats(stats: Row) -> str:
    """What was run."""
    pairs: list[tuple[str, object]] = [
        (
            "batches",
            f"{stats['batches']:,} of {stats['prompts_per_step']} prompts × "
            f"{stats['num_generations']} rollouts",
        ),
        ("optimiser steps", stats["steps"]),
        ("epochs", f"{stats['epochs']:.2f}"),
        ("tokens sampled", stats["tokens"]),
        ("of them in the loss", stats["trained"]),
        ("processes", f"{stats['world_size']}, sharding {stats['sharding']}"),
    ]
    return stats_list(pairs)


def before_and_after(stats: Row, names: Mapping[str, str]) -> str:
    """A table of means over the first and the last batches; quantities not logged are left out."""
    first, last = stats["first"], stats["last"]
    rows = [
        [name, f"{first[key]:.3f}", f"{last[key]:.3f}", f"{last[key] - first[key]:+.3f}"]
        for key, name in names.items()
        if key in first and key in last
    ]
    averaged, batches = stats["averaged"], stats["batches"]
    note = f"Means over the first and the last {averaged} batches of rollouts."
    if 2 * averaged > batches:
        note += f" The run had {batches}: these are partly the same."
    return paragraph(note) + table(["", "first", "last", "change"], rows, numeric={1, 2, 3})


def lengths(rows: Sequence[Row]) -> list[str]:
    """How long rollouts are, and how many run to a limit."""
    keys = {"reasoning": "reasoning_tokens", "answer": "answer_tokens"}
    chart = logged(
        rows,
        keys,
        y="tokens",
        caption="Mean tokens of a rollout: reasoning (of those asked to reason) and answer.",
    )
    cut = logged(
        rows,
        {"truncated": "truncated"},
        y="share",
        caption="Rollouts cut off by a limit.",
        half=True,
    )
    whole = logged(
        rows,
        {"tokens": "completion_tokens"},
        y="tokens",
        caption="Sampled tokens of a rollout, everything counted.",
        half=True,
    )
    return [chart, side_by_side(whole, cut)]


def health(rows: Sequence[Row]) -> list[str]:
    """Whether the run still learns and whether sampler and trainer agree."""
    charts = [
        logged(rows, {"equal": "zero_variance"}, y="share", half=True,
               caption="Groups without any advantage: nothing to learn from."),
        logged(rows, {"entropy": "entropy"}, y="nats", half=True,
               caption="Entropy of the policy, a token."),
        logged(rows, {"unscored": "unscored"}, y="share", half=True,
               caption="Rollouts without a reward."),
        logged(rows, {"gradient norm": "grad_norm"}, y="norm", half=True,
               caption="Gradient norm before clipping."),
        logged(rows, {"tokens": "masked_tokens", "completions": "masked_completions"}, y="share",
               half=True, caption="Left out of the loss by importance sampling."),
        logged(rows, {"KL": "kl"}, y="nats", half=True,
               caption="Estimated KL from the initial policy, a token."),
    ]  # fmt: skip
    return [side_by_side(*charts)]


def spreads(node: Node, batches: Sequence[Batch]) -> list[str]:
    """Histograms of advantages and importance weights over the batches that were read."""
    advantages = [r["advantage"] for b in batches for r in b.rollouts if r["advantage"] is not None]
    weights = [r["importance"] for b in batches for r in b.rollouts if r["importance"] is not None]
    parts = [paragraph(_which(node, batches))]
    if advantages:
        chart = histogram(advantages, x="advantage", y="rollouts")
        above = sum(value > 0 for value in advantages) / len(advantages)
        size = max(map(abs, advantages))
        note = (
            f"Advantages of {len(advantages):,} scored rollouts, truncated ones included: "
            f"{percent(above)} above zero, the largest {size:.2f} in size."
        )
        parts.append(figure(chart, note))
    means = [one["mean"] for one in weights if math.isfinite(one["mean"])]
    if means:
        chart = histogram(means, x="mean importance ratio of a rollout", y="rollouts")
        parts += [figure(chart, _ratios(weights, means))]
    return parts if len(parts) > 1 else []


def _which(node: Node, batches: Sequence[Batch]) -> str:
    total = len(rollout_files(node))
    if len(batches) == total:
        return f"Of all {total} batches of rollouts."
    return f"Of {len(batches)} of the {total} batches of rollouts, evenly spread."


def _ratios(weights: Sequence[Row], means: Sequence[float]) -> str:
    low, high = min(one["low"] for one in weights), max(one["high"] for one in weights)
    out = sum(not one["kept"] for one in weights)
    masked = sum(one["masked"] for one in weights)
    return (
        "Trainer's over sampler's probability, mean over a rollout's tokens, of the "
        f"{len(means):,} rollouts given to the loss; median {statistics.median(means):.4f}. Of "
        f"single tokens: {low:.3g} to {high:.3g}; {masked:,} tokens and {out:,} whole rollouts "
        "were left out."
    )


def seconds(node: Node) -> str:
    """Where the time went, of the last run of every batch; "" without a record of it."""
    file = node.path / TIMING
    if not file.is_file():
        return ""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    # a batch that was made again after a kill has two rows
    last = {row["step"]: row for row in rows}
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name != "step"]
    sums = {name: sum(row.get(name, 0.0) for row in last.values()) for name in names}
    total = sum(sums.values())
    if not total:
        return ""
    shown = [
        [name, f"{value:,.1f}", f"{value / len(last):,.2f}", percent(value / total)]
        for name, value in sums.items()
    ]
    head = ["part", "seconds", "a batch", "share"]
    note = f"Seconds of the main process over {len(last):,} batches; other work is not counted."
    return paragraph(note) + table(head, shown, numeric={1, 2, 3})


def add_seconds(page: Page, node: Node, *, title: str) -> None:
    """The section, or a line that says why there is none."""
    body = seconds(node)
    if body:
        page.add(title, body)
    else:
        page.leave_out(title, f"{node.name} has no {TIMING}")
