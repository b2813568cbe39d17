"""A plan's sequences → packs → shards that the trainer maps into memory, with an index.

    packed/train-00000.arrow   {"input_ids": […], "labels": [-100, …], "seq_lengths": [212, 44]}
    index/train-00000.parquet  {"pack": 0, "offset": 212, "length": 44, "record_id": "5f0c…", …}

Arrow IPC streams. `seq_lengths` is the form in which the installed TRL takes packed rows
(`DataCollatorForLanguageModeling`, padding-free). A pack of evaluation holds one `group` only.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.keyed import key64
from data_builders.sft.plan import BuildPlan, Numbers, PlannedGroup
from data_builders.sft.prepared import RECORD, SEQUENCE, PreparedSource, Reader, Rows
from data_builders.workers import Executor, OnProgress, Stages
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
# end of a pack's sequences in the split's order, its tokens, its group
PACK = np.dtype([("stop", "<u8"), ("tokens", "<u4"), ("group", "<i4")])
# one planned sequence, with everything that the shard and its index need
ENTRY = np.dtype(
    [
        *SEQUENCE.descr,
        ("text", "<u8"),  # first byte in its part's texts.bin
        ("text_size", "<u4"),
        ("part", "<u4"),  # number of its part, over all sources
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
    """Pack and write both splits, and add the packs to the stats of the plan's groups.

    Files of an earlier, killed run are replaced.

    Args:
        scratch: directory for the plan's files, made anew.

    Returns:
        Path of each file that was written, relative to `out`, with its rows.
    """
    # absolute, since workers may have been started in another directory
    out = out.resolve()
    scratch = scratch.resolve()
    for folder in (out / "packed", out / "index", scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    stages.start("packing")
    source_files = [(s.name, s.folders, s.sequence_starts()) for s in sources]
    jobs: list[ShardJob] = []
    for split, groups in (("train", {"": plan.train}), ("eval", plan.evaluation)):
        numbers, packs = pack_split(split, groups, plan, sources, recipe)
        labels = list(groups) if split == "eval" else None
        numbers_path = scratch / f"{split}.numbers"
        packs_path = scratch / f"{split}.packs"
        numbers.astype("<u4").tofile(numbers_path)
        packs.tofile(packs_path)
        files = SplitFiles(numbers_path, packs_path, source_files, plan.passes, labels)
        for number, (shard_packs, shard_sequences) in enumerate(cut_shards(packs, recipe.shards)):
            name = f"{split}-{number:05d}"
            jobs.append(ShardJob(name, shard_packs, shard_sequences, files, out))
    total = sum(len(job.sequences) for job in jobs)
    stages.start("writing shards", total=total, unit="sequences")
    for _ in executor.run(jobs, stages.advance):
        pass
    # unfinished files of a worker that died, and whose job another one did
    for unfinished in (*out.glob("packed/.*"), *out.glob("index/.*")):
        unfinished.unlink()
    rows: dict[str, int | None] = {}
    for job in jobs:
        shard_path, index_path = job.paths
        rows[shard_path] = len(job.packs)
        rows[index_path] = len(job.sequences)
    return rows


def pack_split(
    split: str,
    groups: Mapping[str, PlannedGroup],
    plan: BuildPlan,
    sources: Sequence[PreparedSource],
    recipe: BuildSftConfig,
) -> tuple[Numbers, Rows]:
    """Pack every group in the order of its keys, and add the packs to the group's stats.

    No pack holds two groups, or two sequences of one conversation.

    Returns:
        The numbers of the split's sequences, pack after pack, and a `PACK` for each pack.
    """
    numbers = [np.empty(0, np.uint32)]
    packs = [np.empty(0, PACK)]
    packed_sequences = 0
    for group_index, (label, group) in enumerate(groups.items()):
        order = np.argsort(group.table["key"], kind="stable")
        lengths = group.table["length"][order]
        group_numbers = group.table["number"][order]
        del order  # memory: 8 bytes a sequence
        packing = pack_lengths(
            lengths,
            recipe.packing.max_length,
            seed=key64(recipe.seed, "pack", split, label, 0),
            groups=plan.conversations(group_numbers, sources),
        )
        group_packs = np.zeros(len(packing), PACK)
        group_packs["stop"] = packed_sequences + packing.offsets[1:]
        group_packs["tokens"] = packing.fills(lengths)
        group_packs["group"] = group_index
        group.stats.add_packs(group_packs["tokens"].astype(np.int64))
        numbers.append(group_numbers[packing.positions])
        packs.append(group_packs)
        packed_sequences += len(group_numbers)
    return np.concatenate(numbers), np.concatenate(packs)


def cut_shards(packs: Rows, config: ShardConfig) -> list[tuple[range, range]]:
    """Packs and sequences of each shard; it ends with the pack that reaches one of the limits."""
    shards: list[tuple[range, range]] = []
    first_pack = 0
    first_sequence = 0
    size = 0
    stops = packs["stop"].tolist()
    tokens = packs["tokens"].tolist()
    for pack, (stop, pack_tokens) in enumerate(zip(stops, tokens, strict=True), start=1):
        size += 8 * pack_tokens  # an id and a label
        is_full = pack - first_pack == config.packs or size >= config.bytes
        if is_full or pack == len(packs):
            shards.append((range(first_pack, pack), range(first_sequence, stop)))
            first_pack = pack
            first_sequence = stop
            size = 0
    return shards


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """Data that all shards of a split share.

    Attributes:
        numbers, packs: files with the results of `pack_split`.
        sources: name, folders and `sequence_starts` of each source.
        passes: see `BuildPlan`.
        groups: labels of the packs' groups; None where packs have no label.
    """

    numbers: Path
    packs: Path
    sources: Sequence[tuple[str, Sequence[Path], npt.NDArray[np.int64]]]
    passes: Sequence[Sequence[int]]
    groups: Sequence[str] | None

    def entries(self, numbers: Numbers, reader: Reader) -> Rows:
        """Look up planned sequences by their numbers: an `ENTRY` for each, without its pack."""
        epochs: list[tuple[int, int, int]] = []  # source, epoch, number of its first sequence
        for source, firsts in enumerate(self.passes):
            for epoch, first in enumerate(firsts):
                epochs.append((source, epoch, first))
        source_of, epoch_of, first_of = np.array(epochs, np.int64).T
        epoch_index = np.searchsorted(first_of, numbers, side="right") - 1
        entries = np.zeros(len(numbers), ENTRY)
        entries["source"] = source_of[epoch_index]
        entries["epoch"] = epoch_of[epoch_index]
        # number in the source, until the parts of the source are known
        number_in_part = numbers - first_of[epoch_index]
        first_part = 0
        for source, (_, folders, starts) in enumerate(self.sources):
            in_source = source_of[epoch_index] == source
            part = np.searchsorted(starts, number_in_part[in_source], side="right") - 1
            entries["part"][in_source] = first_part + part
            number_in_part[in_source] -= starts[part]
            first_part += len(folders)
        parts = entries["part"].astype(np.int64)
        sequences = reader.rows(parts, number_in_part, "sequences.bin", SEQUENCE)
        record_numbers = sequences["record"].astype(np.int64)
        records = reader.rows(parts, record_numbers, "records.bin", RECORD)
        for name in SEQUENCE.names or ():
            entries[name] = sequences[name]
        entries["text"] = records["text"]
        entries["text_size"] = records["text_size"]
        return entries


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Job that writes one shard with these packs and sequences, and its index."""

    name: str
    packs: range
    sequences: range
    split: SplitFiles
    out: Path

    @property
    def paths(self) -> tuple[str, str]:
        """Paths of the shard and its index, relative to the artifact."""
        return f"packed/{self.name}.arrow", f"index/{self.name}.parquet"

    def describe(self) -> str:
        """Path of the shard, for messages."""
        return self.paths[0]

    def run(self, state: Any, on_progress: OnProgress) -> None:
        """Write the files; `on_progress` gets the number of sequences since its last call."""
        del state  # the plan and the prepared parts decide everything
        split = self.split
        folders: list[Path] = []
        for _, source_folders, _ in split.sources:
            folders += source_folders
        paths = [self.out / path for path in self.paths]
        partial_paths = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
        fields: list[tuple[str, pa.DataType]] = []
        for name in ("input_ids", "labels", "seq_lengths"):
            fields.append((name, _INT_LIST))
        if split.groups is not None:
            fields.append(("group", pa.string()))
        schema = pa.schema(fields)
        waiting: list[Rows] = []  # entries whose index rows are not written yet
        with (
            Reader(folders) as reader,
            pa.ipc.new_stream(str(partial_paths[0]), schema) as stream,
            pq.ParquetWriter(partial_paths[1], INDEX, compression="zstd") as index,
        ):
            for packs, entries in self._batches(reader):
                stream.write_batch(_record_batch(packs, entries, reader, split, schema))
                waiting.append(entries)
                if sum(map(len, waiting)) >= _INDEX_ROWS:
                    index.write_table(_index_table(waiting, split, reader))
                    waiting = []
                on_progress(len(entries))
            if waiting:
                index.write_table(_index_table(waiting, split, reader))
        for partial_path, path in zip(partial_paths, paths, strict=True):
            partial_path.replace(path)

    def _batches(self, reader: Reader) -> Iterator[tuple[Rows, Rows]]:
        """Yield packs with their entries, about `_BATCH_TOKENS` tokens at a time."""
        first_pack = self.packs.start
        first_sequence = self.sequences.start
        packs = np.fromfile(
            self.split.packs, PACK, len(self.packs), offset=first_pack * PACK.itemsize
        )
        numbers = np.fromfile(
            self.split.numbers, "<u4", len(self.sequences), offset=4 * first_sequence
        )
        sequence_counts = np.diff(packs["stop"].astype(np.int64), prepend=first_sequence)
        token_sums = np.cumsum(packs["tokens"], dtype=np.int64)
        start = 0  # pack of the shard
        done = 0  # sequences of the shard
        while start < len(packs):
            tokens_before = int(token_sums[start - 1]) if start else 0
            limit = tokens_before + _BATCH_TOKENS
            stop = int(np.searchsorted(token_sums, limit, side="left")) + 1
            counts = sequence_counts[start:stop]
            entries = self.split.entries(numbers[done : done + counts.sum()], reader)
            entries["pack"] = first_pack + start + np.repeat(np.arange(len(counts)), counts)
            ends = np.cumsum(entries["length"], dtype=np.int64)
            pack_starts = np.append(0, ends[np.cumsum(counts)[:-1] - 1])
            entries["offset"] = ends - entries["length"] - np.repeat(pack_starts, counts)
            yield packs[start:stop], entries
            done += len(entries)
            start = stop


