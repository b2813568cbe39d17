"""One source, from its rows to its spool, with the books of what happened on the way.

spool_source(source, preparer, work, …)
→ {"rows_in": 7473, "dropped": {"overlong": 3}, "sequences": 7470, "control": {…}, …}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from data_builders.keyed import unit
from data_builders.reading import Dropped, ReadReport, read_examples
from data_builders.reasoning_control import ControlPlan
from data_builders.sft_prepare import Prepared, PreparedSequence, Preparer, prepare
from data_builders.sft_spool import batched, read_facts, write_spool
from posttrain.config.build_sft import BuildSftConfig, LimitsConfig, SftSource
from posttrain.errors import DataError
from posttrain.records import Example

BATCH = 128
SAMPLES_PER_BUILD = 20
Progress = Callable[[str, int], None]


@dataclass
class Books:
    """Counts of one source, growing while it is read."""

    report: ReadReport
    dropped: Counter[str] = field(default_factory=Counter[str])
    lost: Counter[str] = field(default_factory=Counter[str])
    licences: Counter[str] = field(default_factory=Counter[str])
    control: Counter[str] = field(default_factory=Counter[str])
    budgets: Counter[int] = field(default_factory=Counter[int])
    sequences: int = 0
    clipped: int = 0
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def add(self, prepared: Prepared, *, seed: int, keep_samples: int) -> None:
        """Count one record."""
        record = prepared.controlled
        if prepared.drop is not None:
            self.dropped[prepared.drop.reason] += 1
        else:
            self.licences[record.example.licence] += 1
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
            place = unit(seed, "sample", record.example.id)
            if len(self.samples) < keep_samples or place < self.samples[-1][0]:
                self.samples.append((place, _sample(record.example, sequence)))
                self.samples.sort(key=lambda item: item[0])
                del self.samples[keep_samples:]

    def facts(self) -> dict[str, Any]:
        """The finished books, JSON-able."""
        return {
            "rows_in": self.report.rows_in,
            "dropped": _sorted(self.report.dropped + self.dropped),
            "trimmed_rows": self.report.trimmed_rows,
            "dialects": _sorted(self.report.dialects),
            "licences": _sorted(self.licences),
            "sequences": self.sequences,
            "sequences_lost": _sorted(self.lost),
            "sequences_clipped": self.clipped,
            "control": dict(self.control),
            "budgets": [[budget, n] for budget, n in sorted(self.budgets.items())],
            "samples": [row for _, row in self.samples],
        }


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts)}


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


def control_plan(recipe: BuildSftConfig, source: SftSource) -> ControlPlan:
    """The recipe's reasoning control with the source's own rates."""
    own, shared = source.reasoning, recipe.reasoning
    return ControlPlan(
        strip=shared.strip if own.strip is None else own.strip,
        truncate=shared.truncate if own.truncate is None else own.truncate,
        budgets=shared.budgets,
        seed=recipe.seed,
    )


def spool_source(
    recipe: BuildSftConfig,
    source: SftSource,
    preparer: Preparer,
    *,
    work: Path,
    base_dir: Path,
    fingerprint: str,
    progress: Progress,
) -> dict[str, Any]:
    """Prepare all of a source into `work`, unless an earlier, killed run has already done so.

    Args:
        fingerprint: of everything that decides the result; a spool made by another is replaced.
        progress: told the source's name and how many rows have been read so far.

    Returns:
        The source's books.

    Raises:
        DataError: more was lost to a reason than the recipe's limits allow.
    """
    facts = read_facts(work, source.name)
    if facts is None or facts["fingerprint"] != fingerprint:
        (work / f"{source.name}.json").unlink(missing_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        report = ReadReport()
        facts = dict[str, Any](fingerprint=fingerprint)
        books = Books(report)
        with (work / f"{source.name}.dropped.jsonl").open("w", encoding="utf-8") as dropped:
            batches = _prepared(recipe, source, preparer, base_dir, books, dropped, progress)
            write_spool(
                work,
                source.name,
                _then(batches, books, facts),
                facts,
                marks=preparer.marks,
            )
    progress(source.name, facts["rows_in"])
    _check_limits(source.name, facts, recipe.limits)
    return facts


def _then(
    batches: Iterator[list[Prepared]], books: Books, facts: dict[str, Any]
) -> Iterator[list[Prepared]]:
    yield from batches
    facts.update(books.facts())


def _prepared(
    recipe: BuildSftConfig,
    source: SftSource,
    preparer: Preparer,
    base_dir: Path,
    books: Books,
    dropped: TextIO,
    progress: Progress,
) -> Iterator[list[Prepared]]:
    keep = max(2, -(-SAMPLES_PER_BUILD // len(recipe.sources)))

    def kept_examples() -> Iterator[tuple[Example, str, int]]:
        report = books.report
        for item in read_examples(
            source, base_dir, allowed_licences=recipe.licences, report=report
        ):
            if isinstance(item, Example):
                yield item, report.file, report.line
            elif recipe.write_dropped:
                dropped.write(_dropped_line(source.name, item))

    for located in batched(kept_examples(), BATCH):
        batch = prepare([example for example, _, _ in located], preparer)
        for record, (example, file, line) in zip(batch, located, strict=True):
            books.add(record, seed=recipe.seed, keep_samples=keep)
            if record.drop is not None and recipe.write_dropped:
                item = Dropped(record.drop.reason, record.drop.detail, file, line, example.id)
                dropped.write(_dropped_line(source.name, item))
        progress(source.name, books.report.rows_in)
        yield batch


def _dropped_line(source: str, item: Dropped) -> str:
    row = {
        "source": source,
        "reason": item.reason,
        "detail": item.detail,
        "file": item.file,
        "line": item.line,
        "record_id": item.record_id,
    }
    return json.dumps(row, ensure_ascii=True) + "\n"


def _check_limits(name: str, facts: Mapping[str, Any], limits: LimitsConfig) -> None:
    rows, lost = facts["rows_in"], facts["sequences_lost"]
    sequences = facts["sequences"] + sum(lost.values())
    for reason, limit in limits.model_dump().items():
        of_rows = facts["dropped"].get(reason, 0) / max(rows, 1)
        of_sequences = lost.get(reason, 0) / max(sequences, 1)
        if max(of_rows, of_sequences) > limit:
            raise DataError(
                f"source {name!r}: {reason} took {of_rows:.1%} of {rows:,} rows and "
                f"{of_sequences:.1%} of {sequences:,} sequences, limits.{reason} is {limit:.1%}. "
                f"{_ADVICE[reason]}"
            )


_ADVICE = {
    "nothing_trained": "Look at write_dropped: true; are these conversations without answers?",
    "overlong": "Raise packing.capacity, or set packing.overlong to truncate.",
    "render_error": "Look at write_dropped: true; does this template fit this source?",
}
