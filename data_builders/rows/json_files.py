"""Rows from JSON files, as a stream: an object a line, or one array.

UTF-8, strict JSON. What is no row (a repeated key, `NaN`, text behind the end) is `Dropped` and the
next is read. A compressed file that is cut off is a `DataError`: nobody knows how many are gone.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from data_builders.rows.raw import Dropped, RawRow, RawRows
from posttrain.errors import DataError
from posttrain.jsontext import load_json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
# a whole text, a sign of structure, or the beginning of a text whose end is not there yet
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],"]', re.DOTALL)
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


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
            for line, text in enumerate(_stretch(lines, start, stop), start=first):
                if line == 1:
                    text = text.removeprefix(_BOM)
                if text.strip():
                    yield _line(text, name, line)
        # pyarrow says OSError for every damaged stream
        except OSError as error:
            raise DataError(f"{name}: unreadable after line {line}: {error}") from error


def open_json(path: Path, name: str) -> RawRows:
    """Rows of one `.json` file: an array, or an object a line."""
    row = None
    try:
        with _opened(path) as file:
            if is_array(head := file.read(_BLOCK)):
                blocks = itertools.chain((head,), iter(lambda: file.read(_BLOCK), b""))
                for row in read_elements(blocks, name):
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


def _stretch(lines: io.BufferedReader, start: int, stop: int | None) -> Iterator[bytes]:
    if start:
        lines.seek(start)
    if stop is None:
        yield from lines
        return
    while start < stop and (text := lines.readline()):
        start += len(text)
        yield text


def _line(text: bytes, name: str, line: int) -> RawRow | Dropped:
    row = _row(text, name, line)
    if isinstance(row, RawRow):
        return row
    detail = row.detail
    if text.strip() == b"{":
        detail += "; write each object on one line (jq -c .)"
    elif text.lstrip()[:1] == b"[":
        detail += "; rows are one object a line (an array needs a .json file)"
    elif not text.endswith(b"\n"):
        detail += "; the line has no end, the file may be cut off"
    return Dropped(row.reason, detail, name, line)


def _row(text: bytes, name: str, line: int) -> RawRow | Dropped:
    try:
        row = load_json(text)
    except UnicodeDecodeError as error:
        return Dropped("malformed_json", f"not UTF-8 at byte {error.start}", name, line)
    except ValueError as error:
        return Dropped("malformed_json", str(error), name, line)
    if not isinstance(row, dict):
        kind = type(row).__name__
        return Dropped("malformed_json", f"a row is an object, found a {kind}", name, line)
    return RawRow(row, name, line)


def is_array(head: bytes) -> bool:
    """Whether a `.json` file that begins so is an array; else it has an object a line."""
    return head.removeprefix(_BOM).lstrip(_SPACE).startswith(b"[")


def read_elements(blocks: Iterable[bytes], name: str) -> Iterator[RawRow | Dropped]:
    """Rows of an array, from a file's bytes in order, cut anywhere."""
    line = 1
    for text, problem in _elements(blocks):
        element = text.lstrip(_SPACE)
        at = line + text.count(b"\n", 0, len(text) - len(element))
        line += text.count(b"\n")
        if problem:
            yield Dropped("malformed_json", problem, name, at)
        elif problem is None:
            yield _row(element, name, at)


def _elements(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """All of a stream in order, commas left out: (an element, None), (what is none, why, or "").

    JSON's structure is ASCII, and UTF-8 uses no ASCII bytes inside longer characters, so blocks may
    end anywhere.
    """
    pending, position, depth, commas = b"", 0, 0, 0
    in_text = opened = closed = False
    for block in blocks:
        pending += block
        start = 0
        if in_text:  # goes on where the last block ended: a long text is scanned once
            position += len(_IN_TEXT.match(pending, position)[0])  # pyright: ignore[reportOptionalSubscript]  # matches the empty text too
            if not pending.startswith(b'"', position):
                continue
            in_text, position = False, position + 1
        for token in () if closed else _TOKEN.finditer(pending, position):
            mark, at, position = token[0], token.start(), token.end()
            if mark == b'"':  # its text goes on in the next block
                in_text, position = True, at + 1
                break
            if not opened:
                yield pending[start:at], ""  # `is_array` saw that this is the opening bracket
                opened, start = True, position
            elif mark in (b"{", b"["):
                depth += 1
            elif depth == 0 and mark in (b",", b"]"):
                commas, closed = commas + (mark == b","), mark == b"]"
                element, start = pending[start:at], position
                # an empty array has no element, and no comma either
                blank = "" if closed and not commas else "a comma without an element beside it"
                yield element, None if element.strip(_SPACE) else blank
                if closed:
                    break
            elif mark in (b"}", b"]") and depth:
                depth -= 1
        else:
            position = len(pending)
        pending, position = pending[start:], position - start
        if closed and pending.strip(_SPACE):
            yield pending, "text behind the end of the array"
            return
    if depth or in_text:
        yield pending, "the file ends inside this element: it is cut off"
        return
    if pending.strip(_SPACE):
        yield pending, None
    if not closed:
        yield b"", "the array has no closing bracket: the file may be cut off"
