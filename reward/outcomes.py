"""Scores in words: what every grader says in the cases that all of them meet.

before_reading(attempt) == Score(0.0, None, "truncated: length")
"""

from __future__ import annotations

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.asked_format import asked_formats
from reward.grader import Attempt

SHOWN = 200  # characters of an answer or gold in a score


def before_reading(attempt: Attempt) -> Score | None:
    """The score of a completion that gave no answer to read; None where there is one."""
    completion = attempt.completion
    if completion.finish == "failed":
        return Score(None, None, f"failed: {one_line(completion.error or 'no reason given')}")
    if completion.truncated:
        return Score(0.0, None, f"truncated: {completion.finish}")
    return None


def no_answer(attempt: Attempt) -> Score:
    """The score of a completion in which no answer is found.

    It is wrong if it is empty, or lacks the format that its prompt asks for. Otherwise the answer
    may stand where it is not looked for, or be written as it is not read.
    """
    answer, asked = attempt.completion.answer, asked_formats(attempt.prompt)
    if not answer.strip():
        return Score(0.0, None, "no answer: empty")
    if not asked:
        return unscored(None, "no answer found; the prompt asks for no format")
    names = " or ".join(form.name for form in asked)
    if any(form.used(answer) for form in asked):
        return unscored(None, f"no answer that can be read in the {names} that the prompt asks for")
    return Score(0.0, None, f"no answer found; the prompt asks for {names}")


def verdict(correct: bool, answer: str, gold: str) -> Score:
    """The score of an answer that was compared."""
    if correct:
        return Score(1.0, one_line(answer), f"equal to the gold {one_line(gold)}")
    return Score(0.0, one_line(answer), f"not the gold {one_line(gold)}")


def unscored(answer: str | None, problem: str) -> Score:
    """The score of an answer that could not be compared."""
    return Score(None, None if answer is None else one_line(answer), f"unscored: {problem}")


def one_line(text: str) -> str:
    """The text on one line, shortened in the middle of nothing: its head, and "…"."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def tolerance_of(prompt: Prompt) -> float | None:
    """`tolerance` of a prompt's metadata: a share of the gold.

    Raises:
        ValueError: it is no number in (0, 1).
    """
    value = metadata_of(prompt).get("tolerance")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"bad_tolerance: {value!r} is no share between 0 and 1")
    return float(value)
