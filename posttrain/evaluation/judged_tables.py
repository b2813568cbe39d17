"""Figures of judges as tables on the console.

print_judges(console, metrics["cells"]);  print_judge_differences(console, metrics["differences"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from posttrain.evaluation.tables import interval, p_value

Row = Mapping[str, Any]
_RATES = {
    "pairwise_accuracy": "pairwise accuracy",
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
_COMPARED = ("pairwise_accuracy", "position_consistency", "format", "reward")


def print_judges(console: Console, cells: Sequence[Row]) -> None:
    """One line a checkpoint × source; shares in per cent, 95 % intervals."""
    means = {k: title for k, title in _MEANS.items() if any(cell[k] for cell in cells)}
    table = Table("judge", "source", "pairs", *_RATES.values(), *means.values())
    for cell in cells:
        table.add_row(
            cell["checkpoint"],
            cell["source"],
            f"{cell['pairs']:,}",
            *(interval(cell[name]) for name in _RATES),
            *("" if cell[name] is None else f"{cell[name]['value']:.2f}" for name in means),
        )
    console.print(table)


def print_judge_differences(console: Console, rows: Sequence[Row]) -> None:
    """One line a pair of checkpoints × source: changes, their intervals, p of each alone."""
    if not rows:
        return
    table = Table(
        "judges", "source", "pairwise accuracy", "position consistency", "format kept", "reward"
    )
    for row in rows:
        table.add_row(
            f"{row['a']} → {row['b']}",
            row["source"],
            *(_change(row.get(name), 1 if name == "reward" else 100) for name in _COMPARED),
        )
    console.print(table)


def _change(found: Row | None, scale: float) -> str:
    if found is None:
        return ""
    between = f"{scale * found['low']:+.1f} … {scale * found['high']:+.1f}"
    return f"{scale * found['difference']:+.2f} ({between}), p {p_value(found['p'])}"
