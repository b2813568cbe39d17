"""Answers of several parts: tuples, sets, intervals, unions and plain lists.

read_parts("(3, \\\\frac{\\\\pi}{2})") == Parts("(", ("3", "\\\\frac{\\\\pi}{2}"), ")")
read_parts("x=1 or x=-2")          == Parts("", ("x=1", "x=-2"), "")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_OPEN, _CLOSE = "([{", ")]}"
_SEPARATOR = re.compile(r"\s*;\s*|\s*,\s*(?:(?:and|or)(?![A-Za-z])\s*)?|\s+(?:and|or)\s+")
_THOUSANDS = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_UNION = re.compile(r"\s*\\cup(?![A-Za-z])\s*")
MOST = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """`opening` and `closing` are brackets, "" for a plain list, "∪" for a union."""

    opening: str
    items: tuple[str, ...]
    closing: str

    @property
    def ordered(self) -> bool:
        """Whether the order of the items matters."""
        return self.opening in ("(", "[")


def read_parts(text: str) -> Parts | None:
    """The parts an answer has; None where it is one thing.

    1,234 inside a list with ", " elsewhere is one number; alone it is two: ask `read_number` first.
    """
    opening, closing, inside = _brackets(text)
    union = _split(text, _UNION)
    if len(union) > 1:
        return Parts("∪", tuple(union), "∪")
    items = _items(inside)
    if len(items) > MOST or (len(items) < 2 and opening != "{"):
        return _plus_minus(text) if len(items) == 1 and not opening else None
    return Parts(opening, tuple(items), closing)


def _brackets(text: str) -> tuple[str, str, str]:
    """ "(a, b]" → ("(", "]", "a, b"); brackets that do not hold all of it are left."""
    plain = text.replace("\\{", "{ ").replace("\\}", " }")
    holds = plain[:1] in {*_OPEN} and _end(plain) == len(plain) - 1
    if holds and (plain[0] != "{" or text.startswith("\\{")):
        return plain[0], plain[-1], plain[1:-1].strip()
    return "", "", text


def _end(text: str) -> int:
    """Where the bracket that opens `text` closes; of whichever kind: [0, 1) closes."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0:
            return position
    return -1


def _items(text: str) -> list[str]:
    """Split at the top level; a comma of thousands stays where other commas have a space."""
    spaced = re.search(r",\s|;|\s(?:and|or)\s", text) is not None
    groups = _THOUSANDS.finditer(text)
    kept = {m.start() + k for m in groups for k, c in enumerate(m[0]) if c == ","}
    items = _split(text, _SEPARATOR, kept if spaced else set())
    return [signed for item in items for signed in _both_signs(item)]


def _split(text: str, separator: re.Pattern[str], kept: set[int] | None = None) -> list[str]:
    items: list[str] = []
    start = 0
    for match in separator.finditer(text):
        before = text[start : match.start()]
        level = sum(before.count(c) for c in _OPEN) - sum(before.count(c) for c in _CLOSE)
        if level == 0 and not (kept and kept & set(range(*match.span()))):
            items.append(before.strip())
            start = match.end()
    items.append(text[start:].strip())
    return items if all(items) else [text]


def _both_signs(item: str) -> list[str]:
    """a ± b → a + b, a − b."""
    if item.count("\\pm") != 1:
        return [item]
    before, _, after = item.partition("\\pm")
    plus = "" if not before.strip() or before.rstrip().endswith("=") else "+"
    return [f"{before}{plus}{after}".strip(), f"{before}-{after.strip()}".strip()]


def _plus_minus(text: str) -> Parts | None:
    signed = _both_signs(text)
    return Parts("", tuple(signed), "") if len(signed) > 1 else None


def same_parts(gold: Parts, answer: Parts, same: Callable[[str, str], bool]) -> bool:
    """Whether the answer has the gold's parts: in order in ( ) and [ ], in any order otherwise.

    Brackets may be left off; another kind is another answer, but for a set written as a list.
    """
    if len(gold.items) != len(answer.items):
        return False
    other_kind = (answer.opening, answer.closing) != (gold.opening, gold.closing)
    if other_kind and answer.opening and gold.opening:
        return False
    if gold.ordered or answer.ordered:
        return all(same(one, other) for one, other in zip(gold.items, answer.items, strict=True))
    left = list(answer.items)
    for item in gold.items:
        found = next((k for k, other in enumerate(left) if same(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True
