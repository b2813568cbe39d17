"""A row as it stands in its file, with its place; and why a row or a record is not used: a name to
count by, a detail to act on, and the text that decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Part = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Where in a record a filter's match stands: characters `start` to `end` of a message's part.

    `text` is what stands there; of a long span, its beginning and its end.
    """

    message: int
    part: Part
    start: int
    end: int
    text: str


class Match(NamedTuple):
    """What a filter objects to in a text, and where: characters `start` to `end`."""

    detail: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Drop:
    """A filter's verdict. `reason` is a fixed name; `detail` says where in the record and what."""

    reason: str
    detail: str
    span: TextSpan | None = None


class RawRow(NamedTuple):
    """One row as it stands. `line` counts from 1: the line of a text file, else the row."""

    row: dict[str, Any]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not used, and why. `record_id` is known once the row was a conversation.

    `span` is the text that a filter objected to, where one did.
    """

    reason: str
    detail: str
    file: str
    line: int
    record_id: str | None = None
    span: TextSpan | None = None


RawRows = Iterator[RawRow | Dropped]
Opener = Callable[[Path, str], RawRows]
