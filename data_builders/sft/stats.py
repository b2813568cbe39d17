"""What became of the rows of a part, a source, a data set; losses at which a build stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_builders.keyed import unit
from data_builders.rows.read import RowCounts
from data_builders.sft.mixture import SourcePlan, lost_rows
from data_builders.sft.plan import BuildPlan, GroupStats
from data_builders.sft.prepare import LEFT_OUT, Prepared, PreparedSequence
from data_builders.sft.prepared import PreparedSource
from posttrain.config.build_sft import LimitsConfig
from posttrain.errors import DataError
from posttrain.records import Example
from posttrain.runs import Counts

_FEW = 0.02  # share of its rows at which a source's loss is worth a warning
CONTROL = ("reasoned", "stripped", "traces", "truncated", "too_short")
UNITS = ("rows", "tokens", "trained")


def counts_by_source(sources: Sequence[PreparedSource], plan: BuildPlan) -> dict[str, Counts]:
    """Per source: rows in = kept (in a shard) + dropped by reason, `not_sampled` included."""
    counts: dict[str, Counts] = {}
    for k, source in enumerate(sources):
        late = {reason: len(rows) for reason, rows in plan.dropped[k].items() if len(rows)}
        kept = plan.mixture[k].distinct + plan.held_out[k]
        dropped = {**source.stats["dropped"], **late}
        counts[source.name] = Counts(source.stats["rows_in"], kept, dropped)
    return counts


def check_left(counts: Mapping[str, Counts], plan: BuildPlan) -> None:
    """Stop a build of which nothing is left to train on.

    Raises:
        DataError: with where the rows went.
    """
    if any(planned.total.trained for planned in plan.mixture):
        return
    total = total_counts(counts)
    rows = sum(planned.total.rows for planned in plan.mixture)
    gone = dict(total.dropped) | {"without a token that is trained on": rows}
    raise DataError(
        f"nothing is left to train on, of {total.rows_in:,} rows: "
        f"{lost_rows(gone, sum(plan.held_out))}"
    )


def total_counts(counts: Mapping[str, Counts]) -> Counts:
    """The counts of all sources together."""
    dropped = Counter[str]()
    for own in counts.values():
        dropped.update(own.dropped)
    rows_in, kept = sum(c.rows_in for c in counts.values()), sum(c.kept for c in counts.values())
    return Counts(rows_in, kept, dict(sorted(dropped.items())))


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
        splits["eval"] = GroupStats.joined(list(groups.values())).stats()
    budgets = Counter[int]()
    for source in sources:
        budgets.update(dict(source.stats["budgets"]))
    # reasoning control over all sources, before the mixture repeats or drops
    control = {key: sum(s.stats["control"][key] for s in sources) for key in CONTROL}
    return {
        "max_length": capacity,
        "splits": splits,
        "eval_groups": {label: own.stats() for label, own in groups.items()},
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


# what became of a source's rows in preparation, as `merged` has it
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
    totals = {unit: sum(getattr(p.total, unit) for p in plan.mixture) for unit in UNITS}
    stats: dict[str, Any] = {}
    for k, (source, planned) in enumerate(zip(sources, plan.mixture, strict=True)):
        own, total, available = counts[source.name], planned.total, planned.available.total
        stats[source.name] = {
            "in": own.rows_in,
            "kept": own.kept,
            "dropped": dict(own.dropped),
            "held_out": plan.held_out[k],
            "requested": _request(planned),
            "available": {unit: getattr(available, unit) for unit in UNITS},
            "realised": {
                "rows": total.rows,
                "distinct_rows": planned.distinct,
                "tokens": total.tokens,
                "trained": total.trained,
                "epochs": total.rows / max(available.rows, 1),
            },
            "shares": {unit: getattr(total, unit) / max(totals[unit], 1) for unit in UNITS},
            "max_epochs": planned.cap,
            **{key: source.stats[key] for key in _PREPARED},
        }
    return stats


def _request(plan: SourcePlan) -> dict[str, Any] | None:
    if (requested := plan.requested) is None:
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
    """Reasons to which more of a source is lost than the recipe allows, and what to do."""
    rows, lost = stats["rows_in"], stats["sequences_lost"]
    sequences = stats["sequences"] + sum(lost.values())
    problems: list[str] = []
    for reason, advice in _ADVICE.items():
        limit: float = getattr(limits, reason)
        of_rows = stats["dropped"].get(reason, 0) / max(rows, 1)
        of_sequences = lost.get(reason, 0) / max(sequences, 1)
        if max(of_rows, of_sequences) > limit:
            problems.append(
                f"source {name!r}: {reason} took {of_rows:.1%} of {rows:,} rows and "
                f"{of_sequences:.1%} of {sequences:,} sequences, limits.{reason} is {limit:.1%}. "
                f"{advice}"
            )
    return problems


def left_out_exceeded(
    name: str, stats: Mapping[str, Any], limits: LimitsConfig, *, split_helps: bool = True
) -> str | None:
    """What is wrong where the template leaves out more than the recipe allows, with ways out.

    Args:
        split_helps: whether `tokenizer.split_steps` may write what the template leaves out.
    """
    rows, kinds = stats["rows_in"], sorted(stats["left_out"].items())
    by_reason = stats["dropped"].items()
    share = sum(n for reason, n in by_reason if reason.startswith(LEFT_OUT)) / max(rows, 1)
    if share <= limits.left_out:
        return None
    ways = [
        "Choose another tokenizer.chat_template",
        "drop these rows with limits.left_out: 1",
        f"keep them without it: tokenizer.allow_left_out: [{', '.join(dict(kinds))}]",
    ]
    if split_helps:
        ways[1:1] = [
            "set tokenizer.split_steps: true, which helps where a text, a trace or one of "
            "several calls is lost because more follows it"
        ]
    if "reasoning" in stats["left_out"]:
        ways.append("train answers alone, without traces: reasoning: {strip: 1.0}")
    return (
        f"source {name!r}: the chat template leaves out part of {share:.1%} of {rows:,} rows "
        f"({', '.join(f'{kind} of {n:,}' for kind, n in kinds)}), limits.left_out is "
        f"{limits.left_out:.1%}. {'; or '.join(ways)}"
    )


def few_kept(stats: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A warning of the sources that keep hardly any of the rows that their `where` lets through."""
    few: list[str] = []
    for name, own in stats.items():
        rows = own["rows_in"] - own["dropped"].get("where", 0)
        kept = own["rows_in"] - sum(own["dropped"].values())
        if rows and kept <= _FEW * rows:
            few.append(f"{name!r} {kept:,} of {rows:,}")
    return [f"sources that keep at most {_FEW:.0%} of their rows: {', '.join(few)}"] * bool(few)


