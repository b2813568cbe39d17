"""Rows from JSON Lines, plain or compressed: one object a line, UTF-8, strict JSON.

{"messages": […]}\\n{"messages": […]}\\n

A line that is not one is a `BadRow`; blank lines are no rows. A compressed file that is cut off is
a `DataError`: nobody knows how many rows are gone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from data_builders.sources_rows import BadRow, RawRow, RawRows
from posttrain.errors import DataError
from posttrain.json_values import load_json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BOM = b"\xef\xbb\xbf"


def open_jsonl(path: Path, name: str) -> RawRows:
    """Rows of one file; `name` is what they call it."""
    with _lines(path) as lines:
        line = 0
        try:
            for line, text in enumerate(lines, start=1):
                if line == 1:
                    text = text.removeprefix(_BOM)
                if text.strip():
                    yield _row(text, name, line)
        # pyarrow says OSError for every damaged stream
        except OSError as error:
            raise DataError(f"{name}: unreadable after line {line}: {error}") from error


@contextmanager
def _lines(path: Path) -> Iterator[io.BufferedReader]:
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        with path.open("rb") as file:
            yield file
    else:
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, compression) as stream:
            # NativeFile speaks the raw-stream protocol without being a RawIOBase by type
            yield io.BufferedReader(stream, buffer_size=1 << 20)  # pyright: ignore[reportArgumentType]


def _row(text: bytes, name: str, line: int) -> RawRow | BadRow:
    try:
        row = load_json(text)
    except UnicodeDecodeError as error:
        return BadRow("malformed_json", f"not UTF-8 at byte {error.start}", name, line)
    except ValueError as error:
        cut = "" if text.endswith(b"\n") else "; the line has no end, the file may be cut off"
        array = "; rows are one object a line" if text.lstrip()[:1] == b"[" else ""
        return BadRow("malformed_json", f"{error}{cut}{array}", name, line)
    if not isinstance(row, dict):
        kind = type(row).__name__
        return BadRow("malformed_json", f"a row is an object, found a {kind}", name, line)
    return RawRow(row, name, line)
