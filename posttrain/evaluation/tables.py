"""Figures of evaluations as tables on the console: shares in per cent with 95 % intervals.

print_cells(console, metrics["cells"]);  print_pairs(console, metrics["pairs"])
print_judges(console, metrics["cells"], metrics["differences"])
print_win_rates(console, rows)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
# what is shown; metrics.json has the rest
_SHOWN = {
    "accuracy": "accuracy",
    "hallucination": "undeclared calls",
    "called_tool": "calls tools",
    "adherence": "adheres",
    "truncated": "truncated",
    "malformed": "malformed",
}
_COMPARED = ("accuracy", "hallucination", "called_tool")
_JUDGE_RATES = {
    "pairwise_accuracy": "pairwise accuracy",
    "position_consistency": "position consistency",
    "format": "format kept",
    "prefers_first": "prefers the first",
    "same_scores": "equal scores",
    "truncated": "truncated",
}
_JUDGE_MEANS = {
    "score_error": "score error",
    "ranking_error": "ranking error",
    "reward": "reward",
    "tokens": "tokens",
}
_JUDGES_COMPARED = ("pairwise_accuracy", "position_consistency", "format", "reward")


def print_cells(console: Console, cells: Sequence[Row]) -> None:
    """One line a checkpoint × task × setting × mode."""
    shown = {k: title for k, title in _SHOWN.items() if any(k in c["rates"] for c in cells)}
    table = Table("checkpoint", "task", "setting", "think", "n", *shown.values(), "tokens", "lost")
    for cell in cells:
        lengths = cell["lengths"]
        table.add_row(
            cell["checkpoint"],
            cell["task"],
            cell["setting"],
            cell["thinking"],
            f"{cell['samples']:,}",
            *(_interval(cell["rates"].get(name)) for name in shown),
            " + ".join(f"{length['mean']['value']:.0f}" for length in lengths.values()),
            _lost(cell),
        )
    console.print(table)


def print_pairs(console: Console, pairs: Sequence[Row]) -> None:
    """One line a task × setting × mode: changes in points, their intervals, p of each alone."""
    shown = {k: _SHOWN[k] for k in _COMPARED if any(k in pair["rates"] for pair in pairs)}
    if not shown:
        return
    table = Table("checkpoints", "task", "setting", "think", *shown.values())
    for pair in pairs:
        table.add_row(
            f"{pair['a']} → {pair['b']}",
            pair["task"],
            pair["setting"],
            pair["thinking"],
            *(_change(pair["rates"].get(name)) for name in shown),
        )
    console.print(table)


def print_judges(console: Console, cells: Sequence[Row], differences: Sequence[Row]) -> None:
    """One line a checkpoint × source, then one a pair of checkpoints × source."""
    means = {k: title for k, title in _JUDGE_MEANS.items() if any(cell[k] for cell in cells)}
    table = Table("judge", "source", "pairs", *_JUDGE_RATES.values(), *means.values())
    for cell in cells:
        table.add_row(
            cell["checkpoint"],
            cell["source"],
            f"{cell['pairs']:,}",
            *(_interval(cell[name]) for name in _JUDGE_RATES),
            *("" if cell[name] is None else f"{cell[name]['value']:.2f}" for name in means),
        )
    console.print(table)
    if not differences:
        return
    table = Table(
        "judges", "source", "pairwise accuracy", "position consistency", "format kept", "reward"
    )
    for row in differences:
        table.add_row(
            f"{row['a']} → {row['b']}",
            row["source"],
            *(
                _change(row.get(name), scale=1 if name == "reward" else 100)
                for name in _JUDGES_COMPARED
            ),
        )
    console.print(table)


def print_win_rates(console: Console, rows: Sequence[Row]) -> None:
    """One line a unit."""
    table = Table("", "pairs", "same", "unjudged", "won", "tied", "lost", "won + tied / 2",
                  "orders disagree", "tokens")  # fmt: skip
    for row in rows:
        tokens = row["tokens"]
        table.add_row(
            row["unit"],
            *(f"{row[name]:,}" for name in ("duels", "same", "unjudged")),
            *(_interval(row[name]) for name in ("win", "tie", "loss", "score", "disagree")),
            "" if tokens is None else f"{tokens['a']:.1f} → {tokens['b']:.1f}",
        )
    console.print(table)


def _change(change: Row | None, *, scale: float = 100) -> str:
    if change is None:
        return ""
    between = f"{scale * change['low']:+.1f} … {scale * change['high']:+.1f}"
    p = change["p"]
    shown = f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"  # never "0.000"
    return f"{scale * change['difference']:+.2f} ({between}), p {shown}"


def _interval(share: Row | None) -> str:
    if share is None:
        return ""
    return f"{100 * share['value']:.1f} ({100 * share['low']:.1f}–{100 * share['high']:.1f})"


def _lost(cell: Row) -> str:
    """Completions without a figure."""
    lost = {name: cell[name] for name in ("failed", "unscored") if cell[name]}
    return ", ".join(f"{name} {count:,}" for name, count in lost.items())
