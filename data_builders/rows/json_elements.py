"""Rows from `.json` files: one JSON array of objects, or objects written over several lines.

[{"instruction": "…", "output": "…"},
 {"instruction": "…", "output": "…"}]

Both are read as a stream: memory holds one element and a block of the file, however long the array.
An element's end is found by its brackets alone, so a bad one (a repeated key, `NaN`) is one
`BadRow` and the next is read. What no element explains (no closing bracket, a stray comma, text
behind the end) is a `BadRow` too. `line` is where an element begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from data_builders.rows.raw import BadRow, RawRow

_SPACE = b" \t\r\n"
_TO_STRUCTURE = re.compile(rb'[^"{}\[\],]*+')
_TO_QUOTE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
Layout = Literal["lines", "array", "objects"]
ReadRow = Callable[[bytes, str, int], RawRow | BadRow]


def layout_of(head: bytes) -> Layout:
    """How a `.json` file holds its rows, from its beginning (without a byte-order mark).

    An object whose first line is `{` alone was written by a pretty-printer.
    """
    start = head.lstrip(_SPACE)
    if start.startswith(b"["):
        return "array"
    first, newline, _ = start.partition(b"\n")
    return "objects" if newline and first.rstrip(_SPACE) == b"{" else "lines"


def read_elements(
    blocks: Iterable[bytes], name: str, layout: Layout, read_row: ReadRow
) -> Iterator[RawRow | BadRow]:
    """Rows of an array or of a run of objects.

    Args:
        blocks: the file's bytes in order, cut anywhere.
        read_row: an element's bytes, the file's name, a line → a row.
    """
    scanner, line = _Scanner(array=layout == "array"), 1
    for text in scanner.elements(blocks):
        element = text.lstrip(_SPACE)
        at = line + text.count(b"\n", 0, len(text) - len(element))
        line += text.count(b"\n")
        if isinstance(text, _Between):
            if text.problem:
                yield BadRow("malformed_json", text.problem, name, at)
        elif element:
            yield read_row(element, name, at)
        else:
            yield BadRow("malformed_json", "a comma without an element beside it", name, at)


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
