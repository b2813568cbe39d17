"""Per-part columns for deduplication: hash keys, MinHash bands and compressed texts.

    dedup.bin        keys of the conversation, its prompt and the record, and where its text is
    dedup_bands.bin  400 bytes for every record long enough to have near-duplicates
    dedup_texts.bin  where each was read (JSON), and its text (compressed)

A row is a pure function of its record. Where a record was read is kept when drops are written down,
its text when near-duplicates are looked for. Keys are read in order, texts only of the few records
that meet.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import zstandard

from data_builders.dedup.keys import conversation_key, prompt_key
from data_builders.dedup.near_text import NearText, near_text
from data_builders.dedup.signature import BANDS, band_keys
from data_builders.keyed import key64
from posttrain.config.deduplication import DeduplicationConfig, NearConfig
from posttrain.records import Example

COLUMN_ROW = np.dtype(
    [
        ("conversation", "<u8"),
        ("prompt", "<u8"),
        ("id64", "<u8"),  # of the record's id
        ("rest64", "<u8"),  # of what tells apart records of one id
        ("text", "<u8"),  # byte in dedup_texts.bin, of the place and then of the text
        ("place_size", "<u4"),
        ("text_size", "<u4"),  # 0: too short to have near-duplicates
        ("prompt_size", "<u4"),  # characters
        ("answer_size", "<u4"),
    ]
)
COLUMN_FILES = ("dedup.bin", "dedup_bands.bin", "dedup_texts.bin")
Rows = npt.NDArray[np.void]
Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
KeyColumn = Literal["conversation", "prompt", "id64", "rest64"]
Place = tuple[str, int]
_BLOCK = 65_536
_HEAD = struct.Struct("<I")
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Some records: `rows` (n,), `bands` (m, BANDS) of the m that have a text, all their texts."""

    rows: Rows
    bands: npt.NDArray[np.uint32]
    texts: bytes


@dataclass(frozen=True, slots=True)
class NearBlock:
    """Some records that can have near-duplicates: `rows` (m,), their numbers; `lengths` (m, 2), of
    both sides; `id64` (m,); `bands` (m, BANDS)."""

    rows: Int
    lengths: Int
    id64: Keys
    bands: npt.NDArray[np.uint32]


def column_batch(
    examples: Sequence[Example], config: DeduplicationConfig, places: Sequence[Place] | None
) -> ColumnBatch:
    """The columns of some records as they are before reasoning control, in their order.

    Args:
        places: file and line of each, when they are to be kept.
    """
    rows = np.zeros(len(examples), COLUMN_ROW)
    texts, bands = _near_columns(examples, config.near)
    written: list[bytes] = []
    at = 0
    for k, (row, example) in enumerate(zip(rows, examples, strict=True)):
        row["conversation"], row["prompt"] = conversation_key(example), prompt_key(example)
        row["id64"] = int(example.id[:16], 16)
        row["rest64"] = key64(0, "rest", example.license, example.dialect, example.metadata)
        place = json.dumps(places[k]).encode() if places is not None else b""
        packed = b""
        if (text := texts.get(k)) is not None:
            packed = _packed(text)
            row["prompt_size"], row["answer_size"] = len(text.prompt), len(text.answer)
        row["text"], row["place_size"], row["text_size"] = at, len(place), len(packed)
        written += [place, packed]
        at += len(place) + len(packed)
    return ColumnBatch(rows, bands, b"".join(written))


def _near_columns(
    examples: Sequence[Example], config: NearConfig | None
) -> tuple[dict[int, NearText], npt.NDArray[np.uint32]]:
    """The texts that are long enough, by their place in the batch, and their keys."""
    if config is None:
        return {}, np.empty((0, BANDS), np.uint32)
    texts = dict(enumerate(map(near_text, examples)))
    long = {k: text for k, text in texts.items() if text.words >= config.min_words}
    return long, band_keys(list(long.values()))


