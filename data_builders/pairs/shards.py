"""Pairs → Parquet shards, one row a pair, in the order given; the same pairs give the same bytes.

with PairWriter(out / "pairs", "train", shard_pairs=8192) as writer:
    writer.add(pair)
writer.files  →  {"train-00000.parquet": 6400}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.records import Pair, Side, pair_to_row

_SIDE = [
    ("ids", pa.list_(pa.int32())),
    ("mask", pa.list_(pa.bool_())),
    ("text", pa.string()),
    ("index", pa.int32()),
    ("score", pa.float64()),
    ("calls", pa.int32()),
    ("reasoning_tokens", pa.int32()),
    ("answer_tokens", pa.int32()),
]
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task", pa.string()),
        ("category", pa.string()),
        ("thinking", pa.bool_()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("source", pa.string()),
        *((f"{side}_{name}", kind) for side in ("chosen", "rejected") for name, kind in _SIDE),
    ]
)
_GROUP = 512  # pairs a row group: what is held in memory at once


class PairWriter:
    """Writes shards `name-00000.parquet`, …; a shard is closed at `shard_pairs` pairs."""

    def __init__(self, folder: Path, name: str, *, shard_pairs: int) -> None:
        self.files: dict[str, int] = {}
        self._folder, self._name, self._shard_pairs = folder, name, shard_pairs
        self._rows: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None
        self._file = ""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-*.parquet"):
            old.unlink()  # of an interrupted run

    def __enter__(self) -> PairWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._flush()
        self._close()

    def add(self, pair: Pair) -> None:
        """Append one pair."""
        if self._writer is None:
            self._file = f"{self._name}-{len(self.files):05d}.parquet"
            self._writer = pq.ParquetWriter(self._folder / self._file, SCHEMA, compression="zstd")
            self.files[self._file] = 0
        self._rows.append(pair_to_row(pair))
        self.files[self._file] += 1
        full = self.files[self._file] == self._shard_pairs
        if full or len(self._rows) == _GROUP:
            self._flush()
        if full:
            self._close()

    def _flush(self) -> None:
        if self._rows and self._writer is not None:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows = []

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def read_pairs(folder: Path, name: str) -> Iterator[Pair]:
    """Every pair of a folder's shards, in order."""
    for file in sorted(folder.glob(f"{name}-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_GROUP):
            yield from map(pair_from_row, batch.to_pylist())


def pair_from_row(row: dict[str, Any]) -> Pair:
    """Inverse of `pair_to_row`."""
    return Pair(
        id=row["id"],
        task=row["task"],
        category=row["category"],
        thinking=row["thinking"],
        prompt_ids=tuple(row["prompt_ids"]),
        chosen=_side(row, "chosen"),
        rejected=_side(row, "rejected"),
        source=row["source"],
    )


def _side(row: dict[str, Any], side: str) -> Side:
    fields: dict[str, Any] = {name: row[f"{side}_{name}"] for name, _ in _SIDE}
    fields["ids"], fields["mask"] = tuple(fields["ids"]), tuple(fields["mask"])
    return Side(**fields)
