"""A row as it stands in its file, with its place; or a place without one, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from data_builders.filters.drop import TextSpan


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
