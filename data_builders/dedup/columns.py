"""What of a record deduplication compares: exact keys, n-grams and their MinHash bands, its place.

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
    """The columns of some records as they are before reasoning control, and their n-grams (`near`);
    `places` are file and line of each, when they are to be kept.
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


def conversation_key(example: Example) -> int:
    """64 bits; equal for re-formatted copies of one conversation."""
    return _key("conversation", example, example.messages)


def prompt_key(example: Example) -> int:
    """64 bits; equal for conversations in which the system and the user said the same, in order.

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
    """The text in Unicode's composed form, each run of white space one space, JSON laid out anew.

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
    """The n-grams of what the user said and of all that the assistant thought, said, called and got
    from tools: distinct 32-bit hashes, ascending.

    System texts and declared tools do not count: data for agents shares long ones, and a set that
    is published again often has others. Of a side with fewer than n words all of it is one n-gram.
    """
    words, starts = words_of_all([side for e in examples for side in _sides(e)], signs=True)
    grams = runs(words.hashes, NGRAM)
    sides: list[Hashes] = []
    for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        own = grams[start : max(end - NGRAM + 1, start)]
        if start < end < start + NGRAM:
            own = runs(np.pad(words.hashes[start:end], (0, NGRAM - (end - start))), NGRAM)
        sides.append(np.unique((own >> np.uint64(32)).astype(np.uint32)))
    return list(zip(sides[::2], sides[1::2], strict=True))


def _sides(example: Example) -> tuple[str, str]:
    user = [m.content for m in example.messages if m.role == "user"]
    assistant: list[str] = []
    for message in example.messages:
        if message.role not in ("system", "user"):
            assistant += [message.reasoning or "", message.content]
            assistant += [text for c in message.tool_calls for text in (c.name, c.arguments)]
    return "\n".join(user), "\n".join(assistant)


def band_keys(records: Sequence[Shingles]) -> npt.NDArray[np.uint32]:
    """The keys of the MinHash signatures' bands, (records, BANDS)."""
    # the two sides are one set, in which they share no member
    hashes = [
        shuffled_keys(side.astype(np.uint64), salt)
        for record in records
        for salt, side in enumerate(record)
    ]
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


def similarity(one: Shingles, other: Shingles) -> float:
    """The Jaccard similarity of two records, 0 where one side has less than `SIDE` by itself.

    So a passage with two questions and one refusal of two requests are two records each.
    """
    sides = list(zip(one, other, strict=True))
    shared = [len(np.intersect1d(a, b, assume_unique=True)) for a, b in sides]
    union = [len(a) + len(b) - n for (a, b), n in zip(sides, shared, strict=True)]
    if any(n < SIDE * size for n, size in zip(shared, union, strict=True)):
        return 0.0
    return sum(shared) / sum(union)
