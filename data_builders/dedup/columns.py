"""Per-part columns for deduplication: exact keys, MinHash bands, n-grams and places of the records.

    dedup.bin           a row of 116 bytes for every record
    dedup_shingles.bin  where each was read (JSON), and the hashes of its n-grams, 4 bytes each

A row is a pure function of its record. Places are kept when drops are written down, bands and
n-grams when near-duplicates are looked for; n-grams are read of records that share a band alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_builders.dedup.keys import conversation_key, prompt_key
from data_builders.dedup.near import BANDS, Shingles, band_keys, shingles
from data_builders.keyed import key64
from posttrain.records import Example

COLUMN_ROW = np.dtype(
    [
        ("conversation", "<u8"),
        ("prompt", "<u8"),
        ("id64", "<u8"),  # of the record's id
        ("rest64", "<u8"),  # of what tells apart records of one id
        ("at", "<u8"),  # byte in dedup_shingles.bin, of the place and then of the n-grams
        ("place_size", "<u4"),
        ("user", "<u4"),  # n-grams
        ("assistant", "<u4"),
        ("bands", "<u4", BANDS),
    ]
)
COLUMN_FILES = ("dedup.bin", "dedup_shingles.bin")
Rows = npt.NDArray[np.void]
Place = tuple[str, int]


def column_batch(
    examples: Sequence[Example], places: Sequence[Place] | None, *, near: bool
) -> tuple[Rows, bytes]:
    """The columns of some records as they are before reasoning control, and their n-grams.

    Args:
        places: file and line of each, when they are to be kept.
        near: with bands and n-grams.
    """
    rows = np.zeros(len(examples), COLUMN_ROW)
    grams: list[Shingles] = shingles(examples) if near and examples else []
    if grams:
        rows["bands"] = band_keys(grams)
        rows["user"], rows["assistant"] = np.transpose([[len(s) for s in own] for own in grams])
    written: list[bytes] = []
    at = 0
    for k, (row, example) in enumerate(zip(rows, examples, strict=True)):
        row["conversation"], row["prompt"] = conversation_key(example), prompt_key(example)
        row["id64"] = int(example.id[:16], 16)
        row["rest64"] = key64(0, "rest", example.license, example.dialect, example.metadata)
        place = json.dumps([*places[k], example.id]).encode() if places is not None else b""
        row["at"], row["place_size"] = at, len(place)
        parts = [place, *(side.astype("<u4").tobytes() for side in (grams[k] if grams else ()))]
        at += sum(map(len, parts))
        written += parts
    return rows, b"".join(written)


def write_columns(files: Mapping[str, BinaryIO], rows: Rows, shingles: bytes) -> None:
    """Append what `column_batch` returned to the open files of a part, by their names."""
    rows["at"] += files["dedup_shingles.bin"].tell()
    files["dedup.bin"].write(rows.tobytes())
    files["dedup_shingles.bin"].write(shingles)


class DedupColumns:
    """The columns of many parts, mapped into memory; records are numbered through all parts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._rows = [mapped(folder / "dedup.bin", COLUMN_ROW) for folder in folders]
        self._shingles = [mapped(folder / "dedup_shingles.bin", np.uint8) for folder in folders]
        self._first = np.cumsum([0, *map(len, self._rows)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def column(self, name: str, order: npt.NDArray[np.int64], band: int | None = None) -> Any:
        """A column of all records in the given order, (n,); of bands one alone."""
        parts = [rows[name] if band is None else rows[name][:, band] for rows in self._rows]
        return np.concatenate([np.empty(0, COLUMN_ROW[name].base), *parts])[order]

    def shingles(self, row: int) -> Shingles:
        """The n-grams of both sides of a record."""
        rows, data, at = self._row(row)
        start = int(rows["at"][at]) + int(rows["place_size"][at])
        user, assistant = int(rows["user"][at]), int(rows["assistant"][at])
        both = np.frombuffer(data[start : start + 4 * (user + assistant)].tobytes(), "<u4")
        return both[:user], both[user:]

    def place(self, row: int) -> dict[str, Any]:
        """File, line and id of a record; of parts that were written with places."""
        rows, data, at = self._row(row)
        start = int(rows["at"][at])
        file, line, record_id = json.loads(
            data[start : start + int(rows["place_size"][at])].tobytes()
        )
        return {"file": file, "line": line, "record_id": record_id}

    def _row(self, row: int) -> tuple[Rows, npt.NDArray[np.uint8], int]:
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        return self._rows[part], self._shingles[part], row - int(self._first[part])


def mapped(path: Path, dtype: Any) -> Any:
    """A file of rows, mapped into memory."""
    if not path.stat().st_size:  # nothing can be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))
