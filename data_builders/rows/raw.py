"""Row as it stands in its file, and the form in which a row or a record is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

Part = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Span of a filter's match in a record: characters `start` to `end` of one part of a message.

    `text` is the matched text; of a long one, its beginning and its end.
    """

    message: int
    part: Part
    start: int
    end: int
    text: str


class Match(NamedTuple):
    """Match of a filter in a text: characters `start` to `end`, and the problem with them."""

    detail: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Reason not to use a row or a record. With file and line, it is a line of `dropped.jsonl`.

    Attributes:
        reason: fixed name, to count by.
        detail: part of the row or record, and its problem, for a person to act on.
        file, line: file and line of the row; "" and 0 until `RawRow.dropped` sets them.
        record_id: id of the record, once the row was read as a conversation.
        span: text that a filter matched, if one did.
    """

    reason: str
    detail: str
    file: str = ""
    line: int = 0
    record_id: str | None = None
    span: TextSpan | None = None


class RawRow(NamedTuple):
    """Row as it stands. `line` counts from 1: lines of a text file, else rows."""

    row: dict[str, Any]
    file: str
    line: int

    def dropped(self, drop: Drop) -> Drop:
        """Add the file and line of this row to a drop."""
        return replace(drop, file=self.file, line=self.line)


RawRows = Iterator[RawRow | Drop]
Opener = Callable[[Path, str], RawRows]
