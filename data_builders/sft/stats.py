"""Counts of the rows of a part, a source and a data set, and the limits on losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_builders.keyed import unit
from data_builders.rows.read import RowCounts
from data_builders.sft.plan import BuildPlan, GroupStats, SourcePlan, lost_rows
from data_builders.sft.prepare import LEFT_OUT, Prepared, PreparedSequence
from data_builders.sft.prepared import PreparedSource
from posttrain.config.build_sft import LimitsConfig
from posttrain.errors import DataError
from posttrain.records import Example
from posttrain.runs import Counts

_FEW_KEPT = 0.02  # a source that keeps no larger share of its rows is worth a warning; ours
CONTROL = ("reasoned", "stripped", "traces", "truncated", "too_short")
UNITS = ("rows", "tokens", "trained")


def counts_by_source(sources: Sequence[PreparedSource], plan: BuildPlan) -> dict[str, Counts]:
    """Per source: rows in = kept (in a shard) + dropped by reason, `not_sampled` included."""
    counts: dict[str, Counts] = {}
    for k, source in enumerate(sources):
        dropped = dict(source.stats["dropped"])
        for reason, rows in plan.dropped[k].items():
            if len(rows):
                dropped[reason] = len(rows)
        kept = plan.mixture[k].distinct + plan.held_out[k]
        counts[source.name] = Counts(source.stats["rows_in"], kept, dropped)
    return counts


def refuse_nothing_trained(counts: Mapping[str, Counts], plan: BuildPlan) -> None:
    """Stop a build without anything to train on.

    Raises:
        DataError: says where the rows went.
    """
    if any(planned.total.trained for planned in plan.mixture):
        return
    total = total_counts(counts)
    rows = sum(planned.total.rows for planned in plan.mixture)
    dropped = dict(total.dropped) | {"without a token that is trained on": rows}
    raise DataError(
        f"nothing is left to train on, of {total.rows_in:,} rows: "
        f"{lost_rows(dropped, sum(plan.held_out))}"
    )


def total_counts(counts: Mapping[str, Counts]) -> Counts:
    """Counts of all sources together."""
    rows_in = 0
    kept = 0
    dropped = Counter[str]()
    for source_counts in counts.values():
        rows_in += source_counts.rows_in
        kept += source_counts.kept
        dropped.update(source_counts.dropped)
    return Counts(rows_in, kept, dict(sorted(dropped.items())))


def data_stats(
    sources: Sequence[PreparedSource],
    plan: BuildPlan,
    counts: Mapping[str, Counts],
    capacity: int,
) -> dict[str, Any]:
    """Figures of the data for the report: splits, sources, reasoning control, histograms."""
    groups = {label: group.stats for label, group in plan.evaluation.items()}
    splits = {"train": plan.train.stats.stats()}
    if groups:
        splits["eval"] = GroupStats.joined(list(groups.values())).stats()
    budgets = Counter[int]()
    for source in sources:
        budgets.update(dict(source.stats["budgets"]))
    # reasoning control over all sources, before the mixture repeats or drops
    control = {key: sum(s.stats["control"][key] for s in sources) for key in CONTROL}
    return {
        "max_length": capacity,
        "splits": splits,
        "eval_groups": {label: group.stats() for label, group in groups.items()},
        "sources": _source_stats(sources, plan, counts),
        "control": {
            **control,
            "strip_rate": control["stripped"] / max(control["reasoned"], 1),
            "truncate_rate": control["truncated"] / max(control["traces"], 1),
        },
        "histograms": {
            "length": plan.train.stats.lengths(),  # by powers of two
            "fill_percent": plan.train.stats.fills.tolist(),
            "budgets": sorted(budgets.items()),
        },
    }


# figures of preparation that `merged` returns and the report shows
_PREPARED = (
    "licenses",
    "dialects",
    "unread",
    "control",
    "sequences",
    "sequences_lost",
    "sequences_clipped",
    "left_out",
    "templates",
    "trimmed_rows",
)


def _source_stats(
    sources: Sequence[PreparedSource], plan: BuildPlan, counts: Mapping[str, Counts]
) -> dict[str, Any]:
    """Per source: counts, requested and realised amounts, reasoning control, licenses, dialects."""
    mixture_totals = {unit: sum(getattr(p.total, unit) for p in plan.mixture) for unit in UNITS}
    stats: dict[str, Any] = {}
    for k, (source, planned) in enumerate(zip(sources, plan.mixture, strict=True)):
        source_counts = counts[source.name]
        total = planned.total
        available = planned.available.total
        stats[source.name] = {
            "in": source_counts.rows_in,
            "kept": source_counts.kept,
            "dropped": dict(source_counts.dropped),
            "held_out": plan.held_out[k],
            "requested": _requested_stats(planned),
            "available": {unit: getattr(available, unit) for unit in UNITS},
            "realised": {
                "rows": total.rows,
                "distinct_rows": planned.distinct,
                "tokens": total.tokens,
                "trained": total.trained,
                "epochs": total.rows / max(available.rows, 1),
            },
            "shares": {unit: getattr(total, unit) / max(mixture_totals[unit], 1) for unit in UNITS},
            "max_epochs": planned.cap,
            **{key: source.stats[key] for key in _PREPARED},
        }
    return stats


def _requested_stats(plan: SourcePlan) -> dict[str, Any] | None:
    """Requested and realised amount of a source; None if the recipe requests none."""
    requested = plan.requested
    if requested is None:
        return None
    realised = getattr(plan.total, requested.unit)
    return {
        "unit": requested.unit,
        "amount": requested.value,
        "share": requested.share,
        "realised": realised,
        "difference": realised / requested.value - 1 if requested.value else 0.0,
    }


_ADVICE = {
    "nothing_trained": "Look at write_dropped: true; are these conversations without answers?",
    "overlong": "Raise packing.max_length, or set packing.overlong to truncate.",
    "render_error": "Look at write_dropped: true; does this template fit this source?",
}


def losses_exceeded(name: str, stats: Mapping[str, Any], limits: LimitsConfig) -> list[str]:
    """Messages about reasons that cost a source more than the recipe allows, with advice."""
    rows = stats["rows_in"]
    lost = stats["sequences_lost"]
    sequences = stats["sequences"] + sum(lost.values())
    problems: list[str] = []
    for reason, advice in _ADVICE.items():
        limit: float = getattr(limits, reason)
        row_share = stats["dropped"].get(reason, 0) / max(rows, 1)
        sequence_share = lost.get(reason, 0) / max(sequences, 1)
        if max(row_share, sequence_share) > limit:
            problems.append(
                f"source {name!r}: {reason} took {row_share:.1%} of {rows:,} rows and "
                f"{sequence_share:.1%} of {sequences:,} sequences, limits.{reason} is "
                f"{limit:.1%}. {advice}"
            )
    return problems


def left_out_exceeded(
    name: str, stats: Mapping[str, Any], limits: LimitsConfig, *, split_helps: bool = True
) -> str | None:
    """Message if the template leaves out more than the recipe allows, with ways out.

    Args:
        split_helps: True if `tokenizer.split_steps` may write the parts that are left out.
    """
    rows = stats["rows_in"]
    kinds = sorted(stats["left_out"].items())
    by_reason = stats["dropped"].items()
    share = sum(n for reason, n in by_reason if reason.startswith(LEFT_OUT)) / max(rows, 1)
    if share <= limits.left_out:
        return None
    ways = ["Choose another tokenizer.chat_template"]
    if split_helps:
        ways.append(
            "set tokenizer.split_steps: true, which helps where a text, a trace or one of "
            "several calls is lost because more follows it"
        )
    ways.append("drop these rows with limits.left_out: 1")
    ways.append(f"keep them without it: tokenizer.allow_left_out: [{', '.join(dict(kinds))}]")
    if "reasoning" in stats["left_out"]:
        ways.append("train answers alone, without traces: reasoning: {strip: 1.0}")
    return (
        f"source {name!r}: the chat template leaves out part of {share:.1%} of {rows:,} rows "
        f"({', '.join(f'{kind} of {n:,}' for kind, n in kinds)}), limits.left_out is "
        f"{limits.left_out:.1%}. {'; or '.join(ways)}"
    )


def few_kept(stats: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Warning about sources that keep hardly any of the rows that their `where` matches."""
    sources_with_few: list[str] = []
    for name, source_stats in stats.items():
        dropped = source_stats["dropped"]
        rows = source_stats["rows_in"] - dropped.get("where", 0)
        kept = source_stats["rows_in"] - sum(dropped.values())
        if rows and kept <= _FEW_KEPT * rows:
            sources_with_few.append(f"{name!r} {kept:,} of {rows:,}")
    if not sources_with_few:
        return []
    return [
        f"sources that keep at most {_FEW_KEPT:.0%} of their rows: {', '.join(sources_with_few)}"
    ]


