"""How many rows a source's files hold, about: for plans, never for books.

count_rows([Path("train.jsonl")])  →  7473
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

_COUNTED = 256 * 1024 * 1024  # bytes read of a text file; beyond, its size tells the rest


def count_rows(files: Sequence[Path]) -> int | None:
    """Rows in all the files; `None` when there is none, or one is compressed or of another kind."""
    counts = [_rows(file) for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _rows(file: Path) -> int | None:
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return pq.read_metadata(file).num_rows
    if suffix not in (".jsonl", ".ndjson", ".json"):
        return None
    lines = read = 0
    with file.open("rb") as handle:
        while read < _COUNTED and (block := handle.read(1 << 20)):
            lines += block.count(b"\n")
            read += len(block)
    return round(lines * file.stat().st_size / max(read, 1))
