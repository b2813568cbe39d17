"""Supervision audit of every source: figures of the tokens that its masks train.

Counts every record that the mixture and evaluation may use, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among
from data_builders.sft.prepared import PreparedPart, PreparedSource, Reader
from posttrain.audit.figures import Audit, Shown, SourceFigures
from posttrain.tokens.supervision import Marks, mask_of_spans

Int = npt.NDArray[np.int64]


def audit_sources(
    sources: Sequence[PreparedSource], drops: Sequence[Mapping[str, Int]] | None, marks: Marks
) -> Audit:
    """Audit all sources, without the records that `drops` lists per source by reason."""
    audit = Audit({source.name: SourceFigures.empty(marks, knows_cuts=True) for source in sources})
    unused_records: list[Int] = []  # per source, numbers of the dropped records
    for source_drops in drops or [{} for _ in sources]:
        numbers = np.concatenate([np.empty(0, np.int64), *source_drops.values()])
        unused_records.append(np.unique(numbers))
    for k, source in enumerate(sources):
        with Reader(source.folders) as reader:
            for part, used in _used_sequences(source, unused_records[k]):
                fetch = partial(_fetch, reader, part, used)
                audit.add(part.sequences[used], np.full(len(used), k), fetch)

    def look_up(numbers: set[int]) -> dict[int, Shown]:
        """Sequences by their number among all audited ones."""
        shown: dict[int, Shown] = {}
        if not numbers:
            return shown
        first = 0
        for source, source_unused in zip(sources, unused_records, strict=True):
            with Reader(source.folders) as reader:
                for part, used in _used_sequences(source, source_unused):
                    in_part = range(first, first + len(used))
                    for number in numbers:
                        if number in in_part:
                            shown[number] = _fetch(reader, part, used, number - first)
                    first = in_part.stop
        return shown

    audit.count_copies(look_up)
    return audit


def _used_sequences(
    source: PreparedSource, unused_records: Int
) -> Iterator[tuple[PreparedPart, Int]]:
    """Yield each part with the numbers of the sequences of its used records."""
    for part in source.parts():
        is_used = ~is_among(part.numbers, unused_records)
        yield part, np.flatnonzero(is_used[part.owners])


def _fetch(reader: Reader, part: PreparedPart, used: Int, k: int) -> Shown:
    """Tokens, mask and name of the `k`-th used sequence of a part."""
    row = part.sequences[used[k]]
    record = part.records[row["record"]]
    ids = np.empty(int(row["length"]), np.int32)
    edges = np.empty(int(row["edges"]), np.int32)
    reader.tokens(part.number, int(row["at"]), ids, edges)
    record_id = reader.text(part.number, int(record["text"]), int(record["text_size"]))[0]
    mask = mask_of_spans(len(ids), edges.astype(np.int64))
    return ids, mask, f"{record_id} turn {row['turn']}"
