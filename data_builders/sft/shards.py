"""Packs → shards that the trainer maps into memory, and an index that says what lies where.

    packed/train-00000.arrow   {"input_ids": […], "labels": [-100, …], "seq_lengths": [212, 44]}
    index/train-00000.parquet  {"pack": 0, "offset": 212, "length": 44, "record_id": "5f0c…", …}

Arrow IPC streams, as `datasets.Dataset.from_file` maps them. `seq_lengths` is the form in which the
installed TRL takes packed rows (`DataCollatorForLanguageModeling`, padding-free). Evaluation rows
carry `group`, "<source>/<on|off>"; one of their packs holds one group only. A shard is made from
the plan and the sources alone, whoever writes it.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.progress import Stages
from data_builders.sft.pack import (
    PACK,
    PackedSplit,
    Packs,
    ShardPlan,
    cut_shards,
    pack_split,
)
from data_builders.sft.plan import BuildPlan, Numbers
from data_builders.sft.prepared import RECORD, SEQUENCE, PreparedSource, Reader
from data_builders.workers import Executor, OnProgress
from posttrain.config.build_sft import BuildSftConfig
from posttrain.tokens.encode import labels_of

Int32 = npt.NDArray[np.int32]
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


# one planned sequence, with what the shard and its index hold of it
ENTRY = np.dtype(
    [
        ("at", "<u8"),  # in its part's tokens.bin
        ("text", "<u8"),  # in its part's texts.bin
        ("text_size", "<u4"),
        ("length", "<u4"),
        ("trained", "<u4"),
        ("edges", "<u4"),
        ("part", "<u4"),  # counted through all sources
        ("budget", "<i4"),
        ("turn", "<i2"),
        ("epoch", "<i2"),
        ("source", "<u2"),
        ("reasons", "?"),
        ("_", "V1"),
    ]
)
Entries = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """What all shards of a split share. Saved once, since a job is sent to a worker.

    `numbers` and `packs` are the files of a `PackedSplit`. `sources`: name, folders of the parts
    and `sequence_starts` of each. `passes`: source, epoch and first number of each. `groups` label
    packs, None where they have no label.
    """

    numbers: str
    packs: str
    sources: Sequence[tuple[str, Sequence[str], Sequence[int]]]
    passes: Sequence[tuple[int, int, int]]
    groups: Sequence[str] | None

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> SplitFiles:
        """As it was saved."""
        return cls(**json.loads(path.read_text("utf-8")))

    @property
    def folders(self) -> list[Path]:
        """The parts of all sources in order."""
        return [Path(folder) for _, folders, _ in self.sources for folder in folders]

    def entries(self, numbers: Numbers, reader: Reader) -> Entries:
        """The planned sequences with these numbers."""
        source_of, epoch_of, first_of = np.array(self.passes, np.int64).T
        which = np.searchsorted(first_of, numbers, side="right") - 1
        found = np.zeros(len(numbers), ENTRY)
        found["source"], found["epoch"] = source_of[which], epoch_of[which]
        places = numbers - first_of[which]
        first_part = 0
        for k, (_, folders, starts) in enumerate(self.sources):
            own = source_of[which] == k
            part = np.searchsorted(starts, places[own], side="right") - 1
            found["part"][own] = first_part + part
            places[own] -= np.array(starts)[part]
            first_part += len(folders)
        parts = found["part"].astype(np.int64)
        sequences = reader.rows(parts, places, "sequences.bin", SEQUENCE)
        for name in ("at", "length", "trained", "edges", "budget", "turn", "reasons"):
            found[name] = sequences[name]
        owners = sequences["record"].astype(np.int64)
        records = reader.rows(parts, owners, "records.bin", RECORD)
        found["text"], found["text_size"] = records["text"], records["text_size"]
        return found


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Write one shard. `files` is a saved `SplitFiles`."""

    shard: ShardPlan
    split: str
    files: str
    out: str

    @property
    def names(self) -> tuple[str, str]:
        """Paths of the shard and of its index, relative to the artifact."""
        name = f"{self.split}-{self.shard.number:05d}"
        return f"packed/{name}.arrow", f"index/{name}.parquet"

    def describe(self) -> str:
        """For messages."""
        return self.names[0]

    def run(self, state: Any, on_progress: OnProgress) -> None:
        """Do it; `on_progress` is called with numbers of sequences."""
        del state  # the plan and the prepared parts decide everything
        split = SplitFiles.load(Path(self.files))
        paths = [Path(self.out) / name for name in self.names]
        partial = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
        schema = pack_schema(grouped=split.groups is not None)
        with (
            Reader(split.folders) as reader,
            pa.ipc.new_stream(str(partial[0]), schema) as stream,
            _Index(partial[1], split, reader) as index,
        ):
            for first, packs, entries in self._batches(split, reader):
                stream.write_batch(_batch(packs, entries, reader, split, schema))
                index.add(first, packs, entries)
                on_progress(len(entries))
        for written, path in zip(partial, paths, strict=True):
            written.replace(path)

    def _batches(self, split: SplitFiles, reader: Reader) -> Iterator[tuple[int, Packs, Entries]]:
        """The number of the first pack, some packs, and their entries; few tokens at a time."""
        first, stop = self.shard.packs
        packs = np.fromfile(split.packs, PACK, stop - first, offset=first * PACK.itemsize)
        begin, behind = self.shard.sequences
        numbers = np.fromfile(split.numbers, "<u4", behind - begin, offset=4 * begin)
        sums = np.cumsum(packs["tokens"], dtype=np.int64)
        start = at = 0
        while start < len(packs):
            before = int(sums[start - 1]) if start else 0
            end = int(np.searchsorted(sums, before + _BATCH_TOKENS, side="left")) + 1
            some = packs[start:end]
            until = int(some["stop"][-1]) - begin
            yield first + start, some, split.entries(numbers[at:until], reader)
            at, start = until, end


