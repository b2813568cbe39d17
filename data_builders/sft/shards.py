"""Packs → shards that the trainer maps into memory, and an index that says what lies where.

    packed/train-00000.arrow   {"input_ids": […], "labels": [-100, …], "seq_lengths": [212, 44]}
    index/train-00000.parquet  {"pack": 0, "offset": 212, "length": 44, "record_id": "5f0c…", …}

Arrow IPC streams, as `datasets.Dataset.from_file` maps them. `seq_lengths` is the form in which the
installed TRL takes packed rows (`DataCollatorForLanguageModeling`, padding-free). Evaluation rows
carry `group`, "<source>/<on|off>"; one of their packs holds one group only. A shard is made from
the plan and the spools alone, whoever writes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.sft.pack import PACK, ShardPlan
from data_builders.sft.prepared import Reader
from data_builders.sft.windows import ENTRY, Entries
from posttrain.tokens.encode import labels_of

Int32 = npt.NDArray[np.int32]
Packs = npt.NDArray[np.void]
_INT_LIST = pa.list_(pa.int32())
_BATCH_TOKENS = 1_048_576  # tokens in memory before they are written
_INDEX_ROWS = 16_384  # rows of the index in memory before they are written
INDEX = pa.schema(
    [
        ("pack", pa.int32()),
        ("offset", pa.int32()),
        ("length", pa.int32()),
        ("trained", pa.int32()),
        ("record_id", pa.string()),
        ("turn", pa.int16()),
        ("epoch", pa.int16()),
        ("source", pa.string()),
        ("license", pa.string()),
        ("dialect", pa.string()),
        ("reasoning", pa.string()),
        ("truncated_budget", pa.int32()),
        ("metadata", pa.string()),
    ]
)


def pack_schema(*, grouped: bool) -> pa.Schema:
    """Columns of a shard."""
    fields = [(name, _INT_LIST) for name in ("input_ids", "labels", "seq_lengths")]
    return pa.schema([*fields, ("group", pa.string())] if grouped else fields)


@dataclass(frozen=True, slots=True)
class Where:
    """What all shards of a split share. Saved once, since a job is sent to a worker.

    `folders` are the parts of all sources in order; `groups` label packs, None where they have no
    label.
    """

    entries: str
    packs: str
    folders: Sequence[str]
    sources: Sequence[str]
    groups: Sequence[str] | None

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        path.write_text(json.dumps(values), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Where:
        """As it was saved."""
        return cls(**json.loads(path.read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Write one shard. `where` is a saved `Where`."""

    shard: ShardPlan
    split: str
    where: str
    out: str

    @property
    def names(self) -> tuple[str, str]:
        """Paths of the shard and of its index, relative to the artifact."""
        name = f"{self.split}-{self.shard.number:05d}"
        return f"packed/{name}.arrow", f"index/{name}.parquet"

    def describe(self) -> str:
        """For messages."""
        return self.names[0]

    def run(self, tools: Any, tell: Callable[[int], None]) -> None:
        """Do it; `tell` is told of sequences."""
        del tools  # the plan and the spools say everything
        where = Where.load(Path(self.where))
        paths = [Path(self.out) / name for name in self.names]
        partial = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
        schema = pack_schema(grouped=where.groups is not None)
        with (
            Reader([Path(folder) for folder in where.folders]) as reader,
            pa.ipc.new_stream(str(partial[0]), schema) as stream,
            _Index(partial[1], where, reader) as index,
        ):
            for first, packs, entries in self._batches(where):
                stream.write_batch(_batch(packs, entries, reader, where, schema))
                index.add(first, packs, entries)
                tell(len(entries))
        for made, path in zip(partial, paths, strict=True):
            made.replace(path)

    def _batches(self, where: Where) -> Iterator[tuple[int, Packs, Entries]]:
        """The number of the first pack, some packs, and their entries; few tokens at a time."""
        first, stop = self.shard.packs
        packs = np.fromfile(where.packs, PACK, stop - first, offset=first * PACK.itemsize)
        sums = np.cumsum(packs["tokens"], dtype=np.int64)
        at = self.shard.entries[0]
        start = 0
        with Path(where.entries).open("rb") as file:
            file.seek(at * ENTRY.itemsize)
            while start < len(packs):
                before = int(sums[start - 1]) if start else 0
                end = int(np.searchsorted(sums, before + _BATCH_TOKENS, side="left")) + 1
                some = packs[start:end]
                entries = np.fromfile(file, ENTRY, int(some["stop"][-1]) - at)
                yield first + start, some, entries
                at, start = int(some["stop"][-1]), end


