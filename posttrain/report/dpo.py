"""Sections of a checkpoint that DPO made: loss, margins, log-probabilities, categories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.charts import HALF, WIDTH, Series, lines
from posttrain.report.html import figure, paragraph, stats_list, table
from posttrain.report.log_charts import points
from posttrain.report.page import Page

Row = Mapping[str, Any]


def add_dpo(page: Page, stats: Row, rows: Sequence[Row]) -> None:
    """All sections but the speed."""
    logged = [row for row in rows if math.isfinite(row.get("preference_loss", math.nan))]
    if not logged:
        page.leave_out("Preference training", "no logged loss is finite")
        return
    page.add("Preference training", _run(stats), *_losses(logged))
    page.add("Margins and log-probabilities", *_curves(stats, logged))
    page.add("By category", *_categories(stats, logged))


def headline(stats: Row) -> list[tuple[str, str, str]]:
    """Tiles of a DPO checkpoint."""
    last = stats["last"]
    return [
        (
            f"{last['accuracy']:.1%}",
            "pairs ranked right",
            f"last logged step; margin {last['margin']:+.3f}",
        ),
        (
            f"{last['chosen_change']:+.2f}",
            "change of the chosen, nats",
            f"rejected {last['rejected_change']:+.2f}; {stats['steps']} steps",
        ),
    ]


def _run(stats: Row) -> str:
    first = stats["first_sft"]
    return stats_list(
        [
            ("steps", f"{stats['steps']} of {stats['global_batch']} pairs"),
            ("pairs drawn", f"{stats['pairs_drawn']:,}, {stats['epochs']:.2f} epochs"),
            ("β", f"{stats['beta']:g}"),
            ("first preference loss", f"{stats['first_preference_loss']:.6f} (ln 2 = 0.693147)"),
            (
                "first SFT term",
                f"{first['sum']:.3f} as a sum a completion, {first['mean']:.3f} as a mean a token; "
                f"the {stats['sft_form']} is trained",
            ),
            ("processes", f"{stats['world_size']}, sharding {stats['sharding']}"),
            ("layout", stats["layout"]),
        ]
    )


def _losses(rows: Sequence[Row]) -> list[str]:
    chart = lines([Series("preference loss", *points(rows, "preference_loss"))], x="step", y="nats")
    accuracy = lines(
        [Series("ranked right", *points(rows, "accuracy"))], x="step", y="share", width=HALF
    )
    norm = lines(
        [Series("gradient norm", *points(rows, "grad_norm"))], x="step", y="norm", width=HALF
    )
    return [
        figure(chart, "−log σ(β × margin in log-probability), mean over the pairs of a step."),
        f'<div class="pair">{figure(accuracy, "Pairs whose chosen gained more.")}'
        f"{figure(norm, 'Gradient norm before clipping.')}</div>",
    ]


def _curves(stats: Row, rows: Sequence[Row]) -> list[str]:
    margin = lines([Series("margin", *points(rows, "margin"))], x="step", y="β × nats", width=HALF)
    levels = _both(rows, "logp", y="nats")
    changes = _both(rows, "change", y="nats")
    parts = [
        f'<div class="pair">{figure(margin, "Reward margin, mean over pairs.")}'
        f"{figure(changes, 'Change against the reference, mean over pairs: chosen and rejected.')}"
        "</div>",
        figure(levels, "Log-probability a completion, mean over pairs; other pairs each step."),
    ]
    if stats["chosen_fell"]:
        fall = -stats["lowest_chosen_change_per_token"]
        parts.append(
            paragraph(
                f"The chosen completions became less likely: by {fall:.4f} nats a token at the "
                "lowest. Pairs that differ in a few tokens do that; so does a small SFT weight."
            )
        )
    return parts


def _both(rows: Sequence[Row], what: str, *, y: str) -> str:
    series = [
        Series("chosen", *points(rows, f"chosen_{what}")),
        Series("rejected", *points(rows, f"rejected_{what}"), "b"),
    ]
    return lines(series, x="step", y=y, width=HALF if what == "change" else WIDTH)


def _categories(stats: Row, rows: Sequence[Row]) -> list[str]:
    table_rows: list[list[object]] = []
    for name, pairs in stats["pairs_by_category"].items():
        last = [row for row in rows if f"{name}/margin" in row][-1:]
        if not last:
            continue
        row = last[0]
        table_rows.append(
            [
                name,
                f"{pairs:,}",
                f"{row[f'{name}/accuracy']:.1%}",
                f"{row[f'{name}/margin']:+.4f}",
                f"{row[f'{name}/chosen_change']:+.3f}",
                f"{row[f'{name}/rejected_change']:+.3f}",
            ]
        )
    head = ["category", "pairs", "ranked right", "margin", "chosen, change", "rejected, change"]
    note = "At the last logged step, on the pairs it drew; changes in nats a completion."
    return [paragraph(note), table(head, table_rows, numeric=range(1, 6))]
