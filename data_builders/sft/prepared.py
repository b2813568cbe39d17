"""Prepared parts on disk, waiting for the mixture: one folder a part, flat files in it.

    records.bin, sequences.bin   a `RECORD`, a `SEQUENCE` each
    tokens.bin      int32: the ids of a sequence, then the edges of its trained spans
    texts.bin       a JSON list a record: ["5f0c…", "MIT", "openai", "{}"]
    dedup*.bin      with deduplication: its columns (`dedup.columns`)
    counts.json     what became of the rows, and the sizes of the other files

A folder is named after everything that decides its bytes, and renamed to that when it is complete.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import COLUMN_FILES, mapped
from data_builders.keyed import key64
from data_builders.sft.prepare import Prepared, PreparedSequence
from posttrain.errors import DataError
from posttrain.tokens.supervision import (
    Batch,
    Flag,
    Marks,
    mask_of_spans,
    sequence_keys,
    supervision_flags,
)

RECORD = np.dtype(
    [
        ("id64", "<u8"),  # of the conversation
        ("row64", "<u8"),  # of the conversation with its license, dialect and metadata
        ("tokens", "<u8"),
        ("trained", "<u8"),
        ("text", "<u8"),  # byte in texts.bin
        ("text_size", "<u4"),
        ("first", "<u4"),  # of its sequences, in this part
        ("sequences", "<u4"),
        ("_", "<u4"),
    ]
)
SEQUENCE = np.dtype(
    [
        ("at", "<u8"),  # in tokens.bin, counted in tokens
        ("key", "<u8"),  # of its ids
        ("length", "<u4"),
        ("trained", "<u4"),
        ("edges", "<u4"),  # of trained spans, behind the ids
        ("budget", "<i4"),  # -1: no trace was cut
        ("turn", "<i2"),
        ("flags", "<u2"),
        ("record", "<u4"),  # of the part
        ("reasons", "?"),
        ("_", "V7"),
    ]
)
Rows = npt.NDArray[np.void]
Int = npt.NDArray[np.int64]
PART_FORMAT = 6  # raised when the same part would be written otherwise
_FILES = (
    "records.bin",
    "sequences.bin",
    "tokens.bin",
    "texts.bin",
    "dropped.jsonl",
    "samples.jsonl",
)
_COUNTS = "counts.json"
_OPEN_FILES = 256


class PartWriter(AbstractContextManager["PartWriter"]):
    """Writes one part; the folder appears under its name when the part is finished.

    Args:
        scratch: names the unfinished folder; two builds that share a folder give different ones.
        marks: by which each sequence's supervision is read.
        dedup: whether there are `files` for the columns of deduplication, for the caller to fill.
    """

    def __init__(self, folder: Path, *, scratch: str, marks: Marks, dedup: bool = False) -> None:
        self._folder, self._marks = folder, marks
        # not by process id: two machines of a cluster may have the same
        self._partial = folder.with_name(f"{folder.name}.{scratch}-{uuid.uuid4().hex}")
        self._partial.mkdir(parents=True)
        names = (*_FILES, *COLUMN_FILES) if dedup else _FILES
        self.files: dict[str, BinaryIO] = {n: (self._partial / n).open("wb") for n in names}

    def write(self, batch: Sequence[Prepared]) -> None:
        """Write the records of a batch that were kept."""
        kept = [p for p in batch if p.drop is None]
        if not kept:
            return
        at = {name: file.tell() for name, file in self.files.items()}
        rows = [s for p in kept for s in p.sequences]
        counts = np.array([len(p.sequences) for p in kept], np.int64)
        starts = np.cumsum(counts) - counts
        sequences = sequence_rows(rows, self._marks)
        sequences["at"] += at["tokens.bin"] // 4
        number = at["records.bin"] // RECORD.itemsize
        sequences["record"] = number + np.repeat(np.arange(len(kept)), counts)
        records = np.zeros(len(kept), RECORD)
        examples = [p.example for p in kept]
        names = [(e.id, e.license, e.dialect, e.metadata) for e in examples]
        records["id64"] = [key64(0, "record", own[0]) for own in names]
        records["row64"] = [key64(0, "row", *own) for own in names]
        texts = [json.dumps(own).encode() for own in names]
        sizes = np.array([len(text) for text in texts], np.int64)
        records["text"] = at["texts.bin"] + np.cumsum(sizes) - sizes
        records["text_size"] = sizes
        records["sequences"] = counts
        records["first"] = at["sequences.bin"] // SEQUENCE.itemsize + starts
        for column, of_sequence in (("tokens", "length"), ("trained", "trained")):
            records[column] = np.add.reduceat(sequences[of_sequence], starts, dtype=np.uint64)
        tokens = [part for row in rows for part in (row.tokens.ids, row.tokens.spans)]
        self.files["records.bin"].write(records.tobytes())
        self.files["sequences.bin"].write(sequences.tobytes())
        joined = np.concatenate(tokens, dtype="<i4", casting="same_kind")
        self.files["tokens.bin"].write(joined.tobytes())
        self.files["texts.bin"].write(b"".join(texts))

    def finish(self, counts: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
        """Write the counts and the samples; the part is complete."""
        for row in samples:
            self.files["samples.jsonl"].write(json.dumps(row).encode() + b"\n")
        sizes = {name: file.tell() for name, file in self.files.items()}
        self.__exit__()
        text = json.dumps({"files": sizes, "counts": counts}, ensure_ascii=True)
        (self._partial / _COUNTS).write_text(text, "utf-8")
        try:
            self._partial.rename(self._folder)
        except OSError:  # another build was quicker, with the same bytes
            if read_counts(self._folder) is None:
                shutil.rmtree(self._folder)
                self._partial.rename(self._folder)
        shutil.rmtree(self._partial, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        # an unfinished folder is left, and goes when its build is run again
        for file in self.files.values():
            file.close()


def sequence_rows(rows: Sequence[PreparedSequence], marks: Marks) -> Rows:
    """A `SEQUENCE` for each, with what its mask teaches; places count from the first of them."""
    found = np.zeros(len(rows), SEQUENCE)
    if not rows:
        return found
    found["length"] = [len(s.tokens.ids) for s in rows]
    found["trained"] = [s.tokens.trained for s in rows]
    found["edges"] = [len(s.tokens.spans) for s in rows]
    found["budget"] = [-1 if s.budget is None else s.budget for s in rows]
    found["turn"] = [s.sample.turn for s in rows]
    found["reasons"] = [s.sample.reasoning == "on" for s in rows]
    sizes = found["length"].astype(np.int64) + found["edges"]
    found["at"] = np.cumsum(sizes) - sizes
    starts = np.append(0, np.cumsum(found["length"], dtype=np.int64))
    edges = [e + at for s, at in zip(rows, starts.tolist(), strict=False) for e in s.tokens.spans]
    ids = np.concatenate([np.asarray(s.tokens.ids, np.int32) for s in rows])
    batch = Batch(ids, mask_of_spans(len(ids), np.array(edges, np.int64)), starts)
    flags = supervision_flags(batch, marks)
    flags[found["budget"] >= 0] |= np.uint16(Flag.CUT_TRACE)
    flags[[s.length > len(s.tokens.ids) for s in rows]] |= np.uint16(Flag.CLIPPED)
    found["flags"], found["key"] = flags, sequence_keys(batch)
    return found


def read_counts(folder: Path) -> dict[str, Any] | None:
    """The counts of a finished part, None where there is none or a file was changed."""
    path = folder / _COUNTS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:  # the machine itself went down while the file was on its way to the disk
        return None
    for name, size in found["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            return None
    return found["counts"]


def read_sample(folder: Path, number: int) -> dict[str, Any]:
    """One of a part's samples."""
    with (folder / "samples.jsonl").open("rb") as file:
        return json.loads(next(itertools.islice(file, number, None)))


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """The columns of one part of a source, mapped into memory.

    `first` and `first_sequence` are the numbers of its first record and sequence in the source.
    """

    number: int
    first: int
    first_sequence: int
    records: Rows
    sequences: Rows

    @property
    def numbers(self) -> Int:
        """(records,) numbers in the source."""
        return np.arange(self.first, self.first + len(self.records))

    @property
    def owners(self) -> Int:
        """(sequences,) the record of each sequence, counted in the part."""
        return self.sequences["record"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """All of one source's finished parts, in order, and its merged counts."""

    name: str
    stats: Mapping[str, Any]
    folders: tuple[Path, ...]

    def __len__(self) -> int:
        """Records in it."""
        return int(self._starts("records.bin", RECORD)[-1])

    def sequence_starts(self) -> Int:
        """(parts + 1,) the number of each part's first sequence, and how many there are."""
        return self._starts("sequences.bin", SEQUENCE)

    def _starts(self, name: str, dtype: np.dtype[np.void]) -> Int:
        sizes = [(f / name).stat().st_size // dtype.itemsize for f in self.folders]
        return np.cumsum([0, *sizes]).astype(np.int64)

    def parts(self) -> Iterator[PreparedPart]:
        """All parts, one after the other."""
        first = first_sequence = 0
        for number, folder in enumerate(self.folders):
            records = mapped(folder / "records.bin", RECORD)
            sequences = mapped(folder / "sequences.bin", SEQUENCE)
            yield PreparedPart(number, first, first_sequence, records, sequences)
            first, first_sequence = first + len(records), first_sequence + len(sequences)

    def records(self, *columns: str) -> Rows:
        """Some columns of all records, in memory."""
        found = np.empty(len(self), [(name, RECORD[name]) for name in columns])
        for part in self.parts():
            own = found[part.first : part.first + len(part.records)]
            for name in columns:
                own[name] = part.records[name]
        return found


class Reader(AbstractContextManager["Reader"]):
    """Tokens and texts of sequences, wherever in the given folders they lie.

    Files stay open, the least recently used are closed beyond `_OPEN_FILES`.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._open: dict[tuple[int, str], int] = {}

    def tokens(
        self, part: int, at: int, ids: npt.NDArray[np.int32], edges: npt.NDArray[np.int32]
    ) -> None:
        """Fill `ids` and `edges` with those of the sequence at a place."""
        wanted = 4 * (len(ids) + len(edges))
        if os.preadv(self._file(part, "tokens.bin"), [ids.data, edges.data], 4 * at) != wanted:
            raise DataError(f"{self._folders[part]} was changed while it was read")

    def text(self, part: int, at: int, size: int) -> list[str]:
        """Record id, license, dialect and metadata of the record whose text is at a place."""
        return json.loads(os.pread(self._file(part, "texts.bin"), size, at))

    def rows(self, parts: Int, places: Int, name: str, dtype: np.dtype[np.void]) -> Rows:
        """(n,) rows of a column file, by part and place in it."""
        found = np.empty(len(parts), dtype)
        data, size = found.view(np.uint8).data, dtype.itemsize
        part_of, place_of = parts.tolist(), places.tolist()
        for k in np.argsort(parts, kind="stable").tolist():
            file = self._file(part_of[k], name)
            if os.preadv(file, [data[k * size : (k + 1) * size]], place_of[k] * size) != size:
                raise DataError(f"{self._folders[part_of[k]]} was changed while it was read")
        return found

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, part: int, name: str) -> int:
        file = self._open.pop((part, name), None)
        if file is None:
            file = os.open(self._folders[part] / name, os.O_RDONLY)
        self._open[part, name] = file  # the last one used comes last
        if len(self._open) > _OPEN_FILES:
            os.close(self._open.pop(next(iter(self._open))))
        return file
