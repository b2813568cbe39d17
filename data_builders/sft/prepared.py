"""Prepared parts on disk, waiting for the mixture: one folder for each part, with flat files.

    records.bin, sequences.bin   one `RECORD` or `SEQUENCE` for each
    tokens.bin      int32: the ids of a sequence, then the edges of its trained spans
    texts.bin       a JSON list for each record: ["5f0c…", "MIT", "openai", "{}"]
    dedup*.bin      with deduplication: its columns (`dedup.columns`)
    counts.json     counts of the rows, and the sizes of the other files

A folder is named after everything that decides its bytes. It gets that name when it is complete.
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
        ("id64", "<u8"),  # key of the conversation
        ("row64", "<u8"),  # key of the conversation with its license, dialect and metadata
        ("tokens", "<u8"),
        ("trained", "<u8"),
        ("text", "<u8"),  # first byte in texts.bin
        ("text_size", "<u4"),
        ("first", "<u4"),  # number of its first sequence in this part
        ("sequences", "<u4"),
        ("_", "<u4"),
    ]
)
SEQUENCE = np.dtype(
    [
        ("at", "<u8"),  # place in tokens.bin, counted in tokens
        ("key", "<u8"),  # key of its ids
        ("length", "<u4"),
        ("trained", "<u4"),
        ("edges", "<u4"),  # number of edges of trained spans, stored behind the ids
        ("budget", "<i4"),  # -1: no trace was cut
        ("turn", "<i2"),
        ("flags", "<u2"),
        ("record", "<u4"),  # number of its record in this part
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
_MAX_OPEN_FILES = 256  # far below the usual limit of 1,024 for a process


class PartWriter(AbstractContextManager["PartWriter"]):
    """Writer of one part; the folder appears under its name when the part is finished.

    Args:
        build_id: part of the unfinished folder's name; builds that share a folder give different
            ones.
        marks: token patterns by which each sequence's supervision is described.
        dedup: whether `files` holds files for the columns of deduplication, for the caller to fill.
    """

    def __init__(self, folder: Path, *, build_id: str, marks: Marks, dedup: bool = False) -> None:
        self._folder = folder
        self._marks = marks
        # not by process id: two machines of a cluster may have the same
        self._partial = folder.with_name(f"{folder.name}.{build_id}-{uuid.uuid4().hex}")
        self._partial.mkdir(parents=True)
        names = (*_FILES, *COLUMN_FILES) if dedup else _FILES
        self.files: dict[str, BinaryIO] = {n: (self._partial / n).open("wb") for n in names}

    def write(self, batch: Sequence[Prepared]) -> None:
        """Write the kept records of a batch."""
        kept = [record for record in batch if record.drop is None]
        if not kept:
            return
        sequence_counts = np.array([len(record.sequences) for record in kept], np.int64)
        first_sequences = np.cumsum(sequence_counts) - sequence_counts
        prepared = [sequence for record in kept for sequence in record.sequences]

        sequences = sequence_rows(prepared, self._marks)
        sequences["at"] += self.files["tokens.bin"].tell() // 4
        first_record = self.files["records.bin"].tell() // RECORD.itemsize
        sequences["record"] = first_record + np.repeat(np.arange(len(kept)), sequence_counts)

        examples = [record.example for record in kept]
        names = [(e.id, e.license, e.dialect, e.metadata) for e in examples]
        texts = [json.dumps(name).encode() for name in names]
        text_sizes = np.array([len(text) for text in texts], np.int64)
        records = np.zeros(len(kept), RECORD)
        records["id64"] = [key64(0, "record", example.id) for example in examples]
        records["row64"] = [key64(0, "row", *name) for name in names]
        records["text"] = self.files["texts.bin"].tell() + np.cumsum(text_sizes) - text_sizes
        records["text_size"] = text_sizes
        records["sequences"] = sequence_counts
        first = self.files["sequences.bin"].tell() // SEQUENCE.itemsize
        records["first"] = first + first_sequences
        for column, sequence_column in (("tokens", "length"), ("trained", "trained")):
            values = sequences[sequence_column]
            records[column] = np.add.reduceat(values, first_sequences, dtype=np.uint64)

        tokens: list[npt.NDArray[np.integer]] = []
        for sequence in prepared:
            tokens.append(np.asarray(sequence.tokens.ids))
            tokens.append(np.asarray(sequence.tokens.spans))
        self.files["records.bin"].write(records.tobytes())
        self.files["sequences.bin"].write(sequences.tobytes())
        joined = np.concatenate(tokens, dtype="<i4", casting="same_kind")
        self.files["tokens.bin"].write(joined.tobytes())
        self.files["texts.bin"].write(b"".join(texts))

    def finish(self, counts: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
        """Write the counts and the samples, and give the folder its name."""
        for row in samples:
            self.files["samples.jsonl"].write(json.dumps(row).encode() + b"\n")
        sizes = {name: file.tell() for name, file in self.files.items()}
        self.__exit__()
        text = json.dumps({"files": sizes, "counts": counts}, ensure_ascii=True)
        (self._partial / _COUNTS).write_text(text, "utf-8")
        try:
            self._partial.rename(self._folder)
        except OSError:  # another build was faster, with the same bytes
            if read_counts(self._folder) is None:
                shutil.rmtree(self._folder)
                self._partial.rename(self._folder)
        shutil.rmtree(self._partial, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        # an unfinished folder stays; it is removed when its build is run again
        for file in self.files.values():
            file.close()


def sequence_rows(sequences: Sequence[PreparedSequence], marks: Marks) -> Rows:
    """Describe sequences: a `SEQUENCE` row for each, with the flags of its supervision.

    `at` counts from the first of these sequences.
    """
    rows = np.zeros(len(sequences), SEQUENCE)
    if not sequences:
        return rows
    rows["length"] = [len(s.tokens.ids) for s in sequences]
    rows["trained"] = [s.tokens.trained for s in sequences]
    rows["edges"] = [len(s.tokens.spans) for s in sequences]
    rows["budget"] = [-1 if s.budget is None else s.budget for s in sequences]
    rows["turn"] = [s.sample.turn for s in sequences]
    rows["reasons"] = [s.sample.reasoning == "on" for s in sequences]
    sizes = rows["length"].astype(np.int64) + rows["edges"]
    rows["at"] = np.cumsum(sizes) - sizes

    ids = np.concatenate([np.asarray(s.tokens.ids, np.int32) for s in sequences])
    starts = np.append(0, np.cumsum(rows["length"], dtype=np.int64))
    edges: list[int] = []  # of the trained spans in the concatenated ids
    for sequence, start in zip(sequences, starts.tolist(), strict=False):
        edges += [start + edge for edge in sequence.tokens.spans]
    batch = Batch(ids, mask_of_spans(len(ids), np.array(edges, np.int64)), starts)
    flags = supervision_flags(batch, marks)
    flags[rows["budget"] >= 0] |= np.uint16(Flag.CUT_TRACE)
    flags[[s.length > len(s.tokens.ids) for s in sequences]] |= np.uint16(Flag.CLIPPED)
    rows["flags"] = flags
    rows["key"] = sequence_keys(batch)
    return rows


def read_counts(folder: Path) -> dict[str, Any] | None:
    """Read the counts of a finished part; None without one, or if the size of a file changed."""
    path = folder / _COUNTS
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError:  # the machine itself went down while the file was on its way to the disk
        return None
    for name, size in content["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            return None
    return content["counts"]


def read_sample(folder: Path, number: int) -> dict[str, Any]:
    """Read the sample with this number in a part."""
    with (folder / "samples.jsonl").open("rb") as file:
        return json.loads(next(itertools.islice(file, number, None)))


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """Columns of one part of a source, mapped into memory.

    Attributes:
        number: position of the part in the source.
        first, first_sequence: number of its first record and sequence in the source.
    """

    number: int
    first: int
    first_sequence: int
    records: Rows
    sequences: Rows

    @property
    def numbers(self) -> Int:
        """Numbers of the records in the source, (records,)."""
        return np.arange(self.first, self.first + len(self.records))

    @property
    def owners(self) -> Int:
        """Number of each sequence's record in the part, (sequences,)."""
        return self.sequences["record"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """Finished parts of one source, in order, and its merged counts."""

    name: str
    stats: Mapping[str, Any]
    folders: tuple[Path, ...]

    def __len__(self) -> int:
        """Number of records."""
        return int(self._starts("records.bin", RECORD)[-1])

    def sequence_starts(self) -> Int:
        """Number of each part's first sequence in the source, then their total, (parts + 1,)."""
        return self._starts("sequences.bin", SEQUENCE)

    def _starts(self, name: str, dtype: np.dtype[np.void]) -> Int:
        sizes = [(folder / name).stat().st_size // dtype.itemsize for folder in self.folders]
        return np.cumsum([0, *sizes]).astype(np.int64)

    def parts(self) -> Iterator[PreparedPart]:
        """Iterate over the parts in order."""
        first = 0
        first_sequence = 0
        for number, folder in enumerate(self.folders):
            records = mapped(folder / "records.bin", RECORD)
            sequences = mapped(folder / "sequences.bin", SEQUENCE)
            yield PreparedPart(number, first, first_sequence, records, sequences)
            first += len(records)
            first_sequence += len(sequences)

    def records(self, *columns: str) -> Rows:
        """Copy some columns of all records into memory, (records,)."""
        rows = np.empty(len(self), [(name, RECORD[name]) for name in columns])
        for part in self.parts():
            part_rows = rows[part.first : part.first + len(part.records)]
            for name in columns:
                part_rows[name] = part.records[name]
        return rows


class Reader(AbstractContextManager["Reader"]):
    """Random access to the tokens and texts of sequences in the given folders.

    Files stay open; beyond `_MAX_OPEN_FILES` the least recently used one is closed.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._open: dict[tuple[int, str], int] = {}

    def tokens(
        self, part: int, start: int, ids: npt.NDArray[np.int32], edges: npt.NDArray[np.int32]
    ) -> None:
        """Fill `ids` and `edges` with those of the sequence that starts at a token of a part."""
        size = 4 * (len(ids) + len(edges))  # bytes, four a token
        file = self._file(part, "tokens.bin")
        if os.preadv(file, [ids.data, edges.data], 4 * start) != size:
            raise DataError(f"{self._folders[part]} was changed while it was read")

    def text(self, part: int, start: int, size: int) -> list[str]:
        """Read record id, license, dialect and metadata, from `size` bytes of a part."""
        return json.loads(os.pread(self._file(part, "texts.bin"), size, start))

    def rows(self, parts: Int, numbers: Int, name: str, dtype: np.dtype[np.void]) -> Rows:
        """Read rows of a column file, (n,), by part and number in the part."""
        rows = np.empty(len(parts), dtype)
        data = rows.view(np.uint8).data
        size = dtype.itemsize
        part_list = parts.tolist()
        number_list = numbers.tolist()
        # part by part, so that few files are open at a time
        for k in np.argsort(parts, kind="stable").tolist():
            file = self._file(part_list[k], name)
            target = data[k * size : (k + 1) * size]
            if os.preadv(file, [target], number_list[k] * size) != size:
                raise DataError(f"{self._folders[part_list[k]]} was changed while it was read")
        return rows

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, part: int, name: str) -> int:
        """Open a file, or find its descriptor; the dict keeps the order of use."""
        file = self._open.pop((part, name), None)
        if file is None:
            file = os.open(self._folders[part] / name, os.O_RDONLY)
        self._open[part, name] = file  # last: most recently used
        if len(self._open) > _MAX_OPEN_FILES:
            os.close(self._open.pop(next(iter(self._open))))
        return file
