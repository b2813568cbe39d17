"""A text with what is needed to judge a place in it: lines, fenced blocks and inline code.

    page = Page('Use `f(x)`:\\n```json\\n{"a": 1}\\n```\\n')
    page.inline(5) → True;  page.fence(20) → Fence(info="json", body=20, end=29)

Everything is computed once, in one pass over the text.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^\n`]*)", re.M)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)\1(?!`)")
_NEAR = 240


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: `start` is its first backtick, [body, end) what it holds."""

    start: int
    info: str
    body: int
    end: int


class Page:
    """A part's text and its layout."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0, *(m.end() for m in re.finditer("\n", text))]
        self.fences = _fences(text)
        self._fence_bodies = [fence.body for fence in self.fences]
        self._inlines = [m.span() for m in _INLINE.finditer(text)]
        self._inline_starts = [start for start, _ in self._inlines]

    def line_start(self, position: int) -> int:
        """Where the line of a position begins."""
        return self._lines[bisect.bisect_right(self._lines, position) - 1]

    def line_end(self, position: int) -> int:
        """Where the line of a position ends, its newline excluded."""
        k = bisect.bisect_right(self._lines, position)
        return self._lines[k] - 1 if k < len(self._lines) else len(self.text)

    def before(self, position: int) -> str:
        """What stands before a position on its line (the last few hundred characters)."""
        return self.text[max(self.line_start(position), position - _NEAR) : position]

    def after(self, position: int) -> str:
        """What stands from a position to the end of its line (the first few hundred characters)."""
        return self.text[position : min(self.line_end(position), position + _NEAR)]

    def lead_in(self, position: int) -> str:
        """The line before a position, or what precedes it on its own line, if anything does."""
        own = self.before(position)
        if own.strip(" \t>*-[(`"):
            return own
        above = self.text[max(0, self.line_start(position) - _NEAR) : self.line_start(position)]
        return above.rstrip().rpartition("\n")[2]

    def fence(self, position: int) -> Fence | None:
        """The fenced block that a position lies in."""
        k = bisect.bisect_right(self._fence_bodies, position) - 1
        if k < 0:
            return None
        fence = self.fences[k]
        return fence if fence.body <= position < fence.end else None

    def inline(self, position: int) -> bool:
        """Whether a position lies in inline code."""
        return self.inline_span(position) is not None

    def inline_span(self, position: int) -> tuple[int, int] | None:
        """The span of inline code that a position lies in, backticks included."""
        k = bisect.bisect_right(self._inline_starts, position) - 1
        if k >= 0 and self._inlines[k][0] <= position < self._inlines[k][1]:
            return self._inlines[k]
        return None


def _fences(text: str) -> list[Fence]:
    """Fenced blocks in order; one that never closes runs to the end."""
    found: list[Fence] = []
    opened: tuple[int, str, str, int] | None = None  # start, mark, info, body
    for match in _FENCE.finditer(text):
        mark, info = match[1], match[2].strip()
        if opened is None:
            body = min(match.end() + 1, len(text))
            opened = (match.start(1), mark, info, body)
        elif mark[0] == opened[1][0] and len(mark) >= len(opened[1]) and not info[:1].isalnum():
            found.append(Fence(opened[0], opened[2], opened[3], match.start()))
            opened = None
    if opened is not None:
        found.append(Fence(opened[0], opened[2], opened[3], len(text)))
    return found
