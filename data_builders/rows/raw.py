"""A row as it stands in its file, and the one form in which a row or a record is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

Part = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Place of a filter's match in a record: characters `start` to `end` of one part of a message.

    `text` is the matched text; of a long one, its beginning and its end.
    """

    message: int
    part: Part
    start: int
    end: int
    text: str


class Match(NamedTuple):
    """A filter's match in a text: characters `start` to `end`, and what is wrong with them."""

    detail: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a row or a record is not used. With its place, it is a line of `dropped.jsonl`.

    Attributes:
        reason: a fixed name, to count by.
        detail: where in the row or record, and what, for a person to act on.
        file, line: place of the row; "" and 0 until `RawRow.dropped` sets them.
        record_id: id of the record, once the row was read as a conversation.
        span: the text that a filter matched, where one did.
    """

    reason: str
    detail: str
    file: str = ""
    line: int = 0
    record_id: str | None = None
    span: TextSpan | None = None


class RawRow(NamedTuple):
    """One row as it stands. `line` counts from 1: lines of a text file, else rows."""

    row: dict[str, Any]
    file: str
    line: int

    def dropped(self, drop: Drop) -> Drop:
        """The drop with the place of this row."""
        return replace(drop, file=self.file, line=self.line)


RawRows = Iterator[RawRow | Drop]
Opener = Callable[[Path, str], RawRows]
