"""Columns that deduplication compares: exact keys, n-grams and their MinHash bands, places.

    dedup.bin           a row of 116 bytes for every record
    dedup_shingles.bin  where each was read (JSON), and the hashes of its n-grams, 4 bytes each

Not part of a key: layout, the order of JSON keys, source, license, metadata, dialect, ids of calls,
names of tool results. MinHash of word 3-grams finds near-duplicates, exact Jaccard decides (Broder
1997, "On the resemblance and containment of documents"; bands as in Leskovec et al., "Mining of
Massive Datasets", 3.4; what 3-grams find: docs/evidence/benchmarks.md).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  # compiled, untyped

from data_builders.dedup.words import runs, words_of_all
from data_builders.keyed import key64, shuffled_keys
from posttrain.jsontext import load_json
from posttrain.records import Example, Message

NGRAM = 3
# two texts with Jaccard similarity J share a key with probability 1 - (1 - J^5)^16: 0.998 at 0.8,
# 0.95 at 0.7, 0.40 at 0.5, 1 in 200,000 at 0.05
BANDS, ROWS = 16, 5
SIDE = 1 / 3  # the least similarity of each side by itself, whatever the threshold
_SEED = 1  # no choice of the data depends on it
Hashes = npt.NDArray[np.uint32]
Shingles = tuple[Hashes, Hashes]
COLUMN_ROW = np.dtype(
    [
        ("conversation", "<u8"),
        ("prompt", "<u8"),
        ("id64", "<u8"),  # of the record's id
        ("rest64", "<u8"),  # of what tells apart records of one id
        ("offset", "<u8"),  # byte in dedup_shingles.bin, of the place and then of the n-grams
        ("place_size", "<u4"),  # bytes
        ("user", "<u4"),  # number of n-grams
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
    """Make the columns of some records, as they are before reasoning control.

    Args:
        places: file and line of each record, when they are to be kept.
        near: make n-grams too, for near-duplicates.

    Returns:
        The rows of `dedup.bin`, and the bytes of `dedup_shingles.bin` that they point into.
    """
    rows = np.zeros(len(examples), COLUMN_ROW)
    record_grams: list[Shingles] = shingles(examples) if near and examples else []
    if record_grams:
        rows["bands"] = band_keys(record_grams)
        rows["user"] = [len(user) for user, _ in record_grams]
        rows["assistant"] = [len(assistant) for _, assistant in record_grams]
    data = bytearray()
    for k, (row, example) in enumerate(zip(rows, examples, strict=True)):
        row["conversation"] = conversation_key(example)
        row["prompt"] = prompt_key(example)
        row["id64"] = int(example.id[:16], 16)
        row["rest64"] = key64(0, "rest", example.license, example.dialect, example.metadata)
        place = b"" if places is None else json.dumps([*places[k], example.id]).encode()
        row["offset"] = len(data)
        row["place_size"] = len(place)
        data += place
        for side in record_grams[k] if record_grams else ():
            data += side.astype("<u4").tobytes()
    return rows, bytes(data)


def write_columns(files: Mapping[str, BinaryIO], rows: Rows, shingles: bytes) -> None:
    """Append what `column_batch` returned to the open files of a part, by their names."""
    rows["offset"] += files["dedup_shingles.bin"].tell()
    files["dedup.bin"].write(rows.tobytes())
    files["dedup_shingles.bin"].write(shingles)


class DedupColumns:
    """The columns of many parts, mapped into memory; records are numbered through all parts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._rows = [mapped(folder / "dedup.bin", COLUMN_ROW) for folder in folders]
        self._data = [mapped(folder / "dedup_shingles.bin", np.uint8) for folder in folders]
        self._part_starts = np.cumsum([0, *map(len, self._rows)])

    def __len__(self) -> int:
        return int(self._part_starts[-1])

    def column(self, name: str, order: npt.NDArray[np.int64], band: int | None = None) -> Any:
        """Read a column of all records in some order, (n,); of `bands` a single one."""
        parts = [rows[name] if band is None else rows[name][:, band] for rows in self._rows]
        return np.concatenate([np.empty(0, COLUMN_ROW[name].base), *parts])[order]

    def shingles(self, number: int) -> Shingles:
        """Read the n-grams of both sides of a record."""
        row, data = self._row_and_data(number)
        start = int(row["offset"]) + int(row["place_size"])
        user_count = int(row["user"])
        count = user_count + int(row["assistant"])
        grams = np.frombuffer(data[start : start + 4 * count].tobytes(), "<u4")
        return grams[:user_count], grams[user_count:]

    def place(self, number: int) -> dict[str, Any]:
        """Read file, line and id of a record, from a part that was written with places."""
        row, data = self._row_and_data(number)
        start = int(row["offset"])
        end = start + int(row["place_size"])
        file, line, record_id = json.loads(data[start:end].tobytes())
        return {"file": file, "line": line, "record_id": record_id}

    def _row_and_data(self, number: int) -> tuple[np.void, npt.NDArray[np.uint8]]:
        part = int(np.searchsorted(self._part_starts, number, side="right")) - 1
        return self._rows[part][number - int(self._part_starts[part])], self._data[part]


