"""Rows from JSON Lines, plain or compressed: one object a line, UTF-8, strict JSON.

{"messages": […]}\\n{"messages": […]}\\n

A line that is not one is a `BadRow`; blank lines are no rows. A compressed file that is cut off is
a `DataError`: nobody knows how many rows are gone. A `.json` file may also be one array, or objects
over several lines (`sources_json`).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from data_builders.sources_json import layout_of, read_elements
from data_builders.sources_rows import BadRow, RawRow, RawRows
from posttrain.errors import DataError
from posttrain.jsontext import load_json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


def open_jsonl(
    path: Path, name: str, *, start: int = 0, stop: int | None = None, line: int = 1
) -> RawRows:
    """Rows of one file, an object a line; `name` is what they call it.

    Args:
        start, stop: bytes of a plain file to read, cut at line ends.
        line: number of the line that begins at `start`.
    """
    first = line
    with _opened(path) as lines:
        line = first - 1
        try:
            for line, text in enumerate(_between(lines, start, stop), start=first):
                if line == 1:
                    text = text.removeprefix(_BOM)
                if text.strip():
                    yield _line(text, name, line)
        # pyarrow says OSError for every damaged stream
        except OSError as error:
            raise DataError(f"{name}: unreadable after line {line}: {error}") from error


def open_json(path: Path, name: str) -> RawRows:
    """Rows of one `.json` file: an array, objects over several lines, or an object a line."""
    row = None
    try:
        with _opened(path) as file:
            head = file.read(_BLOCK).removeprefix(_BOM)
            layout = layout_of(head)
            if layout != "lines":
                blocks = itertools.chain((head,), iter(lambda: file.read(_BLOCK), b""))
                for row in read_elements(blocks, name, layout, _row):
                    yield row
                return
    except OSError as error:
        line = row.line if row else 0
        raise DataError(f"{name}: unreadable after line {line}: {error}") from error
    yield from open_jsonl(path, name)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        with path.open("rb") as file:
            yield file
    else:
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, compression) as stream:
            # NativeFile speaks the raw-stream protocol without being a RawIOBase by type
            yield io.BufferedReader(stream, buffer_size=1 << 20)  # pyright: ignore[reportArgumentType]


def _between(lines: io.BufferedReader, start: int, stop: int | None) -> Iterator[bytes]:
    if start:
        lines.seek(start)
    if stop is None:
        yield from lines
        return
    while start < stop and (text := lines.readline()):
        start += len(text)
        yield text


def _line(text: bytes, name: str, line: int) -> RawRow | BadRow:
    row = _row(text, name, line)
    if isinstance(row, RawRow):
        return row
    detail = row.detail
    if text.strip() == b"{":
        detail += "; write each object on one line (jq -c .), or name the file .json"
    elif text.lstrip()[:1] == b"[":
        detail += "; rows are one object a line (an array needs a .json file)"
    elif not text.endswith(b"\n"):
        detail += "; the line has no end, the file may be cut off"
    return BadRow(row.reason, detail, name, line)


def _row(text: bytes, name: str, line: int) -> RawRow | BadRow:
    try:
        row = load_json(text)
    except UnicodeDecodeError as error:
        return BadRow("malformed_json", f"not UTF-8 at byte {error.start}", name, line)
    except ValueError as error:
        return BadRow("malformed_json", str(error), name, line)
    if not isinstance(row, dict):
        kind = type(row).__name__
        return BadRow("malformed_json", f"a row is an object, found a {kind}", name, line)
    return RawRow(row, name, line)
