"""Pairs → Parquet shards, one row a pair, in the order given: equal pairs give equal bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

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


def write_pairs(
    pairs: Iterable[Pair], folder: Path, name: str, *, shard_pairs: int
) -> dict[str, int]:
    """Write `name-00000.parquet`, … of at most `shard_pairs` pairs each; the pairs in each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.parquet"):
        old.unlink()  # of an interrupted run
    files: dict[str, int] = {}
    rows = map(pair_to_row, pairs)
    for first in rows:
        shard = itertools.chain([first], itertools.islice(rows, shard_pairs - 1))
        file = f"{name}-{len(files):05d}.parquet"
        files[file] = 0
        with pq.ParquetWriter(folder / file, SCHEMA, compression="zstd") as writer:
            while group := list(itertools.islice(shard, _GROUP)):
                writer.write_table(pa.Table.from_pylist(group, schema=SCHEMA))
                files[file] += len(group)
    return files


def read_pairs(folder: Path, name: str) -> Iterator[Pair]:
    """Every pair of a folder's shards, in order."""
    for file in sorted(folder.glob(f"{name}-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_GROUP):
            for row in batch.to_pylist():
                own = {name: row[name] for name in ("id", "task", "category", "thinking", "source")}
                for side in ("chosen", "rejected"):
                    ids, mask, *rest = (row[f"{side}_{name}"] for name, _ in _SIDE)
                    own[side] = Side(tuple(ids), tuple(mask), *rest)
                yield Pair(prompt_ids=tuple(row["prompt_ids"]), **own)
