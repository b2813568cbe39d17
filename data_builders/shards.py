"""Packs → shards that the trainer maps into memory, and an index that says what lies where.

    packed/train-00000.arrow   {"input_ids": […], "labels": [-100, …], "seq_lengths": [212, 44]}
    index/train-00000.parquet  {"pack": 0, "offset": 212, "length": 44, "record_id": "5f0c…", …}

Arrow IPC streams, as `datasets.Dataset.from_file` maps them. `seq_lengths` is the form in which the
installed TRL takes packed rows (`DataCollatorForLanguageModeling`, padding-free). Evaluation rows
carry `group`, "<source>/<on|off>"; one of their packs holds one group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.sft_plan import Sequences, concatenate, select
from data_builders.sft_spool import Spool
from posttrain.config.build_sft import ShardConfig
from posttrain.tokens.encode import labels_of

_INT_LIST = pa.list_(pa.int32())
_BATCH_TOKENS = 4_194_304  # tokens held in memory before they are written
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
        ("licence", pa.string()),
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
class _Pack:
    ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    group: str | None


class ShardWriter:
    """Writes one split, shard by shard, in the order packs arrive.

    `files` maps each finished file's path (relative to the artifact) to its rows. Shards close at
    the recipe's number of packs or bytes, so the same packs always give the same files.
    """

    def __init__(
        self, root: Path, split: str, spools: Sequence[Spool], config: ShardConfig, *, grouped: bool
    ) -> None:
        self.files: dict[str, int] = {}
        self.packs = 0
        self._root, self._split, self._spools, self._config = root, split, spools, config
        self._schema = pack_schema(grouped=grouped)
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._waiting: list[_Pack] = []
        self._placed: list[tuple[int, int]] = []
        self._written: list[Sequences] = []
        self._shard_packs = self._shard_bytes = 0
        for folder in ("packed", "index"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._close_shard()
        elif self._stream is not None:
            self._stream.close()

    def write(
        self, sequences: Sequences, pack: npt.NDArray[np.int32], *, group: str | None = None
    ) -> None:
        """Write one pack: the sequences at the given positions, in that order."""
        total = int(sequences.length[pack].sum())
        ids, labels = np.empty(total, np.int32), np.empty(total, np.int32)
        offset = 0
        for position in pack:
            spool = self._spools[sequences.source[position]]
            at = int(sequences.sequence[position])
            tokens = spool.ids[at]
            until = offset + len(tokens)
            ids[offset:until] = tokens
            labels_of(tokens, spool.spans[at].tolist(), out=labels[offset:until])
            self._placed.append((self.packs, offset))
            offset = until
        assert offset == total, "the plan's lengths are those of the spool"
        self._written.append(select(sequences, pack.astype(np.int64)))
        lengths = sequences.length[pack].astype(np.int32)
        self._waiting.append(_Pack(ids, labels, lengths, group))
        self.packs += 1
        self._shard_packs += 1
        self._shard_bytes += 8 * total
        if sum(len(p.ids) for p in self._waiting) >= _BATCH_TOKENS:
            self._flush()
        if self._shard_packs == self._config.packs or self._shard_bytes >= self._config.bytes:
            self._close_shard()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._stream is None:
            name = f"packed/{self._split}-{len(self.files) // 2:05d}.arrow"
            self._stream = pa.ipc.new_stream(str(self._root / name), self._schema)
        packs, self._waiting = self._waiting, []
        columns: list[pa.Array] = [
            _lists([p.ids for p in packs]),
            _lists([p.labels for p in packs]),
            _lists([p.lengths for p in packs]),
        ]
        if "group" in self._schema.names:
            columns.append(pa.array([p.group for p in packs], pa.string()))
        self._stream.write_batch(pa.record_batch(columns, schema=self._schema))

    def _close_shard(self) -> None:
        self._flush()
        if self._stream is None:
            return
        self._stream.close()
        self._stream = None
        number = len(self.files) // 2
        index = f"index/{self._split}-{number:05d}.parquet"
        table = _index(self._spools, concatenate(self._written), self._placed)
        pq.write_table(table, self._root / index, compression="zstd", row_group_size=65_536)
        self.files[f"packed/{self._split}-{number:05d}.arrow"] = self._shard_packs
        self.files[index] = len(self._placed)
        self._written, self._placed = [], []
        self._shard_packs = self._shard_bytes = 0


def _lists(arrays: Sequence[npt.NDArray[np.int32]]) -> pa.Array:
    offsets = np.cumsum([0, *(len(a) for a in arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(arrays)))


def _index(
    spools: Sequence[Spool], written: Sequences, placed: Sequence[tuple[int, int]]
) -> pa.Table:
    """One row a sequence, in the order of the shard."""
    order = np.argsort(written.source, kind="stable")
    parts = [
        _index_of(spool, select(written, order[written.source[order] == k]))
        for k, spool in enumerate(spools)
    ]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    table = pa.concat_tables(parts).combine_chunks().take(pa.array(back))
    packs, offsets = np.array(placed, np.int32).T
    columns = {"pack": pa.array(packs), "offset": pa.array(offsets)}
    columns |= {name: table[name] for name in table.column_names}
    return pa.table({f.name: columns[f.name] for f in INDEX}).cast(INDEX)


def _index_of(spool: Spool, written: Sequences) -> pa.Table:
    records, sequences = spool.records.take(written.record), spool.sequences.take(written.sequence)
    modes = np.where(spool.reasons[written.sequence], "on", "off")
    return pa.table(
        {
            "length": written.length,
            "trained": spool.trained[written.sequence],
            "record_id": records["record_id"],
            "turn": sequences["turn"],
            "epoch": written.epoch,
            "source": pa.array([spool.name] * len(written), pa.string()),
            "licence": records["licence"],
            "dialect": records["dialect"],
            "reasoning": pa.array(modes.tolist(), pa.string()),
            "truncated_budget": sequences["budget"],
            "metadata": records["metadata"],
        }
    )
