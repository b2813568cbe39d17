"""Answers that must be a given text, or a given number.

same_text("  New  York ", "New York") is True
same_value("3.14159", "3.1416", tolerance=1e-4) is True
"""

from __future__ import annotations

from reward.boxes import boxed, has_box
from reward.final_answer import LABEL, TAG
from reward.math_answers import same
from reward.numbers import read_number
from reward.tidy import bare


def said(answer: str) -> str | None:
    """What a completion answers: the last tag or box, what follows a leading label, or all of it.

    None where there is nothing, or a box that does not close.
    """
    tags = TAG.findall(answer)
    text = tags[-1] if tags else answer
    if has_box(text):
        return boxed(text)
    label = LABEL.match(text.strip())
    return (text.strip()[label.end() :] if label else text).strip() or None


def same_text(gold: str, answer: str, *, ignore_case: bool = False) -> bool:
    """Equal but for white space, and for case where asked."""
    one, other = (" ".join(text.split()) for text in (gold, answer))
    return one.casefold() == other.casefold() if ignore_case else one == other


def same_value(gold: str, answer: str, *, tolerance: float | None = None) -> bool | None:
    """Whether a written number is the gold one; None where the gold is no number.

    Args:
        gold, answer: one written number each, with a unit or none; "x = 5" is 5.
        tolerance: share of the gold by which the answer may be off; None asks for equality.
    """
    if read_number(bare(gold)) is None:
        return None
    return same(gold, answer, tolerance=tolerance)