# -- counts of a part, and of all parts of a source ------------------------------------------------

_SUMS = ("rows_in", "trimmed_rows", "sequences", "sequences_clipped")
_COUNTS = ("dropped", "dialects", "licenses", "sequences_lost", "left_out", "templates", "control")


class PartCounts:
    """Counts of one part, growing while it is read.

    Everything is a sum, a count by name, or the few samples whose keyed hashes are the smallest:
    the counts of a source do not depend on how its rows are cut into parts.
    """

    def __init__(self, keep_samples: int, seed: int) -> None:
        self.rows = RowCounts()
        self.samples: list[tuple[float, dict[str, Any]]] = []  # keyed hash and sample, ascending
        self._keep_samples = keep_samples
        self._seed = seed
        self._counts = {name: Counter[str]() for name in _COUNTS}
        self._counts["control"].update(dict.fromkeys(CONTROL, 0))
        self._budgets = Counter[int]()
        self._sequences = 0
        self._clipped = 0

    def add(self, record: Prepared) -> None:
        """Count one record."""
        counts = self._counts
        if record.drop is not None:
            counts["dropped"][record.drop.reason] += 1
        else:
            counts["licenses"][record.example.license] += 1
            if record.template:
                counts["templates"][record.template] += 1
        control = counts["control"]
        control["reasoned"] += record.stripped or record.traces > 0
        control["stripped"] += record.stripped
        control["traces"] += record.traces
        control["truncated"] += len(record.cuts)
        control["too_short"] += record.too_short
        self._budgets.update(cut.budget for cut in record.cuts)
        counts["sequences_lost"].update(record.lost)
        counts["left_out"].update(record.left_out)
        self._sequences += len(record.sequences)
        self._clipped += record.clipped
        if record.sequences:
            self._consider_sample(record.example, record.sequences[0])

    def _consider_sample(self, example: Example, sequence: PreparedSequence) -> None:
        """Keep a sequence as a sample if its keyed hash is among the smallest."""
        rank = unit(self._seed, "sample", example.id)
        if len(self.samples) < self._keep_samples or rank < self.samples[-1][0]:
            self.samples.append((rank, _sample_row(example, sequence)))
            self.samples.sort(key=lambda item: item[0])
            del self.samples[self._keep_samples :]

    def stats(self) -> dict[str, Any]:
        """Finished counts of a part, JSON-able."""
        return {
            **self._counts,
            "rows_in": self.rows.rows_in,
            "dropped": self.rows.dropped + self._counts["dropped"],
            "trimmed_rows": self.rows.trimmed_rows,
            "dialects": self.rows.dialects,
            "unread": _unread_columns(self.rows),
            "sequences": self._sequences,
            "sequences_clipped": self._clipped,
            "budgets": list(self._budgets.items()),
            "samples": [rank for rank, _ in self.samples],
        }


