"""Where two texts differ, character by character, in time that grows with their length only.

differing("tom has 5 apples", "tom had 5 aples", most=5)  → (Span(6, 7, 6, 7), Span(11, 12, 11, 11))
differing("tom has 5 apples", "i see", most=5)            → None

The best alignment of two long texts takes time by the square of their length. Longer ones than
`WINDOW` are aligned window by window: each window is cut in a run that both have, where any good
alignment passes. What it counts is never less than the best, and the same where edits are few.
"""

from __future__ import annotations

from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

WINDOW = 2048  # characters aligned at once
_ANCHOR = 16  # a window is cut in a run of so many characters that both have


class Span(NamedTuple):
    """`one[start:end]` stands where the other text has `other[other_start:other_end]`."""

    start: int
    end: int
    other_start: int
    other_end: int

    @property
    def edits(self) -> int:
        """Characters inserted, deleted or replaced."""
        return max(self.end - self.start, self.other_end - self.other_start)


def differing(one: str, other: str, *, most: int) -> tuple[Span, ...] | None:
    """All places where the texts differ, in order; `None` when there are more than `most` edits."""
    if abs(len(one) - len(other)) > most:
        return None
    short = max(len(one), len(other)) <= WINDOW
    # the distance alone is quicker, and mostly enough
    if short and Levenshtein.distance(one, other, score_cutoff=most) > most:
        return None
    found: list[Span] = []
    edits = at = other_at = 0
    while at < len(one) or other_at < len(other):
        window = _window(one, other, at, other_at)
        if window is None:
            return None
        spans, at, other_at = window
        found += spans
        edits += sum(span.edits for span in spans)
        if edits > most:
            return None
    return tuple(found)


def _window(one: str, other: str, at: int, other_at: int) -> tuple[list[Span], int, int] | None:
    """What differs from here to the window's cut, and where the next begins."""
    ahead, other_ahead = one[at : at + WINDOW], other[other_at : other_at + WINDOW]
    last = at + len(ahead) == len(one) and other_at + len(other_ahead) == len(other)
    spans: list[Span] = []
    cut: tuple[int, int, int] | None = None
    for step in Levenshtein.opcodes(ahead, other_ahead):
        size = step.src_end - step.src_start
        if step.tag != "equal":
            ends = (at + step.src_end, other_at + step.dest_end)
            spans.append(Span(at + step.src_start, ends[0], other_at + step.dest_start, ends[1]))
        elif not last and size >= _ANCHOR and step.src_start < WINDOW * 3 // 4:
            # the end of the window is not aligned as it would be with what follows
            half = min(size, WINDOW * 3 // 4 - step.src_start + _ANCHOR) // 2
            cut = (len(spans), step.src_start + half, step.dest_start + half)
    if last:
        return spans, len(one), len(other)
    if cut is None:
        return None
    return spans[: cut[0]], at + cut[1], other_at + cut[2]
