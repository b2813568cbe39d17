"""Why a record was dropped: a name to count by, a detail to act on, and the text that decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
