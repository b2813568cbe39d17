"""What the finders yield before it is judged: a span, its form and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.chat.detect.requested import RequestedCall


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text that has the shape of one or more calls.

    `requested` has one entry a call, at least one; `RequestedCall(None)` where nothing of it can be
    read.
    `plain` says that ordinary code or markup may look the same.
    """

    form: str
    start: int
    end: int
    requested: tuple[RequestedCall, ...]
    plain: bool = False
