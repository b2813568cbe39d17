"""Rows from JSON files: an object a line, one array of objects, or objects over several lines.

{"messages": […]}\\n{"messages": […]}\\n          .jsonl, .ndjson, also .gz and .zst
[{"instruction": "…", "output": "…"},           .json
 {"instruction": "…", "output": "…"}]

UTF-8, strict JSON. All are read as a stream: memory holds one element and a block of the file. What
is no row (a repeated key, `NaN`, a stray comma, text behind the end) is `Dropped` and the next is
read; blank lines are no rows. A compressed file that is cut off is a `DataError`: nobody knows how
many rows are gone. An array's elements end where their brackets say; `line` is where one begins.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from data_builders.rows.raw import Dropped, RawRow, RawRows
from posttrain.errors import DataError
from posttrain.jsontext import load_json

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_TO_STRUCTURE = re.compile(rb'[^"{}\[\],]*+')
_TO_QUOTE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
Layout = Literal["lines", "array", "objects"]


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
    """Rows of one `.json` file: an array, objects over several lines, or an object a line."""
    row = None
    try:
        with _opened(path) as file:
            head = file.read(_BLOCK).removeprefix(_BOM)
            layout = layout_of(head)
            if layout != "lines":
                blocks = itertools.chain((head,), iter(lambda: file.read(_BLOCK), b""))
                for row in read_elements(blocks, name, layout):
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
        detail += "; write each object on one line (jq -c .), or name the file .json"
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


def layout_of(head: bytes) -> Layout:
    """How a `.json` file holds its rows, from its beginning (without a byte-order mark).

    An object whose first line is `{` alone was written by a pretty-printer.
    """
    start = head.lstrip(_SPACE)
    if start.startswith(b"["):
        return "array"
    first, newline, _ = start.partition(b"\n")
    return "objects" if newline and first.rstrip(_SPACE) == b"{" else "lines"


def read_elements(blocks: Iterable[bytes], name: str, layout: Layout) -> Iterator[RawRow | Dropped]:
    """Rows of an array or of a run of objects, from a file's bytes in order, cut anywhere."""
    scanner, line = _Scanner(array=layout == "array"), 1
    for text in scanner.elements(blocks):
        element = text.lstrip(_SPACE)
        at = line + text.count(b"\n", 0, len(text) - len(element))
        line += text.count(b"\n")
        if isinstance(text, _Between):
            if text.problem:
                yield Dropped("malformed_json", text.problem, name, at)
        elif element:
            yield _row(element, name, at)
        else:
            yield Dropped("malformed_json", "a comma without an element beside it", name, at)


class _Between(bytes):
    """Text that is no element; with a problem, text that should not be there or is missing."""

    problem: str = ""


def _between(text: bytes, problem: str = "") -> _Between:
    between = _Between(text)
    between.problem = problem
    return between


@dataclass
class _Scanner:
    """Cuts a stream into elements. JSON's structure is ASCII, and UTF-8 uses no ASCII bytes inside
    longer characters, so blocks may end anywhere."""

    array: bool
    depth: int = 0
    in_text: bool = False
    opened: bool = False
    closed: bool = False
    commas: int = 0
    resume: int = 0  # where looking goes on once more bytes are there

    def elements(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """All of the stream in order, as elements and what is between them, commas left out."""
        pending, position = b"", 0
        for block in blocks:
            pending += block
            start = 0
            while not self.closed and (at := self._advance(pending, position)) is not None:
                position = at + 1
                text = self._meet(pending, start, at)
                if text is not None:
                    yield text
                    start = position
            pending = pending[start:]
            position = max(self.resume - start, 0)
            if self.closed and pending.strip(_SPACE):
                yield _between(pending, "text behind the end of the array")
                return
        yield from self._end(pending)

    def _advance(self, text: bytes, position: int) -> int | None:
        """The next place outside texts that means something, `None` if it is not there yet."""
        while True:
            found = (_TO_QUOTE if self.in_text else _TO_STRUCTURE).match(text, position)
            assert found is not None, "both patterns match nothing as well"
            position = self.resume = found.end()
            if position >= len(text) or (self.in_text and text[position] != ord('"')):
                return None  # the end, or a backslash whose other half is in the next block
            if text[position] != ord('"'):
                return position
            self.in_text = not self.in_text
            position += 1

    def _meet(self, text: bytes, start: int, at: int) -> bytes | None:
        """What a structural character completes."""
        char = text[at : at + 1]
        if self.array and not self.opened:
            self.opened = True  # `layout_of` saw that this is the opening bracket
            return _between(text[start:at])
        if char in b"{[":
            self.depth += 1
            return None
        if self.depth == 0 and self.array and char in b",]":
            self.commas += char == b","
            self.closed = char == b"]"
            element = text[start:at]
            # an empty array has no element, and no comma either
            empty = self.closed and not self.commas and not element.strip(_SPACE)
            return _between(element) if empty else element
        if char in b"}]" and self.depth:
            self.depth -= 1
            if self.depth == 0 and not self.array:
                return text[start : at + 1]
        return None

    def _end(self, rest: bytes) -> Iterator[bytes]:
        if self.depth or self.in_text:
            yield _between(rest, "the file ends inside this element: it is cut off")
            return
        if rest.strip(_SPACE):
            yield rest
        if self.array and not self.closed:
            yield _between(b"", "the array has no closing bracket: the file may be cut off")