def write_columns(files: Mapping[str, BinaryIO], batch: ColumnBatch) -> None:
    """Append to the open files of a part, by the names of `COLUMN_FILES`."""
    rows = batch.rows.copy()
    rows["text"] += files["dedup_texts.bin"].tell()
    files["dedup.bin"].write(rows.tobytes())
    files["dedup_bands.bin"].write(batch.bands.astype("<u4").tobytes())
    files["dedup_texts.bin"].write(batch.texts)


def _packed(text: NearText) -> bytes:
    prompt = text.prompt.encode("utf-8", "surrogatepass")
    answer = text.answer.encode("utf-8", "surrogatepass")
    body = _HEAD.pack(len(prompt)) + prompt + answer
    return zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def _unpacked(packed: bytes) -> NearText:
    body = zstandard.ZstdDecompressor().decompress(packed)
    cut = _HEAD.size + _HEAD.unpack_from(body)[0]
    return NearText(
        body[_HEAD.size : cut].decode("utf-8", "surrogatepass"),
        body[cut:].decode("utf-8", "surrogatepass"),
    )


class DedupColumns:
    """The columns of one source, in the folders of its parts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        sizes = [(f / "dedup.bin").stat().st_size // COLUMN_ROW.itemsize for f in self._folders]
        self._first = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self._first[-1])

    def keys(self, column: KeyColumn) -> Keys:
        """A column of all records, (n,)."""
        found = np.empty(len(self), np.uint64)
        for first, rows, _ in self._blocks():
            found[first : first + len(rows)] = rows[column]
        return found

    def keys_at(self, column: KeyColumn, wanted: Int) -> Keys:
        """A column of the records with the given numbers, ascending, (wanted,)."""
        found = np.empty(len(wanted), np.uint64)
        for first, rows, _ in self._blocks():
            a, b = np.searchsorted(wanted, [first, first + len(rows)])
            found[a:b] = rows[column][wanted[a:b] - first]
        return found

    def near(self) -> Iterator[NearBlock]:
        """Block by block what can have near-duplicates."""
        for first, rows, bands in self._blocks():
            at = np.flatnonzero(rows["text_size"])
            lengths = np.stack([rows["prompt_size"][at], rows["answer_size"][at]], axis=1)
            keys = np.fromfile(bands, "<u4", len(at) * BANDS).reshape(len(at), BANDS)
            yield NearBlock(first + at, lengths.astype(np.int64), rows["id64"][at], keys)

    def text(self, row: int) -> NearText:
        """What a record said; only of those that `near` gives."""
        part, found = self._row(row)
        at = int(found["text"]) + int(found["place_size"])
        return _unpacked(self._read(part, at, int(found["text_size"])))

    def place(self, row: int) -> Place | None:
        """File and line where a record was read, `None` where that was not kept."""
        part, found = self._row(row)
        if not found["place_size"]:
            return None
        file, line = json.loads(self._read(part, int(found["text"]), int(found["place_size"])))
        return file, line

    def _blocks(self) -> Iterator[tuple[int, Rows, BinaryIO]]:
        """Records in order, with the number of the first, and the keys, open where theirs begin."""
        for folder, first in zip(self._folders, self._first.tolist(), strict=False):
            with (
                (folder / "dedup.bin").open("rb") as file,
                (folder / "dedup_bands.bin").open("rb") as bands,
            ):
                while len(rows := np.fromfile(file, COLUMN_ROW, _BLOCK)):
                    yield first, rows, bands
                    first += len(rows)

    def _row(self, row: int) -> tuple[Path, np.void]:
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        folder = self._folders[part]
        at = (row - int(self._first[part])) * COLUMN_ROW.itemsize
        with (folder / "dedup.bin").open("rb") as file:
            file.seek(at)
            return folder, np.fromfile(file, COLUMN_ROW, 1)[0]

    def _read(self, folder: Path, at: int, size: int) -> bytes:
        with (folder / "dedup_texts.bin").open("rb") as file:
            file.seek(at)
            return file.read(size)