def _record_batch(
    packs: Rows, entries: Rows, reader: Reader, split: SplitFiles, schema: pa.Schema
) -> pa.RecordBatch:
    """Build the rows of a shard for some packs."""
    lengths = entries["length"].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = np.empty(starts[-1], np.int32)
    labels = np.empty(starts[-1], np.int32)
    edges = np.empty(int(entries["edges"].max()), np.int32)  # reused by every sequence
    columns_to_read = [entries[name].tolist() for name in ("part", "at", "edges")]
    for k, (part, start, edge_count) in enumerate(zip(*columns_to_read, strict=True)):
        sequence = slice(int(starts[k]), int(starts[k + 1]))
        reader.tokens(part, start, ids[sequence], edges[:edge_count])
        labels_of(ids[sequence], edges[:edge_count].tolist(), out=labels[sequence])
    columns: list[pa.Array] = [
        _list_array(ids, packs["tokens"]),
        _list_array(labels, packs["tokens"]),
        _list_array(lengths, np.bincount(entries["pack"] - entries["pack"][0])),
    ]
    if split.groups is not None:
        columns.append(_text_array([split.groups[int(k)] for k in packs["group"]]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _list_array(values: Int32, lengths: npt.NDArray[np.integer]) -> pa.Array:
    """Build an Arrow array of lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    kind = pa.int32()
    return pa.ListArray.from_arrays(_integer_array(offsets, kind), _integer_array(values, kind))


# `pa.array` imports pandas, which costs a build of few rows an eighth of its time


def _integer_array(
    values: npt.NDArray[np.integer], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Build an Arrow array of numbers, null where not valid."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    numbers = pa.py_buffer(np.ascontiguousarray(values, dtype=kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [bits, numbers])


def _text_array(texts: Sequence[str]) -> pa.Array:
    """Build an Arrow array of texts, of at most 2 GiB together."""
    encoded = [text.encode() for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    assert sizes.sum() < 2**31, "offsets are of 32 bits"
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _index_table(waiting: Sequence[Rows], split: SplitFiles, reader: Reader) -> pa.Table:
    """Build the rows of the index, one for each sequence, in the order of the shard.

    Each column is built in the index's own type: a cast would load pyarrow.compute, a tenth of a
    second in every build.
    """
    entries = np.concatenate(waiting)
    columns_to_read = [entries[name].tolist() for name in ("part", "text", "text_size")]
    texts: list[list[str]] = []
    for part, start, size in zip(*columns_to_read, strict=True):
        texts.append(reader.text(part, start, size))
    source_names = [name for name, _, _ in split.sources]
    columns: dict[str, pa.Array] = {
        "source": _text_array([source_names[k] for k in entries["source"].tolist()]),
        "reasoning": _text_array(["on" if on else "off" for on in entries["reasons"].tolist()]),
        "truncated_budget": _integer_array(
            entries["budget"], INDEX.field("truncated_budget").type, entries["budget"] >= 0
        ),
    }
    for name in ("pack", "offset", "length", "trained", "turn", "epoch"):
        columns[name] = _integer_array(entries[name], INDEX.field(name).type)
    # the order in which `PartWriter` writes a record's texts
    for position, name in enumerate(("record_id", "license", "dialect", "metadata")):
        columns[name] = _text_array([text[position] for text in texts])
    arrays = [columns[field.name] for field in INDEX]
    return pa.Table.from_arrays(arrays, schema=INDEX)


def join_files(target: Path, parts: Sequence[Path], more_lines: Iterable[str] = ()) -> int:
    """Concatenate files of lines and append further lines. Returns the number of lines."""
    lines_written = 0
    with target.open("wb") as file:
        for part in parts:
            content = part.read_bytes()
            file.write(content)
            lines_written += content.count(b"\n")
        for line in more_lines:
            file.write(line.encode())
            lines_written += line.count("\n")
    return lines_written
