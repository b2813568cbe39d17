"""The dry run: what a build would do, by the first records of every source, and why it would stop.

show_expected(console, recipe, probes, rows)   prints the plan and the drops; raises what stops it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from data_builders.sft.mixture import Available, Total, plan_mixture
from data_builders.sft.preflight import Probe
from data_builders.sft.sources import check_limits
from posttrain.audit.limits import violations
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError

RECORDS = 1_000  # of each source that a dry run looks at: all of a small one
_BYTES_PER_TOKEN = 8  # an id and a label, four bytes each
_ESTIMATED = 0.1  # how far off a source's amount may be estimated before a dry run fails


def show_expected(
    console: Console,
    recipe: BuildSftConfig,
    probes: Sequence[Probe],
    rows: Mapping[str, int | None],
) -> None:
    """Print what the build would do, extrapolated from the first records of every source.

    Raises:
        ConfigError: the build would stop, with every reason that the probes show.
    """
    expected = {p.name: _expected(p, rows[p.name]) for p in probes}
    console.print(_plan_table(recipe, probes, expected))
    totals = [total for total in expected.values() if total is not None]
    tokens = sum(total.tokens for total in totals)
    seconds = sum(p.seconds * (rows[p.name] or p.rows) / max(p.rows, 1) for p in probes)
    least = "at least " if len(totals) < len(probes) else ""
    console.print(
        f"Each record once: {least}~{tokens:,.0f} tokens, "
        f"~{tokens / recipe.packing.max_length:,.0f} packs of {recipe.packing.max_length:,}, "
        f"~{seconds:,.0f} s, ~{tokens * _BYTES_PER_TOKEN / 1e6:,.0f} MB of shards "
        f"and as much again while building. {_shares(recipe)}"
    )
    if any(p.examples for p in probes):
        console.print(_drop_table(probes))
    pairs = zip(probes, recipe.sources, strict=True)
    problems = [line for pair in pairs for line in _problems(*pair, recipe)]
    if all(p.drop is not None for own in probes for p in own.prepared):
        problems.append("nothing is left to train on")
    problems += _mixture_problems(recipe, probes, expected)
    if problems:
        raise ConfigError("\n  ".join(["this build would stop:", *dict.fromkeys(problems)]))


def _expected(probe: Probe, rows: int | None) -> Total | None:
    """What a source has by the share of its first rows that is kept; None if rows are unknown."""
    kept = [p for p in probe.prepared if p.drop is None]
    sequences = [s for p in kept for s in p.sequences]
    own = Total(
        rows=len(kept),
        tokens=sum(len(s.tokens.ids) for s in sequences),
        trained=sum(s.tokens.trained for s in sequences),
        sequences=len(sequences),
    )
    if probe.complete:
        return own
    return None if rows is None else own.scaled(rows / max(probe.rows, 1))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    return table


def _plan_table(
    recipe: BuildSftConfig, probes: Sequence[Probe], expected: Mapping[str, Total | None]
) -> Table:
    columns = ("source", "rows read", "kept", "all tokens", "tokens/row", "trained", "target")
    table = _table("Expected, from the first records of each source", *columns)
    for source, probe in zip(recipe.sources, probes, strict=True):
        own, total = _expected(probe, probe.rows) or Total(), expected[probe.name]
        table.add_row(
            source.name,
            f"{probe.rows:,}{' (all)' if probe.complete else ''}",
            f"{own.rows / max(probe.rows, 1):.0%}",
            "unknown" if total is None else f"~{total.tokens:,}",
            f"{own.tokens / max(probe.rows, 1):,.0f}",
            f"{own.trained / max(own.tokens, 1):.0%}",
            _target(source, recipe),
        )
    return table


def _drop_table(probes: Sequence[Probe]) -> Table:
    table = _table("Dropped among these rows", "source", "reason", "rows")
    table.add_column("for example", overflow="fold")
    for probe in probes:
        for reason, count in sorted(probe.stats["dropped"].items(), key=lambda item: -item[1]):
            table.add_row(probe.name, reason, f"{count:,}", f"{probe.examples[reason]:.300}")
    return table


def _target(source: SftSource, recipe: BuildSftConfig) -> str:
    if source.share is not None:
        return f"{source.share:.1%} of {recipe.mixture.unit}"
    if source.rows is not None:
        return f"{source.rows:,} rows"
    return f"{source.tokens:,} tokens" if source.tokens is not None else "once"


def _shares(recipe: BuildSftConfig) -> str:
    if recipe.mixture.total is not None:
        return f"Shares divide {recipe.mixture.total:,} {recipe.mixture.unit}."
    if any(s.share is not None for s in recipe.sources):
        return "Shares divide the largest total that keeps every source within max_epochs."
    return ""


def _problems(probe: Probe, source: SftSource, recipe: BuildSftConfig) -> Iterator[str]:
    """Limits that these records cross, and nothing kept of a source that is to give something."""
    in_rows = f"in its first {probe.rows} rows"
    try:
        probe.fields.check(probe.name)
    except ConfigError as error:
        yield str(error)
    try:
        check_limits(probe.name, probe.stats, recipe.limits)
    except DataError as error:
        yield f"{error} ({in_rows})"
    for line in violations(probe.name, probe.figures.stats(), recipe.limits):
        yield f"{line} ({in_rows})"
    if source.has_amount and all(p.drop is not None for p in probe.prepared):
        dropped = sorted(probe.stats["dropped"].items(), key=lambda item: -item[1])
        lost = ", ".join(f"{count:,} {reason}" for reason, count in dropped) or "no rows"
        yield f"source {probe.name!r}: nothing is kept {in_rows} ({lost})"


def _mixture_problems(
    recipe: BuildSftConfig, probes: Sequence[Probe], expected: Mapping[str, Total | None]
) -> list[str]:
    """Amounts that the sources cannot give within their epochs."""
    available: list[Available] = []
    for source in recipe.sources:
        total = expected[source.name]
        if total is None:  # compressed or streamed: nobody knows how much there is
            return []
        held_out = source.held_out or recipe.held_out
        share = (
            (held_out.rows or 0) / max(total.rows, 1) if held_out.rate is None else held_out.rate
        )
        available.append(Available(source.name, None, total.scaled(max(1 - share, 0))))
    tolerance = recipe.mixture.tolerance
    if not all(p.complete for p in probes):
        tolerance += _ESTIMATED
    mixture = recipe.mixture.model_copy(update={"tolerance": tolerance})
    try:
        plan_mixture(available, recipe.model_copy(update={"mixture": mixture}))
    except DataError as error:
        return [f"{error} (estimated from the first rows)"]
    return []
