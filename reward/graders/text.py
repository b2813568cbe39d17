"""The graders "exact" and "numeric": a given text, or a given number.

Exact().grade([Attempt(prompt with gold "New York", "Answer: New York")]) → [Score(1.0, …)]
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, before_reading, no_answer, tolerance_of, unscored, verdict
from reward.graders.final_answer import LABEL, TAG, boxed, final_answer, has_box
from reward.graders.math_answers import gold_text, same
from reward.graders.numbers import read_number
from reward.graders.tidy import bare


class Exact:
    """Accepts the gold's text: white space aside, and case where `ignore_case` is true."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No gold, or one that is read as something else."""
        return [_refuse_text(prompt) for prompt in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        return [before_reading(attempt) or _grade_text(attempt) for attempt in attempts]


class Numeric:
    """Accepts the gold's number: exactly, or within the share `tolerance` of it."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No gold, or one that is no written number."""
        return [_refuse_number(prompt) for prompt in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        return [before_reading(attempt) or _grade_number(attempt) for attempt in attempts]


def _refuse_text(prompt: Prompt) -> str | None:
    if prompt.gold is None or not prompt.gold.strip():
        return "no_gold"
    own = answer_text(prompt.gold)
    accepted = own is not None and same_text(prompt.gold, own)
    return None if accepted else f"gold_not_accepted: {prompt.gold}"


def _grade_text(attempt: Attempt) -> Score:
    gold, answer = attempt.prompt.gold, answer_text(attempt.completion.answer)
    if gold is None:
        return unscored(None, "the prompt has no gold")
    if answer is None:
        return no_answer(attempt)
    ignore_case = metadata_of(attempt.prompt).get("ignore_case") is True
    return verdict(same_text(gold, answer, ignore_case=ignore_case), answer, gold)


def _refuse_number(prompt: Prompt) -> str | None:
    if prompt.gold is None or not prompt.gold.strip():
        return "no_gold"
    gold = gold_text(prompt.gold)
    try:
        accepted = same_value(gold, gold, tolerance=tolerance_of(prompt))
    except ValueError as problem:
        return str(problem)
    return None if accepted else f"gold_unreadable: {gold}"


def _grade_number(attempt: Attempt) -> Score:
    if attempt.prompt.gold is None:
        return unscored(None, "the prompt has no gold")
    gold, answer = gold_text(attempt.prompt.gold), final_answer(attempt.completion.answer)
    if answer is None:
        return no_answer(attempt)
    try:
        correct = same_value(gold, answer, tolerance=tolerance_of(attempt.prompt))
    except ValueError as problem:
        return unscored(answer, str(problem))
    if correct is None:
        return unscored(answer, "the gold is no number")
    return verdict(correct, answer, gold)


def answer_text(answer: str) -> str | None:
    """The answer of a completion: the last tag or box, what follows a leading label, or all of it.

    None where there is nothing, or a box that does not close.
    """
    tags = TAG.findall(answer)
    text = tags[-1] if tags else answer
    if has_box(text):
        return boxed(text)
    label = LABEL.match(text.strip())
    return (text.strip()[label.end() :] if label else text).strip() or None


def same_text(gold: str, answer: str, *, ignore_case: bool = False) -> bool:
    """Equal but for white space, and for case with `ignore_case`."""
    one, other = (" ".join(text.split()) for text in (gold, answer))
    return one.casefold() == other.casefold() if ignore_case else one == other


def same_value(gold: str, answer: str, *, tolerance: float | None = None) -> bool | None:
    """Whether a written number is the gold one; None where the gold is no number.

    Args:
        gold, answer: one written number each, with a unit or none; "x = 5" is 5.
        tolerance: share of the gold by which the answer may be off; None requires equality.
    """
    if read_number(bare(gold)) is None:
        return None
    return same(gold, answer, tolerance=tolerance)
