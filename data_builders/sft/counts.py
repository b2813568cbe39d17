"""The books of a source: what became of its rows, kept part by part and added up.

    books = Books(report); books.add(prepared, …); books.stats()
    merged([part.stats(), part.stats()], samples=20)
    → {"rows_in": 7473, "dropped": {"overlong": 3}, "sequences": 7470, "samples": [(1, 0)], …}

Everything that is added is a sum, a count by name, or the few samples whose keyed hashes are the
smallest: how rows are cut into parts changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data_builders.keyed import unit
from data_builders.rows.examples import ReadReport
from data_builders.rows.observed import ObservedFields
from data_builders.sft.prepare import Prepared, PreparedSequence
from posttrain.records import Example

_SUMS = ("rows_in", "trimmed_rows", "sequences", "sequences_clipped")
_COUNTS = ("dropped", "dialects", "licenses", "sequences_lost", "control")
CONTROL = ("reasoned", "stripped", "traces", "truncated", "too_short")


@dataclass
class Books:
    """Counts of one part, growing while it is read."""

    report: ReadReport
    keep_samples: int
    seed: int
    dropped: Counter[str] = field(default_factory=Counter[str])
    lost: Counter[str] = field(default_factory=Counter[str])
    licenses: Counter[str] = field(default_factory=Counter[str])
    control: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CONTROL, 0)))
    budgets: Counter[int] = field(default_factory=Counter[int])
    sequences: int = 0
    clipped: int = 0
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def add(self, prepared: Prepared) -> None:
        """Count one record."""
        record = prepared.controlled
        if prepared.drop is not None:
            self.dropped[prepared.drop.reason] += 1
        else:
            self.licenses[record.example.license] += 1
        self.control["reasoned"] += record.reasoned
        self.control["stripped"] += record.stripped
        self.control["traces"] += record.traces
        self.control["truncated"] += len(record.cuts)
        self.control["too_short"] += record.too_short
        self.budgets.update(cut.budget for cut in record.cuts)
        self.sequences += len(prepared.sequences)
        self.lost.update(prepared.lost)
        self.clipped += prepared.clipped
        for sequence in prepared.sequences[:1]:
            place = unit(self.seed, "sample", record.example.id)
            if len(self.samples) < self.keep_samples or place < self.samples[-1][0]:
                self.samples.append((place, _sample(record.example, sequence)))
                self.samples.sort(key=lambda item: item[0])
                del self.samples[self.keep_samples :]

    def stats(self, observed: ObservedFields | None) -> dict[str, Any]:
        """The finished books of a part, JSON-able."""
        return {
            "rows_in": self.report.rows_in,
            "dropped": dict(self.report.dropped + self.dropped),
            "trimmed_rows": self.report.trimmed_rows,
            "dialects": dict(self.report.dialects),
            "licenses": dict(self.licenses),
            "sequences": self.sequences,
            "sequences_lost": dict(self.lost),
            "sequences_clipped": self.clipped,
            "control": dict(self.control),
            "budgets": [[budget, n] for budget, n in self.budgets.items()],
            "samples": [place for place, _ in self.samples],
            "observed": None if observed is None else observed.state(),
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
    """The books of a source from those of its parts, in order, looked at one by one.

    Args:
        samples: how many to keep; they are given as (part, place in its samples).
    """
    sums = Counter[str](dict.fromkeys(_SUMS, 0))
    counts = {name: Counter[str]() for name in _COUNTS}
    counts["control"].update(dict.fromkeys(CONTROL, 0))
    budgets = Counter[int]()
    chosen: list[tuple[float, int, int]] = []
    for number, part in enumerate(parts):
        sums.update({name: part[name] for name in _SUMS})
        for name, own in counts.items():
            own.update(part[name])
        budgets.update(dict(part["budgets"]))
        chosen += [(place, number, k) for k, place in enumerate(part["samples"])]
        chosen = sorted(chosen)[:samples]
    return {
        **sums,
        **{name: {key: own[key] for key in sorted(own)} for name, own in counts.items()},
        "control": dict(counts["control"]),
        "budgets": [[budget, n] for budget, n in sorted(budgets.items())],
        "samples": [(number, k) for _, number, k in chosen],
    }
