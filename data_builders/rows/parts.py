"""A source's input in parts: pieces of files that can be read apart, each with its hash.

A file of lines is cut at line ends, Parquet at row groups, a dataset directory at rows; anything
else is one piece. Rows keep the file and line that they have in the whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.rows.files import open_directory, open_hub, open_parquet, open_whole
from data_builders.rows.json_files import is_array, open_jsonl
from data_builders.rows.raw import RawRows
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.hashing import digest_of, sha256_file

Kind = Literal["lines", "parquet", "directory", "whole", "hub"]
_SHARE = 32  # a part is at most this part of what comes before it,
_LEAST = 1 << 20  # but no less than so many bytes
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one file or directory, from `start` to `stop`, which begins at row `line`.

    Both are bytes of `lines`, row groups of `parquet`, rows of a `directory`, else 0. `rows` is an
    estimate for plans, None where nobody knows. `digest` is of the stretch, or of the whole file
    where that is cheaper. `changed` is the file's time of change when it was hashed.
    """

    path: str
    file: str
    kind: Kind
    start: int
    stop: int
    line: int
    rows: int | None
    bytes: int
    digest: str
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Pieces of one source that are prepared together."""

    source: str
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Size of what is read."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def rows(self) -> int | None:
        """About how many rows it has, None if nobody knows."""
        counts = [piece.rows for piece in self.pieces]
        return None if None in counts else sum(count or 0 for count in counts)

    def describe(self) -> str:
        """Where it lies, for messages."""
        first, last = self.pieces[0], self.pieces[-1]
        until = f" to {last.file}" if last.file != first.file else ""
        return f"{self.source}: {first.file} from row {first.line}{until}"

    def content(self, *, placed: bool) -> str:
        """A digest of the rows; of their files and lines too, when these are written down."""
        return digest_of(
            [
                [p.kind, p.digest, *([] if p.kind == "lines" else [p.start, p.stop]), p.line == 1]
                + ([p.file, p.line] if placed else [])
                for p in self.pieces
            ]
        )


def part_size(position: int, most: int) -> int:
    """Bytes of the part that begins at this byte of its source: `most`, or less near the start.

    A power of two near a 32nd of what comes before it, so that a small source too is work for many
    workers. Where a part ends depends on nothing behind it: what is added there changes nothing.
    """
    grown = max(position // _SHARE, _LEAST)
    return min(most, 1 << (grown.bit_length() - 1))


def gather(source: str, pieces: Iterable[Piece], size: int) -> list[Part]:
    """Pieces in order, as parts of at most about `size` bytes."""
    parts: list[Part] = []
    waiting: list[Piece] = []
    position = held = 0
    for piece in pieces:
        if waiting and held + piece.bytes > part_size(position, size):
            parts.append(Part(source, tuple(waiting)))
            position, waiting, held = position + held, [], 0
        waiting.append(piece)
        held += piece.bytes
    if waiting:
        parts.append(Part(source, tuple(waiting)))
    return parts


def open_part(part: Part, config: SourceConfig) -> RawRows:
    """The rows of a part.

    Raises:
        DataError: a file is not the one that was hashed, or cannot be read.
    """
    for piece in part.pieces:
        yield from _open(piece, config)
        if piece.changed and os.stat(piece.path).st_mtime_ns != piece.changed:
            raise DataError(f"{piece.file} was changed while it was read; start again")


def _open(piece: Piece, config: SourceConfig) -> RawRows:
    path, name = Path(piece.path), piece.file
    if piece.kind == "hub":
        return open_hub(config)
    if piece.kind == "lines":
        return open_jsonl(path, name, start=piece.start, stop=piece.stop, line=piece.line)
    if piece.kind == "parquet":
        groups = range(piece.start, piece.stop)
        return open_parquet(path, name, groups=groups, line=piece.line)
    if piece.kind == "directory":
        return open_directory(path, config, range(piece.start, piece.stop))(path, name)
    return open_whole(path, config)(path, name)


def estimate_rows(parts: Sequence[Part]) -> int | None:
    """About how many rows the parts have; what is not known is taken to be like the rest."""
    known = [part for part in parts if part.rows is not None]
    counted, size = sum(p.rows or 0 for p in known), sum(p.bytes for p in known)
    if not size:
        return 0 if not parts else None
    return round(counted * sum(part.bytes for part in parts) / size)


def cut_file(path: Path, name: str, most: int, *, start: int = 0) -> tuple[str, list[Piece]]:
    """A file's sha256 and its pieces of at most about `most` bytes; an empty file has none.

    Args:
        name: what its rows call the file.
        start: bytes of the source before it.
    """
    before = path.stat()
    suffix, pieces = path.suffix.lower(), None
    if suffix in (".jsonl", ".ndjson") or (suffix == ".json" and not _is_array(path)):
        digest, pieces = _lines(path, name, most, start)
    else:
        digest = sha256_file(path)
        if suffix == ".parquet":
            pieces = _row_groups(path, name, most, start, digest)
    if pieces is None:
        pieces = [Piece(str(path), name, "whole", 0, 0, 1, None, before.st_size, digest)]
    if path.stat().st_mtime_ns != before.st_mtime_ns:
        raise DataError(f"{name} was changed while it was read; start again")
    return digest, [replace(p, changed=before.st_mtime_ns) for p in pieces if p.bytes]


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return is_array(file.read(_BLOCK))


def _lines(path: Path, name: str, most: int, before: int) -> tuple[str, list[Piece]]:
    """A file of lines, `before` bytes of its source behind others, cut at the ends of lines."""
    whole = hashlib.sha256()
    pieces: list[Piece] = []
    start, line = 0, 1
    with path.open("rb") as file:
        while True:
            digest, lines, size, last = hashlib.sha256(), 0, 0, b""
            for block in _stretch(file, part_size(before + start, most)):
                whole.update(block)
                digest.update(block)
                lines += block.count(b"\n")
                size += len(block)
                last = block[-1:]
            if not size:
                return whole.hexdigest(), pieces
            stop, rows = start + size, lines + (last != b"\n")
            place = (str(path), name, "lines", start, stop, line)
            pieces.append(Piece(*place, rows, size, digest.hexdigest()))
            start, line = stop, line + lines


def _stretch(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next `size` bytes of a file, and the rest of their last line."""
    block = b"\n"
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block
    if block and not block.endswith(b"\n"):
        yield file.readline()


def _row_groups(path: Path, name: str, most: int, position: int, digest: str) -> list[Piece] | None:
    try:
        found = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError):
        return None  # whoever reads it says what is wrong
    pieces: list[Piece] = []
    start, line, rows, held = 0, 1, 0, 0
    for stop in range(1, found.num_row_groups + 1):
        group = found.row_group(stop - 1)
        rows += group.num_rows
        held += sum(group.column(c).total_compressed_size for c in range(group.num_columns))
        if held >= part_size(position, most) or stop == found.num_row_groups:
            place = (str(path), name, "parquet", start, stop, line)
            pieces.append(Piece(*place, rows, max(held, 1), digest))
            start, line, position = stop, line + rows, position + held
            rows = held = 0
    return pieces
