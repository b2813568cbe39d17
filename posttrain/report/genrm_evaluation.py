"""Sections of a judge's evaluation: figures by source, changes, and judgements to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.html import Markup, folded, paragraph, percent, table, text
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page

Row = Mapping[str, Any]
SHOWN_CHARACTERS = 4000
_RATES = {
    "pairwise_accuracy": "pairwise accuracy",
    "right_in_both_orders": "right in both orders",
    "position_consistency": "position consistency",
    "format": "format kept",
    "prefers_first": "prefers the first",
    "same_scores": "equal scores",
    "truncated": "truncated",
}
_MEANS = {
    "score_error": "score error",
    "ranking_error": "ranking error",
    "reward": "reward",
    "tokens": "tokens",
}


def add_genrm_evaluation(page: Page, node: Node) -> None:
    """All sections of one `genrm_evaluation` artifact."""
    metrics = json.loads((node.path / "metrics.json").read_text("utf-8"))
    page.add("Judges on held-out pairs", *_cells(metrics))
    page.add("Judges compared", *_differences(metrics["differences"]))
    rows = listed_rows(node, "examples.jsonl") or []
    page.add("Judgements to read", *(_example(row, n == 0) for n, row in enumerate(rows)))


def headline(node: Node) -> list[tuple[str, str, str]]:
    """Figures for the top of the page: the last judge over all sources."""
    cells = json.loads((node.path / "metrics.json").read_text("utf-8"))["cells"]
    last = cells[-1]
    found: list[tuple[str, str, str]] = []
    for name in ("pairwise_accuracy", "position_consistency", "format"):
        if last[name] is not None:
            found.append((percent(last[name]["value"]), _RATES[name], last["checkpoint"]))
    return found


def _cells(metrics: Row) -> list[str]:
    rows = [
        [cell["checkpoint"], cell["source"], cell["pairs"]]
        + [_share(cell[name]) for name in _RATES]
        + [_mean(cell[name]) for name in _MEANS]
        for cell in metrics["cells"]
    ]
    lost = ", ".join(f"{name} {n:,}" for name, n in metrics["failed"].items() if n)
    return [
        table(["judge", "source", "pairs", *_RATES.values(), *_MEANS.values()], rows,
              numeric=range(2, 3 + len(_RATES) + len(_MEANS))),
        paragraph(
            "Every pair is asked in both orders. Pairwise accuracy: the response that the gold "
            "prefers is preferred, by the scores and at equal scores by the ranking; no preference "
            "is half right, an answer without a verdict is not. Position consistency: the same "
            "winner in both orders, of pairs with two readable verdicts. Prefers the first: a "
            "judge without position bias has one half. Intervals are 95 %; pairs of one question "
            "are one cluster."
            + (f" Lost by the backend and in no figure: {lost}." if lost else "")
        ),
    ]  # fmt: skip


def _differences(rows: Sequence[Row]) -> list[str]:
    names = {"pairwise_accuracy": 100, "position_consistency": 100, "format": 100, "reward": 1}
    found = [
        [f"{row['a']} → {row['b']}", row["source"]]
        + [_change(row.get(name), scale) for name, scale in names.items()]
        for row in rows
    ]
    head = ["judges", "source", "pairwise accuracy, points", "position consistency, points"]
    return [table([*head, "format, points", "reward"], found)] if found else []


def _share(found: Row | None) -> str | None:
    if found is None:
        return None
    between = f"{100 * found['low']:.1f}–{100 * found['high']:.1f}"
    return f"{100 * found['value']:.1f} ({between})"


def _mean(found: Row | None) -> str | None:
    if found is None:
        return None
    return f"{found['value']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


def _change(found: Row | None, scale: float) -> str | None:
    if found is None:
        return None
    between = f"{scale * found['low']:+.1f} … {scale * found['high']:+.1f}"
    return f"{scale * found['difference']:+.2f} ({between}), p {found['p']:.2g}"


def _example(row: Row, opened: bool) -> str:
    reward = "lost" if row["reward"] is None else f"reward {row['reward']:.1f}"
    title = Markup(f"<b>{text(row['checkpoint'])}</b> · {text(row['prompt'])} · {text(reward)}")
    body = (
        f"{text(_cut(row['asked']))}\n<mark>{text(_cut(row['said']))}</mark>\n"
        f'<span class="faint">[gold]</span> {text(row["gold"])}'
    )
    return folded(title, f'<pre class="chat">{body}</pre>', opened=opened)


def _cut(value: str) -> str:
    rest = len(value) - SHOWN_CHARACTERS
    return value if rest <= 0 else f"{value[:SHOWN_CHARACTERS]} … {rest:,} characters more"
