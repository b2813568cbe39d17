"""What the manifest tells about an SFT data set, computed from the plan that was written.

{"splits": {"train": {"packs": 120, "fill": 0.997, …}}, "sources": {"maths": {"requested": …,
 "realised": {"rows": 900, "tokens": 51200, "trained": 30100}, "shares": …}}, "histograms": …}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.sft.mixture import Amount, SourcePlan
from data_builders.sft.part import CONTROL
from data_builders.sft.plan import BuildPlan, GroupStats
from data_builders.sft.prepared import PreparedSource
from posttrain.errors import DataError
from posttrain.runs import Counts

UNITS = ("rows", "tokens", "trained")


def counts_by_source(sources: Sequence[PreparedSource], plan: BuildPlan) -> dict[str, Counts]:
    """Per source: rows in = kept (in a shard) + dropped by reason, `not_sampled` included."""
    counts: dict[str, Counts] = {}
    for k, source in enumerate(sources):
        taken = plan.mixture[k].distinct
        dropped = dict(source.stats["dropped"])
        dropped.update({reason: len(rows) for reason, rows in plan.dropped[k].items() if len(rows)})
        counts[source.name] = Counts(source.stats["rows_in"], taken + plan.held_out[k], dropped)
    return counts


def check_left(counts: Mapping[str, Counts], plan: BuildPlan) -> None:
    """Stop a build of which nothing is left to train on.

    Raises:
        DataError: with where the rows went.
    """
    if any(planned.total.trained for planned in plan.mixture):
        return
    total = total_counts(counts)
    gone = [f"{count:,} {reason}" for reason, count in total.dropped.items()]
    held_out, rows = sum(plan.held_out), sum(p.total.rows for p in plan.mixture)
    gone += [f"{held_out:,} held out"] if held_out else []
    gone += [f"{rows:,} without a token that is trained on"] if rows else []
    where = f": {', '.join(gone)}" if gone else ""
    raise DataError(f"nothing is left to train on, of {total.rows_in:,} rows{where}")


def total_counts(counts: Mapping[str, Counts]) -> Counts:
    """The counts of all sources together."""
    dropped: dict[str, int] = {}
    for own in counts.values():
        for reason, count in own.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return Counts(
        sum(c.rows_in for c in counts.values()),
        sum(c.kept for c in counts.values()),
        {reason: dropped[reason] for reason in sorted(dropped)},
    )


def data_stats(
    sources: Sequence[PreparedSource],
    plan: BuildPlan,
    counts: Mapping[str, Counts],
    capacity: int,
) -> dict[str, Any]:
    """All that the report shows of the data: splits, sources, reasoning control, histograms."""
    groups = {label: group.stats for label, group in plan.evaluation.items()}
    splits = {"train": plan.train.stats.stats()}
    if groups:
        everything = GroupStats(capacity)
        for own in groups.values():
            everything.join(own)
        splits["eval"] = everything.stats()
    budgets = Counter[int]()
    for source in sources:
        budgets.update(dict(source.stats["budgets"]))
    # reasoning control over all sources, before the mixture repeats or drops
    control = {key: sum(s.stats["control"][key] for s in sources) for key in CONTROL}
    return {
        "max_length": capacity,
        "splits": splits,
        "eval_groups": {label: own.stats() for label, own in groups.items()},
        "sources": source_stats(sources, plan, counts),
        "control": {
            **control,
            "strip_rate": control["stripped"] / max(control["reasoned"], 1),
            "truncate_rate": control["truncated"] / max(control["traces"], 1),
        },
        "histograms": {
            "length": plan.train.stats.lengths(),  # by powers of two
            "fill_percent": plan.train.stats.fills.tolist(),
            "budgets": [[budget, budgets[budget]] for budget in sorted(budgets)],
        },
    }


def source_stats(
    sources: Sequence[PreparedSource], plan: BuildPlan, counts: Mapping[str, Counts]
) -> dict[str, Any]:
    """Per source: counts, requested and realised amounts, reasoning control, licenses, dialects."""
    totals = {unit: sum(p.total.amount(unit) for p in plan.mixture) for unit in UNITS}
    stats: dict[str, Any] = {}
    for k, (source, planned) in enumerate(zip(sources, plan.mixture, strict=True)):
        own, total, available = counts[source.name], planned.total, planned.available.total
        amounts = {unit: total.amount(unit) for unit in UNITS}
        stats[source.name] = {
            "in": own.rows_in,
            "kept": own.kept,
            "dropped": dict(own.dropped),
            "held_out": plan.held_out[k],
            "requested": planned.requested and _request(planned, planned.requested),
            "available": {unit: available.amount(unit) for unit in UNITS},
            "realised": {
                "rows": total.rows,
                "distinct_rows": planned.distinct,
                "tokens": total.tokens,
                "trained": total.trained,
                "epochs": total.rows / max(available.rows, 1),
            },
            "shares": {unit: amounts[unit] / max(totals[unit], 1) for unit in UNITS},
            "max_epochs": planned.cap,
            **{key: source.stats[key] for key in _PREPARED},
        }
    return stats


_PREPARED = (
    "licenses",
    "dialects",
    "unread",
    "control",
    "sequences",
    "sequences_lost",
    "sequences_clipped",
    "left_out",
    "trimmed_rows",
)


def _request(plan: SourcePlan, requested: Amount) -> dict[str, Any]:
    realised = plan.total.amount(requested.unit)
    return {
        "unit": requested.unit,
        "amount": requested.value,
        "share": requested.share,
        "realised": realised,
        "difference": realised / requested.value - 1 if requested.value else 0.0,
    }
