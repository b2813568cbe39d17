"""What a record's assistant says: the texts that filters of the text look at.

said(example)  →  Said(1, "reasoning", "2+2 is 4."), Said(1, "answer", "4"), …
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_builders.filters.drop import Drop, Part, span_in
from posttrain.records import Example


@dataclass(frozen=True, slots=True)
class Said:
    """One trace or answer. `message` is its message's index in the record."""

    message: int
    part: Part
    text: str

    def drop(self, reason: str, what: str, start: int = 0, end: int | None = None) -> Drop:
        """A drop for `what` in this text, with the characters `start` to `end` as its span."""
        until = len(self.text) if end is None else end
        span = span_in(self.text, start, until, message=self.message, part=self.part)
        return Drop(reason, f"message {self.message}, {self.part}: {what}", span)


def said(example: Example) -> Iterator[Said]:
    """Traces and answers in their order; empty ones are left out."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            if message.reasons:
                yield Said(index, "reasoning", message.reasoning or "")
            if message.content.strip():
                yield Said(index, "answer", message.content)
