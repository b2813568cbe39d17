"""The figures of an audit as a table on the console.

print_supervision(console, {"maths": {"sequences": 7470, …}})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from posttrain.audit.titles import share

# figure → heading; those that are 0 everywhere are left out
OPTIONAL = {
    "nothing_trained": "nothing trained",
    "no_end": "no end token",
    "end_masked": "end untrained",
    "turn_tokens": "turn token trained",
    "prompt_trained": "prompt trained",
    "everything_trained": "all trained",
    "clipped": "clipped",
    "cut_trace": "trace cut",
    "duplicated": "copies",
}


def print_supervision(console: Console, sources: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a source; counts of sequences with their share."""
    shown = [name for name in OPTIONAL if any(figures[name] for figures in sources.values())]
    table = Table(title="What is trained", title_justify="left", title_style="bold")
    table.add_column("source", overflow="fold")
    head = ("sequences", "tokens", "trained", "longest", "end trained", "empty trace")
    for heading in (*head, *(OPTIONAL[name] for name in shown)):
        table.add_column(heading, justify="right")
    for source, figures in sources.items():
        table.add_row(
            source,
            f"{figures['sequences']:,}",
            f"{figures['tokens']:,}",
            percent_of(figures, "trained"),
            f"{figures['longest']:,}",
            percent_of(figures, "end_trained"),
            percent_of(figures, "empty_think"),
            *(_counted(figures, name) for name in shown),
        )
    console.print(table)


def percent_of(figures: Mapping[str, Any], name: str) -> str:
    """A count as a share, "–" where it is unknown."""
    part = share(figures, name)
    return "–" if part is None else f"{part:.1%}"


def _counted(figures: Mapping[str, Any], name: str) -> str:
    count = figures[name]
    return "–" if count is None else f"{count:,} ({percent_of(figures, name)})" if count else "0"
