"""One source's sequences on disk, waiting for the mixture: `work/maths.sequences.arrow` and others.

    records:    {"record_id": "5f0c…", "id64": …, "row64": …, "licence": "MIT", …, "sequences": 2}
    sequences:  {"turn": 0, "reasons": true, "budget": None, "ids": […], "spans": [31, 90]}

Tokens go to disk as they are made and come back through a memory map, so memory grows with records
and not with tokens. `maths.json` is written last: a spool without it is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_builders.keyed import key64
from data_builders.sft_prepare import Prepared, PreparedSequence
from posttrain.artifacts import atomic_write_json
from posttrain.tokens.supervision import (
    Batch,
    Flag,
    Marks,
    mask_of_spans,
    sequence_keys,
    supervision_flags,
)

RECORDS = pa.schema(
    [
        ("record_id", pa.string()),
        ("id64", pa.uint64()),
        ("row64", pa.uint64()),
        ("licence", pa.string()),
        ("dialect", pa.string()),
        ("metadata", pa.string()),
        ("sequences", pa.int32()),
    ]
)
SEQUENCES = pa.schema(
    [
        ("turn", pa.int16()),
        ("reasons", pa.bool_()),
        ("budget", pa.int32()),
        ("length", pa.int32()),
        ("trained", pa.int32()),
        ("flags", pa.uint16()),
        ("key", pa.uint64()),
        ("ids", pa.list_(pa.int32())),
        ("spans", pa.list_(pa.int32())),
    ]
)


def write_spool(
    directory: Path,
    name: str,
    batches: Iterable[list[Prepared]],
    facts: dict[str, Any],
    *,
    marks: Marks,
) -> None:
    """Write the kept records of all batches; `facts` is read when the batches are exhausted.

    Args:
        marks: by which each sequence's supervision is read.
    """
    directory.mkdir(parents=True, exist_ok=True)
    records, sequences = _paths(directory, name)
    with (
        pa.ipc.new_file(str(records), RECORDS) as record_file,
        pa.ipc.new_file(str(sequences), SEQUENCES) as sequence_file,
    ):
        for batch in batches:
            kept = [p for p in batch if p.drop is None]
            if kept:
                record_file.write_batch(_record_batch(kept))
                sequence_file.write_batch(_sequence_batch(kept, marks))
    atomic_write_json(directory / f"{name}.json", facts)


def read_facts(directory: Path, name: str) -> dict[str, Any] | None:
    """What `write_spool` was given as facts, `None` when the spool was not finished."""
    path = directory / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.records.arrow", directory / f"{name}.sequences.arrow"


def _record_batch(kept: list[Prepared]) -> pa.RecordBatch:
    rows = [p.example for p in kept]
    columns = [
        [r.id for r in rows],
        [key64(0, "record", r.id) for r in rows],
        [key64(0, "row", r.id, r.licence, r.dialect, r.metadata) for r in rows],
        [r.licence for r in rows],
        [r.dialect for r in rows],
        [r.metadata for r in rows],
        [len(p.sequences) for p in kept],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    return pa.record_batch(arrays, schema=RECORDS)


def _sequence_batch(kept: list[Prepared], marks: Marks) -> pa.RecordBatch:
    rows = [s for p in kept for s in p.sequences]
    ids = pa.array([s.tokens.ids for s in rows], pa.list_(pa.int32()))
    flags, keys = _supervision(rows, ids, marks)
    columns = [
        [s.sample.turn for s in rows],
        [s.sample.reasoning == "on" for s in rows],
        [s.budget for s in rows],
        [len(s.tokens.ids) for s in rows],
        [s.tokens.trained for s in rows],
        flags,
        keys,
        ids,
        [s.tokens.spans for s in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SEQUENCES, strict=True)]
    return pa.record_batch(arrays, schema=SEQUENCES)


def _supervision(
    rows: list[PreparedSequence], ids: pa.ListArray, marks: Marks
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint64]]:
    """What each sequence's mask teaches, and a key of its tokens."""
    values = ids.values.to_numpy()
    starts = ids.offsets.to_numpy().astype(np.int64)
    spans = [
        first + edge for s, first in zip(rows, starts, strict=False) for edge in s.tokens.spans
    ]
    batch = Batch(values, mask_of_spans(len(values), np.array(spans, np.int64)), starts)
    flags = supervision_flags(batch, marks)
    flags[[s.budget is not None for s in rows]] |= np.uint16(Flag.CUT_TRACE)
    flags[[s.length > len(s.tokens.ids) for s in rows]] |= np.uint16(Flag.CLIPPED)
    return flags, sequence_keys(batch)


