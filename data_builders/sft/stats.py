"""What the manifest tells about an SFT data set, computed from the plan that was written.

{"splits": {"train": {"packs": 120, "fill": 0.997, …}}, "sources": {"maths": {"requested": …,
 "realised": {"rows": 900, "tokens": 51200, "trained": 30100}, "shares": …}}, "histograms": …}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.sft.counts import CONTROL
from data_builders.sft.mixture import SourcePlan
from data_builders.sft.pack import Tally
from data_builders.sft.plan import BuildPlan
from data_builders.sft.prepared import Spool
from data_builders.sft.write import Written
from posttrain.artifacts import Counts
from posttrain.config.build_sft import Unit
from posttrain.errors import DataError

UNITS: tuple[str, ...] = ("rows", "tokens", "trained")


def books_of(spools: Sequence[Spool], plan: BuildPlan) -> dict[str, Counts]:
    """Per source: rows in = kept (in a shard) + dropped by reason, `not_sampled` included."""
    books: dict[str, Counts] = {}
    for k, spool in enumerate(spools):
        taken = plan.mixture[k].distinct
        dropped = dict(spool.stats["dropped"])
        left = plan.mixture[k].stock.total.rows - taken
        later = {
            **plan.dropped[k],
            "not_sampled": left,
            "held_out_duplicate": plan.duplicates[k],
        }
        dropped.update({reason: count for reason, count in later.items() if count})
        books[spool.name] = Counts(spool.stats["rows_in"], taken + plan.held_out[k], dropped)
    return books


def check_left(books: Mapping[str, Counts], plan: BuildPlan) -> None:
    """Stop a build of which nothing is left to train on.

    Raises:
        DataError: with where the rows went.
    """
    if any(source.total.trained for source in plan.mixture):
        return
    total = total_counts(books)
    gone = [f"{count:,} {reason}" for reason, count in total.dropped.items()]
    held_out, rows = sum(plan.held_out), sum(p.total.rows for p in plan.mixture)
    gone += [f"{held_out:,} held out"] if held_out else []
    gone += [f"{rows:,} without a token that is trained on"] if rows else []
    where = f": {', '.join(gone)}" if gone else ""
    raise DataError(f"nothing is left to train on, of {total.rows_in:,} rows{where}")


def total_counts(books: Mapping[str, Counts]) -> Counts:
    """The books of all sources together."""
    dropped: dict[str, int] = {}
    for counts in books.values():
        for reason, count in counts.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return Counts(
        sum(c.rows_in for c in books.values()),
        sum(c.kept for c in books.values()),
        {reason: dropped[reason] for reason in sorted(dropped)},
    )


def data_stats(
    spools: Sequence[Spool],
    plan: BuildPlan,
    written: Written,
    books: Mapping[str, Counts],
    capacity: int,
) -> dict[str, Any]:
    """All that the report shows of the data: splits, sources, reasoning control, histograms."""
    splits = {"train": written.train.stats()}
    if written.evaluation:
        everything = Tally(capacity)
        for tally in written.evaluation.values():
            everything.join(tally)
        splits["eval"] = everything.stats()
    return {
        "max_length": capacity,
        "splits": splits,
        "eval_groups": {group: tally.stats() for group, tally in written.evaluation.items()},
        "sources": source_stats(spools, plan, books),
        "control": control_totals(spools),
        "histograms": histograms(spools, written.train),
    }


def source_stats(
    spools: Sequence[Spool], plan: BuildPlan, books: Mapping[str, Counts]
) -> dict[str, Any]:
    """Per source: books, requested and realised amounts, reasoning control, licenses, dialects."""
    realised = {p.name: _realised(p) for p in plan.mixture}
    totals = {unit: sum(r[unit] for r in realised.values()) for unit in UNITS}
    stats: dict[str, Any] = {}
    for k, (spool, source) in enumerate(zip(spools, plan.mixture, strict=True)):
        own, amounts = books[spool.name], realised[spool.name]
        stats[spool.name] = {
            "in": own.rows_in,
            "kept": own.kept,
            "dropped": dict(own.dropped),
            "held_out": plan.held_out[k],
            "requested": _request(source),
            "available": _available(source),
            "realised": amounts,
            "shares": {unit: amounts[unit] / max(totals[unit], 1) for unit in UNITS},
            "max_epochs": source.cap,
            **{key: spool.stats[key] for key in _FROM_SPOOL},
        }
    return stats


_FROM_SPOOL = (
    "licenses",
    "dialects",
    "control",
    "sequences",
    "sequences_lost",
    "sequences_clipped",
    "trimmed_rows",
)


def _realised(plan: SourcePlan) -> dict[str, float]:
    total = plan.total
    return {
        "rows": total.rows,
        "distinct_rows": plan.distinct,
        "tokens": total.tokens,
        "trained": total.trained,
        "epochs": total.rows / max(plan.stock.total.rows, 1),
    }


def _available(plan: SourcePlan) -> dict[str, int]:
    total = plan.stock.total
    return {"rows": total.rows, "tokens": total.tokens, "trained": total.trained}


def _request(plan: SourcePlan) -> dict[str, Any] | None:
    if plan.requested is None:
        return None
    unit: Unit = plan.requested.unit
    realised = plan.total.measure(unit)
    return {
        "unit": unit,
        "amount": plan.requested.value,
        "share": plan.requested.share,
        "realised": realised,
        "difference": realised / plan.requested.value - 1 if plan.requested.value else 0.0,
    }


def histograms(spools: Sequence[Spool], train: Tally) -> dict[str, Any]:
    """Lengths by powers of two, fill of packs by percent, budgets as they were drawn."""
    budgets = Counter[int]()
    for spool in spools:
        budgets.update(dict(spool.stats["budgets"]))
    return {
        "length": train.lengths(),
        "fill_percent": train.fills.tolist(),
        "budgets": [[budget, budgets[budget]] for budget in sorted(budgets)],
    }


def control_totals(spools: Sequence[Spool]) -> dict[str, float]:
    """Realised rates of reasoning control over all sources, before the mixture repeats or drops."""
    total = {key: sum(s.stats["control"][key] for s in spools) for key in CONTROL}
    return {
        **total,
        "strip_rate": total["stripped"] / max(total["reasoned"], 1),
        "truncate_rate": total["truncated"] / max(total["traces"], 1),
    }