def _batch(
    packs: Packs, entries: Entries, reader: Reader, split: SplitFiles, schema: pa.Schema
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
    if split.groups is not None:
        columns.append(pa.array([split.groups[k] for k in packs["group"].tolist()], pa.string()))
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

    def __init__(self, path: Path, split: SplitFiles, reader: Reader) -> None:
        self._split, self._reader = split, reader
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
        names = [name for name, _, _ in self._split.sources]
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


def write_splits(
    out: Path,
    sources: Sequence[PreparedSource],
    plan: BuildPlan,
    recipe: BuildSftConfig,
    *,
    scratch: Path,
    executor: Executor,
    stages: Stages,
) -> dict[str, int | None]:
    """Pack and write both splits; what an earlier, killed run left of them is replaced.

    The groups of the plan get the stats of their packs.

    Args:
        scratch: for the plan, made anew.

    Returns:
        The files that were written, with their rows.
    """
    out, scratch = out.resolve(), scratch.resolve()  # workers may have been started elsewhere
    for folder in (out / "packed", out / "index", scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    stages.start("packing")
    jobs: list[ShardJob] = []
    for name, groups in (("train", {"": plan.train}), ("eval", plan.evaluation)):
        packed = pack_split(name, groups, plan, sources, recipe)
        path = _save(packed, plan, sources, scratch)
        for shard in cut_shards(packed, recipe.shards):
            jobs.append(ShardJob(shard, name, str(path), str(out)))
    total = sum(job.shard.sequences[1] - job.shard.sequences[0] for job in jobs)
    stages.start("writing shards", total=total, unit="sequences")
    for _ in executor.run(jobs, stages.advance):
        pass
    for left in (*out.glob("packed/.*"), *out.glob("index/.*")):
        left.unlink()  # of a worker that died, and whose job another one did
    files: dict[str, int | None] = {}
    for job in jobs:
        packed, index = job.names
        files[packed] = job.shard.packs[1] - job.shard.packs[0]
        files[index] = job.shard.sequences[1] - job.shard.sequences[0]
    return files


def _save(
    packed: PackedSplit, plan: BuildPlan, sources: Sequence[PreparedSource], scratch: Path
) -> Path:
    """What the shards of a split are written from; returns the path of its `SplitFiles`."""
    numbers, packs = (scratch / f"{packed.split}.{name}" for name in ("numbers", "packs"))
    packed.numbers.astype("<u4").tofile(numbers)
    packed.packs.tofile(packs)
    files = SplitFiles(
        numbers=str(numbers),
        packs=str(packs),
        sources=[
            (s.name, [str(folder) for folder in s.folders], s.sequence_starts().tolist())
            for s in sources
        ],
        passes=[(one.source, one.epoch, one.first) for one in plan.passes],
        groups=packed.groups if packed.split == "eval" else None,
    )
    path = scratch / f"{packed.split}.json"
    files.save(path)
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write one JSON object a line; returns how many."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(rows)


def join_files(target: Path, parts: Sequence[Path], more: Iterable[str] = ()) -> int:
    """Concatenate files of lines, and then some more lines; returns how many."""
    lines = 0
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                for line in file:
                    whole.write(line)
                    lines += 1
        for line in more:
            whole.write(line.encode())
            lines += 1
    return lines