def _batch(
    packs: Packs, entries: Entries, reader: Reader, where: Where, schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of the shard."""
    lengths = entries["length"].astype(np.int32)
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids, labels = np.empty(edges[-1], np.int32), np.empty(edges[-1], np.int32)
    spans = np.empty(int(entries["edges"].max()), np.int32)
    places = zip(
        entries["part"].tolist(), entries["at"].tolist(), entries["edges"].tolist(), strict=True
    )
    for k, (part, at, count) in enumerate(places):
        own = slice(int(edges[k]), int(edges[k + 1]))
        reader.tokens(part, at, ids[own], spans[:count])
        labels_of(ids[own], spans[:count].tolist(), out=labels[own])
    columns: list[pa.Array] = [
        _lists(ids, packs["tokens"]),
        _lists(labels, packs["tokens"]),
        _lists(lengths, _counts(packs, entries)),
    ]
    if where.groups is not None:
        columns.append(pa.array([where.groups[k] for k in packs["group"].tolist()], pa.string()))
    return pa.record_batch(columns, schema=schema)


def _counts(packs: Packs, entries: Entries) -> npt.NDArray[np.int64]:
    """Sequences in each of the packs that the entries are of."""
    stops = packs["stop"].astype(np.int64)
    return np.diff(stops, prepend=stops[-1] - len(entries))


def _lists(values: Int32, lengths: npt.NDArray[np.integer]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


class _Index:
    """The index of one shard, one row a sequence, in the order of the shard."""

    def __init__(self, path: Path, where: Where, reader: Reader) -> None:
        self._where, self._reader = where, reader
        self._writer = pq.ParquetWriter(path, INDEX, compression="zstd")
        self._waiting: list[tuple[Int32, Int32, Entries]] = []

    def __enter__(self) -> _Index:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, first: int, packs: Packs, entries: Entries) -> None:
        """The entries of some packs, of which the first has this number."""
        counts = _counts(packs, entries)
        pack = np.repeat(np.arange(first, first + len(packs), dtype=np.int32), counts)
        length = entries["length"].astype(np.int64)
        begin = np.cumsum(length) - length
        heads = np.repeat(begin[np.cumsum(counts) - counts], counts)
        self._waiting.append((pack, (begin - heads).astype(np.int32), entries))
        if sum(len(entries) for _, _, entries in self._waiting) >= _INDEX_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        packs, offsets, parts = zip(*self._waiting, strict=True)
        self._waiting = []
        self._writer.write_table(
            self._table(np.concatenate(packs), np.concatenate(offsets), np.concatenate(parts))
        )

    def _table(self, packs: Int32, offsets: Int32, entries: Entries) -> pa.Table:
        places = zip(*(entries[n].tolist() for n in ("part", "text", "text_size")), strict=True)
        texts = [self._reader.text(*place) for place in places]
        cut = entries["budget"] >= 0
        names = self._where.sources
        columns: dict[str, Any] = {
            "pack": packs,
            "offset": offsets,
            **{name: entries[name] for name in ("length", "trained", "turn", "epoch")},
            "source": [names[k] for k in entries["source"].tolist()],
            "reasoning": ["on" if reasons else "off" for reasons in entries["reasons"].tolist()],
            "truncated_budget": pa.array(entries["budget"], mask=~cut),
        }
        for place, name in enumerate(("record_id", "license", "dialect", "metadata")):
            columns[name] = [text[place] for text in texts]
        return pa.table({field.name: columns[field.name] for field in INDEX}).cast(INDEX)