class Lists:
    """A `list<int32>` column in a memory map: `lists[i]` is a view, nothing is copied."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._values = [chunk.values.to_numpy() for chunk in column.chunks]
        self._offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self._first = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        chunk = int(np.searchsorted(self._first, index, side="right")) - 1
        at = index - int(self._first[chunk])
        offsets = self._offsets[chunk]
        return self._values[chunk][offsets[at] : offsets[at + 1]]


class Rows:
    """Some columns of a table in a memory map; rows are gathered chunk by chunk."""

    def __init__(self, table: pa.Table, columns: list[str]) -> None:
        self._empty = table.select(columns).slice(0, 0)
        self._chunks = table.select(columns).to_batches()
        self._first = np.cumsum([0, *(len(chunk) for chunk in self._chunks)])

    def take(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        """The rows at the given positions, in that order."""
        if not len(rows):
            return self._empty
        chunks = np.searchsorted(self._first, rows, side="right") - 1
        order = np.argsort(chunks, kind="stable")
        which, starts = np.unique(chunks[order], return_index=True)
        parts = [
            self._chunks[chunk].take(pa.array(rows[where] - self._first[chunk]))
            for chunk, where in zip(which, np.split(order, starts[1:]), strict=True)
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts).combine_chunks().take(pa.array(back))


@dataclass(frozen=True)
class Spool:
    """A finished spool. `starts[r]` is record r's first sequence, `starts[-1]` their number.

    Per record: `id64` (the conversation), `row64` (the conversation with its licence and metadata).
    Per sequence: `length`, `trained` tokens, whether it `reasons`, whether a trace in it was `cut`,
    the `flags` of its supervision, a `key` of its tokens.
    """

    name: str
    facts: dict[str, Any]
    records: Rows
    id64: npt.NDArray[np.uint64]
    row64: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    trained: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.bool_]
    cut: npt.NDArray[np.bool_]
    flags: npt.NDArray[np.uint16]
    key: npt.NDArray[np.uint64]
    sequences: Rows
    ids: Lists
    spans: Lists

    def per_record(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sums over each record's sequences."""
        return np.diff(np.concatenate([[0], np.cumsum(values)])[self.starts])


def read_spool(directory: Path, name: str) -> Spool:
    """Open a finished spool; only its index columns are loaded."""
    facts = read_facts(directory, name)
    assert facts is not None, f"spool {name} is not finished"
    records, sequences = (_mapped(path) for path in _paths(directory, name))
    counts = records["sequences"].to_numpy()
    return Spool(
        name=name,
        facts=facts,
        records=Rows(records, ["record_id", "licence", "dialect", "metadata"]),
        id64=records["id64"].to_numpy(),
        row64=records["row64"].to_numpy(),
        starts=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        length=sequences["length"].to_numpy().astype(np.int64),
        trained=sequences["trained"].to_numpy().astype(np.int64),
        reasons=sequences["reasons"].to_numpy(),
        cut=sequences["budget"].is_valid().to_numpy(),
        flags=sequences["flags"].to_numpy(),
        key=sequences["key"].to_numpy(),
        sequences=Rows(sequences, ["turn", "budget"]),
        ids=Lists(sequences["ids"]),
        spans=Lists(sequences["spans"]),
    )


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size` items."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
