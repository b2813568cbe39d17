"""Maths answers: what was answered, and whether it is the gold.

same("1,234", "1234 apples") is True
same("\\\\sqrt{8}", "2\\\\sqrt{2}", algebra=algebra.equal) is True

Written numbers are compared exactly and here; only formulas need algebra, which may never end and
so belongs in a worker. Nothing is rounded unless a tolerance is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from reward.boxes import boxed
from reward.numbers import read_number, same_number
from reward.parts import Parts, read_parts, same_parts
from reward.tidy import bare

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
