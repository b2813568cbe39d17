"""Write and read pairs as Parquet shards, one row a pair, in order: equal pairs, equal bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.records import Pair, Side, pair_to_row

_SIDE_COLUMNS = [
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
        *((f"chosen_{name}", kind) for name, kind in _SIDE_COLUMNS),
        *((f"rejected_{name}", kind) for name, kind in _SIDE_COLUMNS),
    ]
)
SHARD_PAIRS = 8192  # some tens of MB of chat pairs
_ROW_GROUP = 512  # pairs held in memory at once


def write_pairs(
    pairs: Iterable[Pair], folder: Path, name: str, *, shard_pairs: int = SHARD_PAIRS
) -> dict[str, int]:
    """Write `name-00000.parquet`, … of at most `shard_pairs` pairs each; return file → pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.parquet"):
        old.unlink()  # an interrupted run may have written more shards than this one will
    files: dict[str, int] = {}
    rows = map(pair_to_row, pairs)
    for first in rows:  # taking the first row of a shard opens no file for an empty one
        shard = itertools.chain([first], itertools.islice(rows, shard_pairs - 1))
        file = f"{name}-{len(files):05d}.parquet"
        files[file] = 0
        with pq.ParquetWriter(folder / file, SCHEMA, compression="zstd") as writer:
            while group := list(itertools.islice(shard, _ROW_GROUP)):
                writer.write_table(pa.Table.from_pylist(group, schema=SCHEMA))
                files[file] += len(group)
    return files


def read_pairs(folder: Path, name: str) -> Iterator[Pair]:
    """Every pair of a folder's shards, in order."""
    for file in sorted(folder.glob(f"{name}-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_ROW_GROUP):
            for row in batch.to_pylist():
                yield Pair(
                    id=row["id"],
                    task=row["task"],
                    category=row["category"],
                    thinking=row["thinking"],
                    prompt_ids=tuple(row["prompt_ids"]),
                    chosen=_side_from_row(row, "chosen"),
                    rejected=_side_from_row(row, "rejected"),
                    source=row["source"],
                )


def _side_from_row(row: dict[str, Any], side: str) -> Side:
    ids, mask, *figures = (row[f"{side}_{name}"] for name, _ in _SIDE_COLUMNS)
    return Side(tuple(ids), tuple(mask), *figures)
