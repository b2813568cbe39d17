"""What the detector reports: calls, what kind each is, and where it stands.

FoundCall(form="hermes_json", part="answer", start=13, end=82, text='<tool_call>…',
          name="get_weather", kind="undeclared", step=0)
CallDetection(calls=(…,)).in_answer → True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["reasoning", "answer"]
Kind = Literal["undeclared", "nonexistent_tool", "fabricated_arguments", "declared"]
KINDS: tuple[Kind, ...] = ("undeclared", "nonexistent_tool", "fabricated_arguments", "declared")
CLIP = 400


@dataclass(frozen=True, slots=True)
class FoundCall:
    """One call.

    Attributes:
        form: which notation it is written in (docs/detector.md lists them).
        part: where it was found.
        start, end: its span in that part's text; several calls of one JSON list share a span. A
            structured call has none: both are the length of the text.
        text: the text of the span, clipped to `CLIP` characters; for a structured call its JSON.
        name: the tool's name where it can be read.
        kind: "undeclared" where no tools are declared at all; else "nonexistent_tool" (no declared
            tool has this name), "fabricated_arguments" (they break the declared schema) or
            "declared" (nothing can be held against it).
        step: which step of a completion, from 0.
    """

    form: str
    part: Part
    start: int
    end: int
    text: str
    name: str | None
    kind: Kind
    step: int = 0


@dataclass(frozen=True, slots=True)
class CallDetection:
    """Every call of a text or a completion, in order: reasoning before answer, step by step."""

    calls: tuple[FoundCall, ...]

    @property
    def any(self) -> bool:
        """Whether there is a call at all, in the reasoning or in the answer."""
        return bool(self.calls)

    @property
    def in_answer(self) -> bool:
        return any(call.part == "answer" for call in self.calls)

    @property
    def in_reasoning(self) -> bool:
        return any(call.part == "reasoning" for call in self.calls)

    @property
    def hallucinated(self) -> bool:
        """Whether a call is of any kind but "declared"."""
        return any(call.kind != "declared" for call in self.calls)

    def count(self, kind: Kind) -> int:
        """How many calls are of this kind."""
        return sum(call.kind == kind for call in self.calls)
