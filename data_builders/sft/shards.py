"""A plan's sequences → packs → shards that the trainer maps into memory, and an index of them.

    packed/train-00000.arrow   {"input_ids": […], "labels": [-100, …], "seq_lengths": [212, 44]}
    index/train-00000.parquet  {"pack": 0, "offset": 212, "length": 44, "record_id": "5f0c…", …}

Arrow IPC streams. `seq_lengths` is the form in which the installed TRL takes packed rows
(`DataCollatorForLanguageModeling`, padding-free). A pack of evaluation holds one `group` only.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.keyed import key64
from data_builders.progress import Stages
from data_builders.sft.plan import BuildPlan, Numbers, PlannedGroup
from data_builders.sft.prepared import RECORD, SEQUENCE, PreparedSource, Reader, Rows
from data_builders.workers import Executor, OnProgress
from posttrain.config.build_sft import BuildSftConfig, ShardConfig
from posttrain.tokens import pack_lengths
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
# where a pack's sequences end, its tokens, its group
PACK = np.dtype([("stop", "<u8"), ("tokens", "<u4"), ("group", "<i4")])
# one planned sequence, with what the shard and its index hold of it
ENTRY = np.dtype(
    [
        *SEQUENCE.descr,
        ("text", "<u8"),  # in its part's texts.bin
        ("text_size", "<u4"),
        ("part", "<u4"),  # counted through all sources
        ("source", "<u2"),
        ("epoch", "<i2"),
        ("pack", "<i4"),
        ("offset", "<i4"),
    ]
)


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
    columns = [(s.name, s.folders, s.sequence_starts()) for s in sources]
    jobs: list[ShardJob] = []
    for split, groups in (("train", {"": plan.train}), ("eval", plan.evaluation)):
        numbers, packs = pack_split(split, groups, plan, sources, recipe)
        labels = list(groups) if split == "eval" else None
        paths = scratch / f"{split}.numbers", scratch / f"{split}.packs"
        numbers.astype("<u4").tofile(paths[0])
        packs.tofile(paths[1])
        files = SplitFiles(*paths, columns, plan.passes, labels)
        for k, (own, within) in enumerate(cut_shards(packs, recipe.shards)):
            jobs.append(ShardJob(f"{split}-{k:05d}", own, within, files, out))
    stages.start("writing shards", total=sum(len(job.sequences) for job in jobs), unit="sequences")
    for _ in executor.run(jobs, stages.advance):
        pass
    for left in (*out.glob("packed/.*"), *out.glob("index/.*")):
        left.unlink()  # of a worker that died, and whose job another one did
    rows = ((job.paths, (job.packs, job.sequences)) for job in jobs)
    return {p: len(r) for paths, ranges in rows for p, r in zip(paths, ranges, strict=True)}


def pack_split(
    split: str,
    groups: Mapping[str, PlannedGroup],
    plan: BuildPlan,
    sources: Sequence[PreparedSource],
    recipe: BuildSftConfig,
) -> tuple[Numbers, Rows]:
    """The numbers of a split's sequences, pack after pack, and a `PACK` for each pack.

    Every group is put in the order of its keys and packed. No pack holds two groups, or two
    sequences of one conversation. The groups' stats get their packs.
    """
    numbers, packs = [np.empty(0, np.uint32)], [np.empty(0, PACK)]
    done = 0
    for k, (label, group) in enumerate(groups.items()):
        order = np.argsort(group.table["key"], kind="stable")
        lengths, in_order = group.table["length"][order], group.table["number"][order]
        del order
        found = pack_lengths(
            lengths,
            recipe.packing.max_length,
            seed=key64(recipe.seed, "pack", split, label, 0),
            groups=plan.conversations(in_order, sources),
        )
        own = np.zeros(len(found), PACK)
        own["stop"] = done + found.offsets[1:]
        own["tokens"] = found.fills(lengths)
        own["group"] = k
        group.stats.add_packs(own["tokens"].astype(np.int64))
        numbers.append(in_order[found.positions])
        packs.append(own)
        done += len(in_order)
    return np.concatenate(numbers), np.concatenate(packs)


def cut_shards(packs: Rows, config: ShardConfig) -> list[tuple[range, range]]:
    """Each shard's packs and sequences; it closes with the pack that reaches one of the limits."""
    shards: list[tuple[range, range]] = []
    first = start = size = 0
    columns = packs["stop"].tolist(), packs["tokens"].tolist()
    for pack, (stop, tokens) in enumerate(zip(*columns, strict=True), start=1):
        size += 8 * tokens  # an id and a label
        full = pack - first == config.packs or size >= config.bytes
        if full or pack == len(packs):
            shards.append((range(first, pack), range(start, stop)))
            first, start, size = pack, stop, 0
    return shards


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """What all shards of a split share. `groups` label packs, None where they have no label.

    `numbers` and `packs` hold what `pack_split` gave; `sources`: name, folders, `sequence_starts`.
    """

    numbers: Path
    packs: Path
    sources: Sequence[tuple[str, Sequence[Path], npt.NDArray[np.int64]]]
    passes: Sequence[Sequence[int]]
    groups: Sequence[str] | None

    def entries(self, numbers: Numbers, reader: Reader) -> Rows:
        """An `ENTRY` for each of the planned sequences with these numbers, but for its pack."""
        passes = [(k, *one) for k, own in enumerate(self.passes) for one in enumerate(own)]
        source_of, epoch_of, first_of = np.array(passes, np.int64).T
        which = np.searchsorted(first_of, numbers, side="right") - 1
        found = np.zeros(len(numbers), ENTRY)
        found["source"], found["epoch"] = source_of[which], epoch_of[which]
        places = numbers - first_of[which]
        first_part = 0
        for k, (_, folders, starts) in enumerate(self.sources):
            own = source_of[which] == k
            part = np.searchsorted(starts, places[own], side="right") - 1
            found["part"][own] = first_part + part
            places[own] -= starts[part]
            first_part += len(folders)
        parts = found["part"].astype(np.int64)
        sequences = reader.rows(parts, places, "sequences.bin", SEQUENCE)
        records = reader.rows(parts, sequences["record"].astype(np.int64), "records.bin", RECORD)
        for name in SEQUENCE.names or ():
            found[name] = sequences[name]
        found["text"], found["text_size"] = records["text"], records["text_size"]
        return found


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Write one shard of these packs and sequences."""

    name: str
    packs: range
    sequences: range
    split: SplitFiles
    out: Path

    @property
    def paths(self) -> tuple[str, str]:
        """The shard and its index, relative to the artifact."""
        return f"packed/{self.name}.arrow", f"index/{self.name}.parquet"

    def describe(self) -> str:
        """For messages."""
        return self.paths[0]

    def run(self, state: Any, on_progress: OnProgress) -> None:
        """Do it; `on_progress` is called with numbers of sequences."""
        del state  # the plan and the prepared parts decide everything
        split = self.split
        folders = [folder for _, own, _ in split.sources for folder in own]
        paths = [self.out / path for path in self.paths]
        partial = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
        fields = [(name, _INT_LIST) for name in ("input_ids", "labels", "seq_lengths")]
        group = [] if split.groups is None else [("group", pa.string())]
        schema = pa.schema([*fields, *group])
        waiting: list[Rows] = []
        with (
            Reader(folders) as reader,
            pa.ipc.new_stream(str(partial[0]), schema) as stream,
            pq.ParquetWriter(partial[1], INDEX, compression="zstd") as index,
        ):
            for packs, entries in self._batches(reader):
                stream.write_batch(_batch(packs, entries, reader, split, schema))
                waiting.append(entries)
                if sum(map(len, waiting)) >= _INDEX_ROWS:
                    index.write_table(_index_table(waiting, split, reader))
                    waiting = []
                on_progress(len(entries))
            if waiting:
                index.write_table(_index_table(waiting, split, reader))
        for written, path in zip(partial, paths, strict=True):
            written.replace(path)

    def _batches(self, reader: Reader) -> Iterator[tuple[Rows, Rows]]:
        """Some packs and their entries; few tokens at a time."""
        first, begin, split = self.packs.start, self.sequences.start, self.split
        packs = np.fromfile(split.packs, PACK, len(self.packs), offset=first * PACK.itemsize)
        numbers = np.fromfile(split.numbers, "<u4", len(self.sequences), offset=4 * begin)
        counts = np.diff(packs["stop"].astype(np.int64), prepend=begin)
        sums = np.cumsum(packs["tokens"], dtype=np.int64)
        start = at = 0
        while start < len(packs):
            before = int(sums[start - 1]) if start else 0
            end = int(np.searchsorted(sums, before + _BATCH_TOKENS, side="left")) + 1
            own = counts[start:end]
            entries = split.entries(numbers[at : at + own.sum()], reader)
            entries["pack"] = first + start + np.repeat(np.arange(len(own)), own)
            ends = np.cumsum(entries["length"], dtype=np.int64)
            heads = np.append(0, ends[np.cumsum(own)[:-1] - 1])  # where each pack begins
            entries["offset"] = ends - entries["length"] - np.repeat(heads, own)
            yield packs[start:end], entries
            at, start = at + len(entries), end


def _batch(
    packs: Rows, entries: Rows, reader: Reader, split: SplitFiles, schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of the shard."""
    lengths = entries["length"].astype(np.int32)
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids, labels = np.empty(edges[-1], np.int32), np.empty(edges[-1], np.int32)
    spans = np.empty(int(entries["edges"].max()), np.int32)
    places = zip(*(entries[name].tolist() for name in ("part", "at", "edges")), strict=True)
    for k, (part, at, count) in enumerate(places):
        own = slice(int(edges[k]), int(edges[k + 1]))
        reader.tokens(part, at, ids[own], spans[:count])
        labels_of(ids[own], spans[:count].tolist(), out=labels[own])
    columns: list[pa.Array] = [
        _lists(ids, packs["tokens"]),
        _lists(labels, packs["tokens"]),
        _lists(lengths, np.bincount(entries["pack"] - entries["pack"][0])),
    ]
    if split.groups is not None:
        groups = _texts([split.groups[int(k)] for k in packs["group"]])
        columns.append(groups.cast(pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _lists(values: Int32, lengths: npt.NDArray[np.integer]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pa.ListArray.from_arrays(_integers(offsets), _integers(values))


# `pa.array` imports pandas, which costs a build of few rows an eighth of its time


def _integers(
    values: npt.NDArray[np.integer], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """An Arrow array of numbers; what is not valid is null."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    numbers = pa.py_buffer(np.ascontiguousarray(values))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bits, numbers])


def _texts(texts: Sequence[str]) -> pa.Array:
    """An Arrow array of texts."""
    encoded = [text.encode() for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def _index_table(waiting: Sequence[Rows], split: SplitFiles, reader: Reader) -> pa.Table:
    """Rows of the index, one a sequence, in the order of the shard."""
    entries = np.concatenate(waiting)
    places = zip(*(entries[n].tolist() for n in ("part", "text", "text_size")), strict=True)
    texts = [reader.text(*place) for place in places]
    names = [name for name, _, _ in split.sources]
    plain = ("pack", "offset", "length", "trained", "turn", "epoch")
    columns: dict[str, pa.Array] = {
        **{name: _integers(entries[name]) for name in plain},
        "source": _texts([names[k] for k in entries["source"].tolist()]),
        "reasoning": _texts(["on" if on else "off" for on in entries["reasons"].tolist()]),
        "truncated_budget": _integers(entries["budget"], entries["budget"] >= 0),
    }
    for place, name in enumerate(("record_id", "license", "dialect", "metadata")):
        columns[name] = _texts([text[place] for text in texts])
    arrays = [columns[field.name] for field in INDEX]
    return pa.Table.from_arrays(arrays, names=INDEX.names).cast(INDEX)


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
        for text in chain(map(Path.read_bytes, parts), (line.encode() for line in more)):
            whole.write(text)
            lines += text.count(b"\n")
    return lines
