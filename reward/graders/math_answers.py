"""Math answers: what was answered, and whether it is the gold.

same("1,234", "1234 apples") is True
same("\\\\sqrt{8}", "2\\\\sqrt{2}", algebra=algebra.equal) is True

Written numbers are compared exactly and here; only formulas need algebra, which may never end and
so belongs in a worker. Nothing is rounded unless a tolerance is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from reward.graders.final_answer import boxed
from reward.graders.numbers import read_number, same_number
from reward.graders.tidy import bare

Algebra = Callable[[str, str], bool]
LONGEST = 2000  # characters of an answer

_EQUALS = re.compile(r"(?<![<>!\\:=])=(?!=)")
_NAME = re.compile(r"[A-Za-z](?:\w|_\{\w+\}|')*(?:\s*\([A-Za-z](?:,\s*[A-Za-z])*\))?|\\[a-z]+")
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])")


class NeedsAlgebra(Exception):
    """The two cannot be compared as written numbers."""


def _in_a_worker(gold: str, answer: str) -> bool:
    raise NeedsAlgebra


def gold_text(gold: str) -> str:
    """The answer a gold holds: what is behind "####", in its last box, or all of it."""
    if "####" in gold:
        return gold.rsplit("####", 1)[1].strip()
    return boxed(gold) or gold.strip()


def same(
    gold: str, answer: str, *, algebra: Algebra = _in_a_worker, tolerance: float | None = None
) -> bool:
    """Whether an answer is the gold.

    Args:
        gold, answer: one number, formula or list each, in LaTeX or plain text.
        algebra: compares two formulas.
        tolerance: share of a gold number by which an answer may be off; None asks for equality.

    Raises:
        NeedsAlgebra: there are formulas to compare, and no `algebra`.
    """
    return _same(bare(gold), bare(answer), algebra, tolerance)


def _same(gold: str, answer: str, algebra: Algebra, tolerance: float | None) -> bool:
    if not gold or not answer or len(answer) > LONGEST:
        return False
    number = read_number(gold)
    if number is not None:
        given = read_number(_value(answer, rounded=number.form == "decimal"))
        return given is not None and same_number(number, given, tolerance)
    parts = read_parts(gold)
    if parts is not None:
        return same_parts(
            parts, _parts(answer, len(parts.items)), lambda a, b: _same(a, b, algebra, tolerance)
        )
    name, value = _named(gold)
    if name:
        other = _named(answer)[0]
        if other is None or other.replace(" ", "") == name.replace(" ", ""):
            return _same(value, _named(answer)[1], algebra, tolerance)
        return False
    if _RELATION.search(gold):
        return algebra(gold, answer)
    return algebra(gold, _value(answer, rounded=False))


def _parts(answer: str, wanted: int) -> Parts:
    """The parts of an answer; "x = (1, 2)" has those of (1, 2)."""
    parts = read_parts(answer)
    if parts is None or len(parts.items) != wanted:
        parts = read_parts(_named(answer)[1]) or parts
    return parts or Parts("", (answer,), "")


def _named(text: str) -> tuple[str | None, str]:
    """ "x = 2y = 4" → ("x", "4"); a text that begins with no name is all value."""
    sides = _EQUALS.split(text)
    name = sides[0].strip()
    if len(sides) > 1 and _NAME.fullmatch(name) and not _RELATION.search(sides[-1]):
        return name, sides[-1].strip()
    return None, text


def _value(answer: str, *, rounded: bool) -> str:
    """What an answer comes to: the last side of its equations; of "10/3 ≈ 3.33" the side wanted."""
    sides = re.split(r"\\approx(?![A-Za-z])|~=|≈", _EQUALS.split(answer)[-1])
    return sides[-1 if rounded else 0].strip() or sides[-1].strip()


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
