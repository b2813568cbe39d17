"""Files → pieces: one pass over a file hashes it and finds where it can be cut.

cut_file(Path("maths.jsonl"), "maths.jsonl", 64 MiB)  →  (sha256, [Piece(…), Piece(…)])
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.rows.json_elements import layout_of
from data_builders.rows.parts import Piece, part_size
from posttrain.artifacts import sha256_file
from posttrain.errors import DataError

_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


def cut_file(path: Path, name: str, most: int, *, start: int = 0) -> tuple[str, list[Piece]]:
    """A file's sha256 and its pieces of at most about `most` bytes; an empty file has none.

    Args:
        name: what its rows call the file.
        start: bytes of the source before it.
    """
    before = path.stat()
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        digest = sha256_file(path)
        pieces = _row_groups(path, name, most, start, digest)
    elif suffix in (".jsonl", ".ndjson") or (suffix == ".json" and _is_lines(path)):
        digest, pieces = _lines(path, name, most, start)
    else:
        digest = sha256_file(path)
        pieces = [Piece(str(path), name, "whole", 0, 0, 1, None, before.st_size, digest)]
    if path.stat().st_mtime_ns != before.st_mtime_ns:
        raise DataError(f"{name} was changed while it was read; start again")
    return digest, [_stamped(piece, before.st_mtime_ns) for piece in pieces if piece.bytes]


def _stamped(piece: Piece, changed: int) -> Piece:
    values: dict[str, Any] = {k: getattr(piece, k) for k in Piece.__dataclass_fields__}
    return Piece(**{**values, "changed": changed})


def _is_lines(path: Path) -> bool:
    with path.open("rb") as file:
        return layout_of(file.read(_BLOCK).removeprefix(_BOM)) == "lines"


@dataclass
class _Stretch:
    """A piece that is growing while its file is read."""

    start: int
    line: int
    lines: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, data: memoryview) -> None:
        self.digest.update(data)
        self.lines += bytes(data).count(b"\n")

    def piece(self, path: Path, name: str, stop: int, *, open_end: bool) -> Piece:
        rows = self.lines + open_end
        size = stop - self.start
        digest = self.digest.hexdigest()
        return Piece(str(path), name, "lines", self.start, stop, self.line, rows, size, digest)


def _lines(path: Path, name: str, most: int, before: int) -> tuple[str, list[Piece]]:
    whole = hashlib.sha256()
    pieces: list[Piece] = []
    position, stretch, last = 0, _Stretch(0, 1), b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
            begin = 0
            for cut in _cuts(block, position, stretch.start, before, most):
                stretch.add(memoryview(block)[begin:cut])
                pieces.append(stretch.piece(path, name, position + cut, open_end=False))
                stretch = _Stretch(position + cut, stretch.line + stretch.lines)
                begin = cut
            stretch.add(memoryview(block)[begin:])
            position += len(block)
            last = block[-1:]
    if position > stretch.start:
        pieces.append(stretch.piece(path, name, position, open_end=last != b"\n"))
    return whole.hexdigest(), pieces


def _cuts(block: bytes, position: int, start: int, before: int, most: int) -> Iterator[int]:
    """Where in a block pieces end: behind the first line end that makes one large enough.

    Args:
        position: of the block in its file.
        start: of the piece that is growing.
        before: bytes of the source before the file.
    """
    while True:
        size = part_size(before + start, most)
        cut = block.find(b"\n", max(start + size - position - 1, 0)) + 1
        if not cut:
            return
        yield cut
        start = position + cut


def _row_groups(path: Path, name: str, most: int, position: int, digest: str) -> list[Piece]:
    try:
        found = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError):
        # whoever reads it says what is wrong
        return [Piece(str(path), name, "whole", 0, 0, 1, None, path.stat().st_size, digest)]
    pieces: list[Piece] = []
    start = rows = held = 0
    line = 1
    for number in range(found.num_row_groups):
        group = found.row_group(number)
        rows += group.num_rows
        held += sum(group.column(c).total_compressed_size for c in range(group.num_columns))
        if held >= part_size(position, most) or number == found.num_row_groups - 1:
            stop = number + 1
            pieces.append(
                Piece(str(path), name, "parquet", start, stop, line, rows, max(held, 1), digest)
            )
            line += rows
            position += held
            start, rows, held = stop, 0, 0
    return pieces
