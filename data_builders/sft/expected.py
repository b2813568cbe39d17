"""What a build would do, extrapolated from the first records of every source, for a dry run.

show_expected(console, recipe, probes, rows)     the plan, and the drops that the records show
ask_for_epochs(recipe, probes, rows)             what only the user can decide about repeats
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from data_builders.sft.mixture import Available, Total, epochs_question, plan_mixture
from data_builders.sft.preflight import Probe
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import DataError
from posttrain.report.console import print_sections
from posttrain.report.section import Section, Table

_BYTES_PER_TOKEN = 8  # an id and a label, four bytes each
_ESTIMATED = 0.1  # error of a source's estimated amount before a dry run fails


def show_expected(
    console: Console,
    recipe: BuildSftConfig,
    probes: Sequence[Probe],
    rows: Mapping[str, int | None],
) -> list[str]:
    """Print what the build would do, extrapolated from the first records of every source.

    Returns:
        Problems that show in all sources together, at which the build would stop.
    """
    expected = expected_totals(probes, rows)
    mixture, problems = _planned(recipe, probes, expected)
    plan = [
        [
            p.name,
            f"{p.rows:,}{' (all)' if p.complete else ''}",
            f"{p.kept.rows / max(p.rows, 1):.0%}",
            "unknown" if (total := expected[p.name]) is None else f"~{total.tokens:,}",
            f"{p.kept.tokens / max(p.rows, 1):,.0f}",
            f"{p.kept.trained / max(p.kept.tokens, 1):.0%}",
            _target(p.source, recipe),
            mixture.get(p.name, "–"),
        ]
        for p in probes
    ]
    head = ("source", "rows read", "kept", "all tokens", "tokens/row", "trained", "target", "seen")
    drops = [
        [p.name, reason, count, f"{p.examples[reason]:.300}"]
        for p in probes
        for reason, count in sorted(p.stats["dropped"].items(), key=lambda item: -item[1])
    ]
    tokens = sum(total.tokens for total in expected.values() if total is not None)
    seconds = sum(p.seconds * (rows[p.name] or p.rows) / max(p.rows, 1) for p in probes)
    least = "at least " if None in expected.values() else ""
    summary = (
        f"Each record once: {least}~{tokens:,.0f} tokens, "
        f"~{tokens / recipe.packing.max_length:,.0f} packs of {recipe.packing.max_length:,}, "
        f"~{seconds:,.0f} s, ~{tokens * _BYTES_PER_TOKEN / 1e6:,.0f} MB of shards "
        f"and as much again while building. {_shares(recipe)}"
    )
    table = Table(["source", "reason", "rows", "for example"], drops)
    title = "Expected, from the first records of each source"
    sections = [Section(title, [Table(head, plan), summary])]
    print_sections(console, [*sections, Section("Dropped among these rows", [table] * bool(drops))])
    if all(p.drop is not None for own in probes for p in own.prepared):
        problems.append("nothing is left to train on")
    return problems


def expected_totals(
    probes: Sequence[Probe], rows: Mapping[str, int | None]
) -> dict[str, Total | None]:
    """What each source has by its first rows; None where its rows are unknown."""
    expected: dict[str, Total | None] = {}
    for probe in probes:
        total = rows[probe.name]
        scale = 1.0 if probe.complete else total and total / max(probe.rows, 1)
        expected[probe.name] = None if scale is None else probe.kept.scaled(scale)
    return expected


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
        return "Shares divide the largest total that keeps every source within its max_epochs."
    return ""


def ask_for_epochs(
    recipe: BuildSftConfig, probes: Sequence[Probe], rows: Mapping[str, int | None]
) -> list[str]:
    """The question of `epochs_question`, by the first rows of every source; or nothing."""
    available = _available(recipe, probes, expected_totals(probes, rows))
    question = available and epochs_question(available, recipe)
    return [f"{question} (estimated from the first rows)"] if question else []


def _available(
    recipe: BuildSftConfig, probes: Sequence[Probe], expected: Mapping[str, Total | None]
) -> list[Available] | None:
    """What each source has to train on; None where one is compressed or streamed."""
    available: list[Available] = []
    for probe in probes:
        total = expected[probe.name]
        if total is None:
            return None
        held_out = probe.source.held_out or recipe.held_out
        share = held_out.rate
        if share is None:
            share = (held_out.rows or 0) / max(total.rows, 1)
        own = total.scaled(max(1 - share, 0))
        available.append(Available(probe.name, None, own, probe.lost()))
    return available


def _planned(
    recipe: BuildSftConfig, probes: Sequence[Probe], expected: Mapping[str, Total | None]
) -> tuple[dict[str, str], list[str]]:
    """How often each source is seen, and amounts that it cannot give within its epochs."""
    if (available := _available(recipe, probes, expected)) is None:
        return {}, []
    tolerance = recipe.mixture.tolerance
    if not all(p.complete for p in probes):
        tolerance += _ESTIMATED
    mixture = recipe.mixture.model_copy(update={"tolerance": tolerance})
    try:
        plans = plan_mixture(available, recipe.model_copy(update={"mixture": mixture}))
    except DataError as error:
        return {}, [f"{error} (estimated from the first rows)"]
    times = {p.name: p.total.tokens / max(p.available.total.tokens, 1) for p in plans}
    return {name: f"{seen:.1f} times" for name, seen in times.items()}, []