def mapped(path: Path, dtype: Any) -> Any:
    """Map a file of rows into memory."""
    # an empty file cannot be mapped
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


def conversation_key(example: Example) -> int:
    """64-bit key, equal for re-formatted copies of one conversation."""
    return _key("conversation", example, example.messages)


def prompt_key(example: Example) -> int:
    """64-bit key, equal where the system and the user said the same, in order.

    Whole conversations are compared: "Hi" followed by other questions is another prompt.
    """
    return _key("prompt", example, [m for m in example.messages if m.role in ("system", "user")])


def _key(purpose: str, example: Example, messages: Sequence[Message]) -> int:
    turns: list[list[object]] = []
    for message in messages:
        calls = [[call.name, canonical_text(call.arguments)] for call in message.tool_calls]
        trace = canonical_text(message.reasoning or "")
        turns.append([message.role, canonical_text(message.content), trace, calls])
    tools = json.loads(example.tools or "[]")  # in whatever order and layout
    declared = sorted(json.dumps(t, sort_keys=True, ensure_ascii=False) for t in tools)
    return key64(0, purpose, json.dumps([turns, "\n".join(declared)], ensure_ascii=False))


def canonical_text(text: str) -> str:
    """Normalise a text: Unicode's composed form, single spaces, JSON in one layout.

    Canonical equivalence only (NFC): the compatibility forms would make `x²` and `x2` one.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = " ".join(text.split())
    if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
        with suppress(ValueError):  # no strict JSON
            value = load_json(text)
            return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text


def shingles(examples: Sequence[Example]) -> list[Shingles]:
    """Hash the n-grams of both sides of each record: distinct, 32 bits, ascending.

    One side is what the user said, the other what the assistant thought, said, called and got from
    tools.

    System texts and declared tools do not count: data for agents shares long ones, and a set that
    is published again often has others. Of a side with fewer than n words all of it is one n-gram.
    """
    words, starts = words_of_all([side for e in examples for side in _sides(e)], signs=True)
    grams = runs(words.hashes, NGRAM)
    sides: list[Hashes] = []
    for start, end in pairwise(starts.tolist()):
        # runs that begin here and end behind this side belong to two texts
        side_grams = grams[start : max(end - NGRAM + 1, start)]
        if start < end < start + NGRAM:
            padded = np.pad(words.hashes[start:end], (0, NGRAM - (end - start)))
            side_grams = runs(padded, NGRAM)
        sides.append(np.unique((side_grams >> np.uint64(32)).astype(np.uint32)))
    return list(zip(sides[::2], sides[1::2], strict=True))


def _sides(example: Example) -> tuple[str, str]:
    """Texts of the user and of the assistant, each with a line break between its parts."""
    user = [message.content for message in example.messages if message.role == "user"]
    assistant: list[str] = []
    for message in example.messages:
        if message.role not in ("system", "user"):
            assistant += [message.reasoning or "", message.content]
            for call in message.tool_calls:
                assistant += [call.name, call.arguments]
    return "\n".join(user), "\n".join(assistant)


def band_keys(records: Sequence[Shingles]) -> npt.NDArray[np.uint32]:
    """Keys of the MinHash signatures' bands, (records, BANDS)."""
    # both sides make one set; their salts keep an n-gram of one from equalling one of the other
    hashes: list[npt.NDArray[np.uint64]] = []
    for record in records:
        for salt, side in enumerate(record):
            hashes.append(shuffled_keys(side.astype(np.uint64), salt))
    sizes = [len(user) + len(assistant) for user, assistant in records]
    offsets = np.cumsum([0, *sizes]).astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate([np.empty(0, np.uint64), *hashes]), offsets, BANDS * ROWS, _SEED
    )
    values = np.array(matrix.to_rows(), np.uint64).reshape(len(records), BANDS, ROWS)
    keys = np.zeros((len(records), BANDS), np.uint64)
    for k in range(ROWS):
        keys = shuffled_keys(keys + values[..., k], salt=_SEED)
    return (keys >> np.uint64(32)).astype(np.uint32)


def similarity(first: Shingles, second: Shingles) -> float:
    """Jaccard similarity of two records; 0 where either side alone has less than `SIDE`.

    Two questions on one passage, or one refusal of two requests, are thus two records.
    """
    shared_total = 0
    union_total = 0
    for first_side, second_side in zip(first, second, strict=True):
        shared = len(np.intersect1d(first_side, second_side, assume_unique=True))
        union = len(first_side) + len(second_side) - shared
        if shared < SIDE * union:
            return 0.0
        shared_total += shared
        union_total += union
    return shared_total / union_total
