"""The tables that a build prints: what it expects before, what it did after.

print_summary(console, stats)     source │ in │ kept │ held out │ dropped by reason …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from data_builders.sft_preflight import Probe
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.report.console import print_sections
from posttrain.report.pages.sft_data import control, drops, mixture, origins, packing
from posttrain.report.pages.supervision import supervision

_BYTES_PER_TOKEN = 8  # an id and a label, four bytes each


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    return table


def print_plan(
    console: Console,
    recipe: BuildSftConfig,
    probes: Sequence[Probe],
    rows: Mapping[str, int | None],
) -> None:
    """What the build expects, extrapolated from the first records of every source."""
    table = _table(
        "Expected, from the first records of each source",
        *("source", "rows", "kept", "sequences/row", "tokens/row", "trained", "asked", "seconds"),
    )
    tokens = seconds = 0.0
    complete = True
    for source, probe in zip(recipe.sources, probes, strict=True):
        number = rows[source.name]
        complete &= number is not None
        per_row = _per_row(probe)
        if number is not None:
            tokens += number * per_row["tokens"]
            seconds += number * per_row["seconds"]
        table.add_row(
            source.name,
            "unknown" if number is None else f"~{number:,}",
            f"{per_row['kept']:.0%}",
            f"{per_row['sequences']:.2f}",
            f"{per_row['tokens']:,.0f}",
            f"{per_row['trained']:.0%}",
            _asked(source, recipe),
            "unknown" if number is None else f"~{number * per_row['seconds']:,.0f}",
        )
    console.print(table)
    capacity = recipe.packing.max_length
    least = "at least " if not complete else ""
    console.print(
        f"Each record once: {least}~{tokens:,.0f} tokens, ~{tokens / capacity:,.0f} packs of "
        f"{capacity:,}, ~{seconds:,.0f} s, ~{tokens * _BYTES_PER_TOKEN / 1e6:,.0f} MB of shards "
        f"and as much again while building. {_total(recipe)}"
    )


def _per_row(probe: Probe) -> dict[str, float]:
    rows, sequences = max(probe.rows, 1), probe.sequences
    tokens = sum(s.length for s in sequences)
    return {
        "kept": sum(p.drop is None for p in probe.prepared) / rows,
        "sequences": len(sequences) / rows,
        "tokens": tokens / rows,
        "trained": sum(s.tokens.trained for s in sequences) / max(tokens, 1),
        "seconds": probe.seconds / rows,
    }


def _asked(source: SftSource, recipe: BuildSftConfig) -> str:
    if source.share is not None:
        return f"{source.share:.1%} of {recipe.mixture.unit}"
    if source.rows is not None:
        return f"{source.rows:,} rows"
    return f"{source.tokens:,} tokens" if source.tokens is not None else "once"


def _total(recipe: BuildSftConfig) -> str:
    total = recipe.mixture.total
    if total is not None:
        return f"Shares divide {total:,} {recipe.mixture.unit}."
    if any(s.share is not None for s in recipe.sources):
        return "Shares divide the largest total that keeps every source within max_epochs."
    return ""


def print_summary(console: Console, stats: Mapping[str, Any]) -> None:
    """The tables of the report: drops, mixture, packing, what is trained, control, sources."""
    sections = [section(stats) for section in (drops, mixture, packing)]
    sections += [supervision(stats["supervision"]), control(stats), origins(stats)]
    print_sections(console, sections, charts=False)
