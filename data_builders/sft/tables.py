"""The tables that a build prints: what it expects before, what it did after.

print_summary(console, stats)     source │ in │ kept │ held out │ dropped by reason …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from data_builders.sft.preflight import Probe
from posttrain.audit.tables import print_supervision
from posttrain.config.build_sft import BuildSftConfig, SftSource

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
        *("source", "rows", "kept", "sequences/row", "tokens/row", "trained", "target", "seconds"),
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
            _target(source, recipe),
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


def _target(source: SftSource, recipe: BuildSftConfig) -> str:
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
    """What the build did."""
    _print_rows(console, stats)
    _print_mixture(console, stats)
    _print_splits(console, stats)
    print_supervision(console, stats["supervision"])
    control = stats["control"]
    console.print(
        f"Reasoning control: stripped {control['stripped']:,} of {control['reasoned']:,} records "
        f"with reasoning ({control['strip_rate']:.2%}), cut {control['truncated']:,} of "
        f"{control['traces']:,} traces ({control['truncate_rate']:.2%}), left "
        f"{control['too_short']:,} chosen traces whole because they are too short. "
        f"Template: {stats['template']['describe']}"
    )
    for warning in stats["warnings"]:
        console.print(f"warning: {warning}", style="yellow", highlight=False)


def _print_rows(console: Console, stats: Mapping[str, Any]) -> None:
    table = _table("Rows", "source", "in", "kept", "held out", "dropped")
    for name, source in stats["sources"].items():
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in source["dropped"].items())
        table.add_row(
            name, f"{source['in']:,}", f"{source['kept']:,}", f"{source['held_out']:,}", reasons
        )
    console.print(table)


def _print_mixture(console: Console, stats: Mapping[str, Any]) -> None:
    table = _table(
        "Mixture, requested and realised (repeats counted)",
        *(
            "source",
            "target",
            "actual",
            "rows",
            "tokens",
            "trained",
            "% rows",
            "% tok.",
            "% trained",
        ),
        "epochs",
    )
    for name, source in stats["sources"].items():
        target, actual, shares = source["requested"], source["realised"], source["shares"]
        table.add_row(
            name,
            "once" if target is None else f"{target['amount']:,.0f} {target['unit']}",
            "" if target is None else f"{target['realised']:,} ({target['difference']:+.2%})",
            *(f"{actual[unit]:,}" for unit in ("rows", "tokens", "trained")),
            *(f"{shares[unit]:.1%}" for unit in ("rows", "tokens", "trained")),
            f"{actual['epochs']:.2f}",
        )
    console.print(table)


def _print_splits(console: Console, stats: Mapping[str, Any]) -> None:
    table = _table(
        f"Packs of {stats['max_length']:,} tokens",
        *("split", "packs", "sequences", "reasoning on", "cut", "tokens", "trained", "fill"),
        "longest",
    )
    named = {**stats["splits"], **{f"  {g}": v for g, v in stats["eval_groups"].items()}}
    for name, split in named.items():
        table.add_row(
            name,
            *(f"{split[key]:,}" for key in ("packs", "sequences")),
            *(f"{split[key] / split['sequences']:.1%}" for key in ("reasoning", "truncated")),
            f"{split['tokens']:,}",
            f"{split['trained'] / max(split['tokens'], 1):.1%}",
            f"{split['fill']:.2%}",
            f"{split['longest']:,}",
        )
    console.print(table)