# -- what became of the rows of a part, and of all parts of a source


_SUMS = ("rows_in", "trimmed_rows", "sequences", "sequences_clipped")
_COUNTS = ("dropped", "dialects", "licenses", "sequences_lost", "left_out", "templates", "control")


class PartCounts:
    """What became of the rows of one part, growing while it is read.

    Everything that is added is a sum, a count by name, or the few samples whose keyed hashes are
    the smallest: how rows are cut into parts changes nothing.
    """

    def __init__(self, keep_samples: int, seed: int) -> None:
        self._keep_samples, self._seed = keep_samples, seed
        self.rows = RowCounts()
        self.samples: list[tuple[float, dict[str, Any]]] = []
        self._counts = {name: Counter[str]() for name in _COUNTS}
        self._counts["control"].update(dict.fromkeys(CONTROL, 0))
        self._budgets = Counter[int]()
        self._sequences = self._clipped = 0

    def add(self, record: Prepared) -> None:
        """Count one record."""
        counts, control = self._counts, self._counts["control"]
        if record.drop is not None:
            counts["dropped"][record.drop.reason] += 1
        else:
            counts["licenses"][record.example.license] += 1
            if record.template:
                counts["templates"][record.template] += 1
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
        for sequence in record.sequences[:1]:
            place = unit(self._seed, "sample", record.example.id)
            if len(self.samples) < self._keep_samples or place < self.samples[-1][0]:
                self.samples.append((place, _sample(record.example, sequence)))
                self.samples.sort(key=lambda item: item[0])
                del self.samples[self._keep_samples :]

    def stats(self) -> dict[str, Any]:
        """The finished counts of a part, JSON-able."""
        return {
            **self._counts,
            "rows_in": self.rows.rows_in,
            "dropped": self.rows.dropped + self._counts["dropped"],
            "trimmed_rows": self.rows.trimmed_rows,
            "dialects": self.rows.dialects,
            "unread": [[name, *seen] for name, seen in self.rows.unread.items()],
            "sequences": self._sequences,
            "sequences_clipped": self._clipped,
            "budgets": list(self._budgets.items()),
            "samples": [place for place, _ in self.samples],
        }


def _sample(example: Example, sequence: PreparedSequence) -> dict[str, Any]:
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
    """The counts of a source from those of its parts, in order.

    Args:
        samples: how many to keep; they are given as (part, place in its samples).
    """
    sums = Counter[str](dict.fromkeys(_SUMS, 0))
    counts = {name: Counter[str]() for name in _COUNTS}
    budgets, rows = Counter[int](), RowCounts()
    chosen: list[tuple[float, int, int]] = []
    for number, part in enumerate(parts):
        sums.update({name: part[name] for name in _SUMS})
        for name, own in counts.items():
            own.update(part[name])
        budgets.update(dict(part["budgets"]))
        rows.add_unread(part["unread"])
        chosen += [(place, number, k) for k, place in enumerate(part["samples"])]
    control = dict.fromkeys(CONTROL, 0) | counts["control"]
    return {
        **sums,
        **{name: {key: own[key] for key in sorted(own)} for name, own in counts.items()},
        "control": control,
        "unread": [[name, *seen] for name, seen in rows.unread.items()],
        "budgets": sorted(budgets.items()),
        "samples": [(number, k) for _, number, k in sorted(chosen)[:samples]],
    }
