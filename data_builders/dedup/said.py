"""What every record of a source said, on disk: the columns that deduplication works on.

    {"conversation": 0x5f0c…, "prompt": 0x91ab…, "file": "maths.jsonl", "line": 7,
     "asked": 212, "answered": 1904, "bands": b"…", "text": b"…"}

A row is a pure function of its record. `file` and `line` are there when drops are written down,
the last four when near-duplicates are looked for; `bands` and `text` are null for a record that is
too short for that. `text` is compressed; it is read again only for the few records that meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from data_builders.dedup.keys import conversation_key, prompt_key
from data_builders.dedup.near_text import NearText, near_text
from data_builders.dedup.signature import BANDS, band_keys
from posttrain.config.deduplication import DeduplicationConfig
from posttrain.records import Example

SAID = pa.schema(
    [
        ("conversation", pa.uint64()),
        ("prompt", pa.uint64()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("asked", pa.int32()),
        ("answered", pa.int32()),
        ("bands", pa.binary(4 * BANDS)),
        ("text", pa.binary()),
    ]
)
Bands = npt.NDArray[np.uint32]
_LENGTHS = ("asked", "answered")
_HEAD = struct.Struct("<I")
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read."""

    file: str
    line: int


def said_batch(
    examples: Sequence[Example],
    config: DeduplicationConfig,
    places: Sequence[Place] | None,
) -> pa.RecordBatch:
    """The columns of some records, before reasoning control, in their order."""
    texts = [near_text(e) for e in examples] if config.near is not None else []
    least = config.near.min_words if config.near is not None else 0
    long = [k for k, text in enumerate(texts) if text.words >= least]
    keys: list[bytes | None] = [None] * len(examples)
    packed: list[bytes | None] = [None] * len(examples)
    for k, row in zip(long, band_keys([texts[k] for k in long]), strict=True):
        keys[k] = row.astype("<u4").tobytes()
        packed[k] = _packed(texts[k])
    columns = [
        [conversation_key(e) for e in examples],
        [prompt_key(e) for e in examples],
        [p.file for p in places] if places is not None else [None] * len(examples),
        [p.line for p in places] if places is not None else [None] * len(examples),
        [len(t.asked) for t in texts] if texts else [None] * len(examples),
        [len(t.answered) for t in texts] if texts else [None] * len(examples),
        keys,
        packed,
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SAID, strict=True)]
    return pa.record_batch(arrays, schema=SAID)


def _packed(text: NearText) -> bytes:
    asked = text.asked.encode("utf-8", "surrogatepass")
    answered = text.answered.encode("utf-8", "surrogatepass")
    body = _HEAD.pack(len(asked)) + asked + answered
    return zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def _unpacked(packed: bytes) -> NearText:
    body = zstandard.ZstdDecompressor().decompress(packed)
    cut = _HEAD.size + _HEAD.unpack_from(body)[0]
    return NearText(
        body[_HEAD.size : cut].decode("utf-8", "surrogatepass"),
        body[cut:].decode("utf-8", "surrogatepass"),
    )


class Said:
    """The columns of one source, opened from the files of its parts through a memory map."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._batches = [batch for table in tables for batch in table.to_batches()]
        self._first = np.cumsum([0, *(len(batch) for batch in self._batches)])

    @classmethod
    def open(cls, paths: Sequence[Path]) -> Self:
        """Those of finished files, in the given order."""
        tables: list[pa.Table] = []
        for path in paths:
            with pa.memory_map(str(path)) as source:
                tables.append(pa.ipc.open_file(source).read_all())
        return cls(tables)

    def __len__(self) -> int:
        return int(self._first[-1])

    def keys(self, column: str) -> npt.NDArray[np.uint64]:
        """`conversation` or `prompt` of every record, (n,)."""
        return np.concatenate(
            [np.empty(0, np.uint64), *(b.column(column).to_numpy() for b in self._batches)]
        )

    def near(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Bands]]:
        """Batch by batch the rows long enough to compare: rows (m,), lengths (m, 2), keys."""
        for first, batch in zip(self._first, self._batches, strict=False):
            bands = batch.column("bands")
            rows = np.flatnonzero(bands.is_valid().to_numpy(zero_copy_only=False))
            raw = b"".join(bands.drop_null().to_pylist())
            lengths = [batch.column(n).to_numpy(zero_copy_only=False) for n in _LENGTHS]
            yield (
                (rows + first).astype(np.int64),
                np.stack([length[rows] for length in lengths], axis=1).astype(np.int32),
                np.frombuffer(raw, "<u4").reshape(len(rows), BANDS),
            )

    def text(self, row: int) -> NearText:
        """What a row said; only of rows that `near` gives."""
        return _unpacked(self._value("text", row))

    def place(self, row: int) -> Place | None:
        """Where a row was read, `None` where that was not kept."""
        file, line = self._value("file", row), self._value("line", row)
        return None if file is None else Place(file, line)

    def _value(self, column: str, row: int) -> Any:
        batch = int(np.searchsorted(self._first, row, side="right")) - 1
        return self._batches[batch].column(column)[row - int(self._first[batch])].as_py()
