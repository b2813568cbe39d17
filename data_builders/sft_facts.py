"""What the manifest tells about an SFT data set, computed from the plan that was written.

{"splits": {"train": {"packs": 120, "fill": 0.997, …}}, "sources": {"maths": {"requested": …,
 "realised": {"rows": 900, "tokens": 51200, "trained": 30100}, "shares": …}}, "histograms": …}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from data_builders.mixture import SourcePlan
from data_builders.sft_plan import BuildPlan, Sequences, concatenate
from data_builders.sft_spool import Spool
from data_builders.sft_write import Written
from posttrain.artifacts import Counts
from posttrain.config.build_sft import Unit
from posttrain.tokens import Packs

UNITS: tuple[str, ...] = ("rows", "tokens", "trained")


def books_of(spools: Sequence[Spool], plan: BuildPlan) -> dict[str, Counts]:
    """Per source: rows in = kept (in a shard) + dropped by reason, `not_sampled` included."""
    books: dict[str, Counts] = {}
    for k, spool in enumerate(spools):
        taken = plan.mixture[k].distinct
        dropped = dict(spool.facts["dropped"])
        left = len(plan.mixture[k].stock.keys) - taken
        for reason, count in (("not_sampled", left), ("held_out_duplicate", plan.duplicates[k])):
            if count:
                dropped[reason] = count
        books[spool.name] = Counts(spool.facts["rows_in"], taken + plan.held_out[k], dropped)
    return books


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


def data_facts(
    spools: Sequence[Spool],
    plan: BuildPlan,
    written: Written,
    books: Mapping[str, Counts],
    capacity: int,
) -> dict[str, Any]:
    """All that the report shows of the data: splits, sources, reasoning control, histograms."""
    splits = {"train": split_facts(spools, plan.train, len(written.train), capacity)}
    groups = {
        group: split_facts(spools, plan.evaluation[group], len(packs), capacity)
        for group, packs in written.evaluation.items()
    }
    if groups:
        everything = concatenate(list(plan.evaluation.values()))
        packs = sum(len(own) for own in written.evaluation.values())
        splits["eval"] = split_facts(spools, everything, packs, capacity)
    return {
        "capacity": capacity,
        "splits": splits,
        "eval_groups": groups,
        "sources": source_facts(spools, plan, books),
        "control": control_totals(spools),
        "histograms": histograms(spools, plan.train, written.train, capacity),
    }


def source_facts(
    spools: Sequence[Spool], plan: BuildPlan, books: Mapping[str, Counts]
) -> dict[str, Any]:
    """Per source: books, requested and realised amounts, reasoning control, licences, dialects."""
    realised = {p.name: _realised(p) for p in plan.mixture}
    totals = {unit: sum(r[unit] for r in realised.values()) for unit in UNITS}
    facts: dict[str, Any] = {}
    for k, (spool, source) in enumerate(zip(spools, plan.mixture, strict=True)):
        own, amounts = books[spool.name], realised[spool.name]
        facts[spool.name] = {
            "in": own.rows_in,
            "kept": own.kept,
            "dropped": dict(own.dropped),
            "held_out": plan.held_out[k],
            "requested": _request(source),
            "available": _available(source),
            "realised": amounts,
            "shares": {unit: amounts[unit] / max(totals[unit], 1) for unit in UNITS},
            "max_epochs": source.cap,
            **{key: spool.facts[key] for key in _FROM_SPOOL},
        }
    return facts


_FROM_SPOOL = (
    "licences",
    "dialects",
    "control",
    "sequences",
    "sequences_lost",
    "sequences_clipped",
    "trimmed_rows",
)


def _realised(plan: SourcePlan) -> dict[str, float]:
    rows, available = len(plan.records), len(plan.stock.keys)
    return {
        "rows": rows,
        "distinct_rows": plan.distinct,
        "tokens": plan.realised("tokens"),
        "trained": plan.trained,
        "epochs": rows / max(available, 1),
    }


def _available(plan: SourcePlan) -> dict[str, int]:
    return {
        "rows": len(plan.stock.keys),
        "tokens": int(plan.stock.tokens.sum()),
        "trained": int(plan.stock.trained.sum()),
    }


def _request(plan: SourcePlan) -> dict[str, Any] | None:
    if plan.requested is None:
        return None
    unit: Unit = plan.requested.unit
    realised = plan.realised(unit)
    return {
        "unit": unit,
        "amount": plan.requested.value,
        "share": plan.requested.share,
        "realised": realised,
        "difference": realised / plan.requested.value - 1 if plan.requested.value else 0.0,
    }


def split_facts(
    spools: Sequence[Spool], sequences: Sequences, packs: int, capacity: int
) -> dict[str, Any]:
    """One split, or one evaluation group. `reasoning` and `truncated` count sequences."""
    trained = _per_sequence(spools, sequences, "trained")
    tokens = int(sequences.length.sum())
    return {
        "packs": packs,
        "sequences": len(sequences),
        "tokens": tokens,
        "trained": int(trained.sum()),
        "reasoning": int(_per_sequence(spools, sequences, "reasons").sum()),
        "truncated": int(_per_sequence(spools, sequences, "cut").sum()),
        "longest": int(sequences.length.max(initial=0)),
        "fill": tokens / (packs * capacity) if packs else 0.0,
        "sequences_per_pack": len(sequences) / packs if packs else 0.0,
    }


def histograms(
    spools: Sequence[Spool],
    sequences: Sequences,
    packs: Packs,
    capacity: int,
) -> dict[str, Any]:
    """Lengths by powers of two, fill of packs by percent, budgets as they were drawn."""
    trained = _per_sequence(spools, sequences, "trained")
    length = sequences.length
    bins = np.ceil(np.log2(np.maximum(length, 1))).astype(int)
    budgets: dict[int, int] = {}
    for spool in spools:
        for budget, count in spool.facts["budgets"]:
            budgets[budget] = budgets.get(budget, 0) + count
    return {
        "length": [
            {
                "up_to": 1 << int(b),
                "sequences": int((bins == b).sum()),
                "trained": int(trained[bins == b].sum()),
                "untrained": int((length - trained)[bins == b].sum()),
            }
            for b in np.unique(bins)
        ],
        "fill_percent": np.bincount(packs.fills(length) * 100 // capacity, minlength=101).tolist(),
        "budgets": [[budget, budgets[budget]] for budget in sorted(budgets)],
    }


def _per_sequence(
    spools: Sequence[Spool], sequences: Sequences, column: Literal["trained", "reasons", "cut"]
) -> npt.NDArray[np.int64]:
    values = np.zeros(len(sequences), np.int64)
    for k, spool in enumerate(spools):
        own = sequences.source == k
        values[own] = getattr(spool, column)[sequences.sequence[own]]
    return values


def control_totals(spools: Sequence[Spool]) -> dict[str, float]:
    """Realised rates of reasoning control over all sources, before the mixture repeats or drops."""
    total = {key: sum(s.facts["control"].get(key, 0) for s in spools) for key in _CONTROL}
    return {
        **total,
        "strip_rate": total["stripped"] / max(total["reasoned"], 1),
        "truncate_rate": total["truncated"] / max(total["traces"], 1),
    }


_CONTROL = ("reasoned", "stripped", "traces", "truncated", "too_short")