def _unread_columns(rows: RowCounts) -> list[list[Any]]:
    """[name, rows, example] of each unread column."""
    return [[name, *count] for name, count in rows.unread.items()]


def _sample_row(example: Example, sequence: PreparedSequence) -> dict[str, Any]:
    """Row of `samples.jsonl`."""
    sample = sequence.sample
    return {
        "source": example.source,
        "record_id": example.id,
        "turn": sample.turn,
        "reasoning": sample.reasoning,
        "budget": sequence.budget,
        "tokens": sequence.length,
        "segments": [[s.role, s.trained, s.text] for s in sample.segments],
    }


def merged(parts: Iterable[Mapping[str, Any]], *, samples: int) -> dict[str, Any]:
    """Merge the counts of a source's parts, in order.

    Args:
        samples: number of samples to keep; they are returned as (part, number of the sample in it).
    """
    sums = Counter[str](dict.fromkeys(_SUMS, 0))
    counts = {name: Counter[str]() for name in _COUNTS}
    budgets = Counter[int]()
    rows = RowCounts()
    ranked_samples: list[tuple[float, int, int]] = []
    for number, part in enumerate(parts):
        sums.update({name: part[name] for name in _SUMS})
        for name, counter in counts.items():
            counter.update(part[name])
        budgets.update(dict(part["budgets"]))
        rows.add_unread(part["unread"])
        for k, rank in enumerate(part["samples"]):
            ranked_samples.append((rank, number, k))
    smallest = sorted(ranked_samples)[:samples]
    return {
        **sums,
        **{name: dict(sorted(counter.items())) for name, counter in counts.items()},
        "control": dict.fromkeys(CONTROL, 0) | counts["control"],
        "unread": _unread_columns(rows),
        "budgets": sorted(budgets.items()),
        "samples": [(number, k) for _, number, k in smallest],
    }
