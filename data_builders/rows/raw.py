"""A raw row and where it stood; or a line that is no row, and why.

RawRow({"messages": […]}, file="../shared/data/chat.jsonl", line=17)
BadRow("malformed_json", "Expecting ',' delimiter: …", file="../shared/data/chat.jsonl", line=18)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it stands. `line` counts from 1: the line of a text file, else the row."""

    row: dict[str, Any]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is no row, and why."""

    reason: str
    detail: str
    file: str
    line: int


RawRows = Iterator[RawRow | BadRow]
Opener = Callable[[Path, str], RawRows]
