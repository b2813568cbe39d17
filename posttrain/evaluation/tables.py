"""Figures of a run, and of two runs side by side, as tables on the console.

print_cells(console, metrics["cells"]);  print_pairs(console, metrics["pairs"])
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


def print_cells(console: Console, cells: Sequence[Row]) -> None:
    """One line a checkpoint × task × setting × mode; shares in per cent with 95 % intervals."""
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
            *(interval(cell["rates"].get(name)) for name in shown),
            " + ".join(f"{found['mean']['value']:.0f}" for found in lengths.values()),
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


def _change(found: Row | None) -> str:
    if found is None:
        return ""
    between = f"{100 * found['low']:+.1f} … {100 * found['high']:+.1f}"
    return f"{100 * found['difference']:+.2f} ({between}), p {p_value(found['p'])}"


def interval(found: Row | None) -> str:
    """A share and its interval in per cent."""
    if found is None:
        return ""
    return f"{100 * found['value']:.1f} ({100 * found['low']:.1f}–{100 * found['high']:.1f})"


def p_value(p: float) -> str:
    """A p-value that never reads as nought."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _lost(cell: Row) -> str:
    """Completions without a figure."""
    lost = {name: cell[name] for name in ("failed", "unscored") if cell[name]}
    return ", ".join(f"{name} {count:,}" for name, count in lost.items())
