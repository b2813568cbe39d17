"""Rows from JSON files, as a stream: one object a line, or one array.

UTF-8, strict JSON. Text that is no row (a repeated key, `NaN`, text after the end) is dropped with
a reason and the next row is read. A compressed file that is cut off is a `DataError`: nobody knows
how many rows are gone.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from data_builders.rows.raw import Drop, RawRow, RawRows
from posttrain.errors import DataError
from posttrain.jsontext import load_json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
# a complete JSON string, a structural character, or the opening quote of a string that goes on in
# the next block
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],"]', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def open_jsonl(
    path: Path, name: str, *, start: int = 0, stop: int | None = None, line: int = 1
) -> RawRows:
    """Read a file of JSON lines; `name` is the file's name in the rows.

    Args:
        start, stop: bytes of a plain file to read, cut at line ends.
        line: number of the line that begins at `start`.

    Raises:
        DataError: a damaged compressed file.
    """
    first_line = line
    with _open_stream(path) as file:
        line = first_line - 1
        try:
            for line, text in enumerate(_read_lines(file, start, stop), start=first_line):
                if line == 1:
                    text = text.removeprefix(_BOM)
                if text.strip():
                    yield _parse_line(text, name, line)
        # pyarrow raises OSError for every damaged stream
        except OSError as error:
            raise DataError(f"{name}: unreadable after line {line}: {error}") from error


def open_json(path: Path, name: str) -> RawRows:
    """Read a `.json` file: an array, or one object a line."""
    row = None
    try:
        with _open_stream(path) as file:
            head = file.read(_BLOCK)
            if is_array(head):
                blocks = itertools.chain((head,), iter(lambda: file.read(_BLOCK), b""))
                for row in read_elements(blocks, name):
                    yield row
                return
    except OSError as error:
        line = row.line if row else 0
        raise DataError(f"{name}: unreadable after line {line}: {error}") from error
    yield from open_jsonl(path, name)


@contextmanager
def _open_stream(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file as a stream of bytes, decompressed by its suffix."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        with path.open("rb") as file:
            yield file
    else:
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, compression) as stream:
            # NativeFile speaks the raw-stream protocol without being a RawIOBase by type
            yield io.BufferedReader(stream, buffer_size=1 << 20)  # pyright: ignore[reportArgumentType]


def _read_lines(file: io.BufferedReader, start: int, stop: int | None) -> Iterator[bytes]:
    """Yield the lines of a file that begin in the bytes `start` to `stop`."""
    if start:
        file.seek(start)
    if stop is None:
        yield from file
        return
    while start < stop and (text := file.readline()):
        start += len(text)
        yield text


def _parse_line(text: bytes, name: str, line: int) -> RawRow | Drop:
    """Parse a line; the detail of a drop says how a file of JSON lines is to be written."""
    row = _parse_row(text, name, line)
    if isinstance(row, RawRow):
        return row
    hint = ""
    if text.strip() == b"{":
        hint = "; write each object on one line (jq -c .)"
    elif text.lstrip()[:1] == b"[":
        hint = "; rows are one object a line (an array needs a .json file)"
    elif not text.endswith(b"\n"):
        hint = "; the line has no end, the file may be cut off"
    return replace(row, detail=row.detail + hint)


def _parse_row(text: bytes, name: str, line: int) -> RawRow | Drop:
    try:
        row = load_json(text)
    except UnicodeDecodeError as error:
        return Drop("malformed_json", f"not UTF-8 at byte {error.start}", name, line)
    except ValueError as error:
        return Drop("malformed_json", str(error), name, line)
    if not isinstance(row, dict):
        kind = type(row).__name__
        return Drop("malformed_json", f"a row is an object, found a {kind}", name, line)
    return RawRow(row, name, line)


def is_array(head: bytes) -> bool:
    """True if a `.json` file with these first bytes is an array, and not one object a line."""
    return head.removeprefix(_BOM).lstrip(_SPACE).startswith(b"[")


def read_elements(blocks: Iterable[bytes], name: str) -> Iterator[RawRow | Drop]:
    """Read a JSON array from the file's bytes in order, cut anywhere."""
    line = 1
    for text, problem in _split_elements(blocks):
        element = text.lstrip(_SPACE)
        first_line = line + text.count(b"\n", 0, len(text) - len(element))
        line += text.count(b"\n")
        if problem:
            yield Drop("malformed_json", problem, name, first_line)
        elif problem is None:
            yield _parse_row(element, name, first_line)


def _split_elements(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Split a JSON array into its elements, without the commas.

    Yields all bytes in order: (element, None), (text that is no element, what is wrong with it), or
    (text to skip, "").

    JSON's structure is ASCII, and UTF-8 uses no ASCII bytes inside longer characters, so blocks may
    end anywhere.
    """
    pending = b""
    position = 0  # in `pending`, up to where it was scanned
    depth = 0
    commas = 0
    in_string = False
    opened = False
    closed = False
    for block in blocks:
        pending += block
        start = 0
        if in_string:  # resume where the last block ended: a long string is scanned once
            position += len(_IN_STRING.match(pending, position)[0])  # pyright: ignore[reportOptionalSubscript]  # matches the empty text too
            if not pending.startswith(b'"', position):
                continue
            in_string = False
            position += 1
        for token in () if closed else _TOKEN.finditer(pending, position):
            mark = token[0]
            position = token.end()
            if mark == b'"':  # the string goes on in the next block
                in_string = True
                break
            if not opened:
                # `is_array` saw that this is the opening bracket
                yield pending[start : token.start()], ""
                opened = True
                start = position
            elif mark in (b"{", b"["):
                depth += 1
            elif depth == 0 and mark in (b",", b"]"):
                commas += mark == b","
                closed = mark == b"]"
                element = pending[start : token.start()]
                start = position
                # an empty array has no element, and no comma either
                is_empty_array = closed and not commas
                problem = "" if is_empty_array else "a comma without an element beside it"
                yield element, None if element.strip(_SPACE) else problem
                if closed:
                    break
            elif mark in (b"}", b"]") and depth:
                depth -= 1
        else:
            position = len(pending)
        pending = pending[start:]
        position -= start
        if closed and pending.strip(_SPACE):
            yield pending, "text behind the end of the array"
            return
    if depth or in_string:
        yield pending, "the file ends inside this element: it is cut off"
        return
    if pending.strip(_SPACE):
        yield pending, None
    if not closed:
        yield b"", "the array has no closing bracket: the file may be cut off"
