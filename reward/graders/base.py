"""The interface of a grader, and the scores that all graders share.

A grader that fails, times out or cannot read its gold leaves the attempt unscored and names the
failure. A grader that finds no answer scores 0 if the prompt requests a format; if the prompt
requests none, the attempt is unscored, without a failure. An answer outside the requested format
still counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.records import NO_ANSWER, FailureKind, Score
from posttrain.rollouts import Completion, Prompt, metadata_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """One completion of one prompt, to be graded."""

    prompt: Prompt
    completion: Completion


class Grader(Protocol):
    """Interface of a grader. Thread-safe: any number of threads may call it at once."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt whose gold cannot be used or fails itself, else None."""
        ...

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order."""
        ...


@dataclass(frozen=True, slots=True)
class PlainGrader:
    """Grader made of two functions that always end.

    `refusal` gives a prompt's drop reason, `score` the score of an answer.
    """

    refusal: Callable[[Prompt], str | None]
    score: Callable[[Attempt], Score]

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt, or None."""
        return [self.refusal(prompt) for prompt in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order; `score` is asked only where there is text to read."""
        return [before_reading(attempt) or self.score(attempt) for attempt in attempts]


SHOWN = 200  # characters of an answer or gold in a score


def before_reading(attempt: Attempt) -> Score | None:
    """The score of a completion that gave no answer to read; None where there is one."""
    completion = attempt.completion
    if completion.finish == "failed":
        error = one_line(completion.error or "no reason given")
        return Score(None, None, f"failed: {error}", "service")
    if completion.truncated:
        return Score(0.0, None, f"truncated: {completion.finish}")
    return None


# format → pattern of a prompt that requests it
_REQUESTS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)(?![A-Za-z])",
    "<answer>…</answer>": r"(?i)</?answer>",
    "#### …": r"\#{4}",
    # quoted, or followed by a blank to fill in; "Answer:" at the end of a prompt requests nothing
    "Answer: …": (
        r"(?<!\w)[\"'`“‘][^\"'`”’\n]{0,30}\b[Aa](?:nswer|NSWER)\b(?:[ \t]+is\b|[ \t*]*:)"
        r"|\b[Aa](?:nswer|NSWER)[ \t*]*:[ \t*]*(?:\$?[A-Z]{3,}\b|X\b|[<\[({_]|\$[a-z]|\.\.\.|…)"
    ),
    "JSON": (
        r"(?i)\b(?:in|as|with|return|output|produce|write|give|valid)\s+"
        r"(?:(?:an?|one|only|valid|the|following|single)\s+)*JSON\b"
    ),
}
# format → pattern that any answer in this format contains
_SIGNS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)\s*\{",
    "<answer>…</answer>": r"(?i)<answer>",
    "#### …": r"\#{4}",
    "Answer: …": r"(?i)answer",
    "JSON": r"[{\[]",
}


def requested_formats(prompt: Prompt) -> list[str]:
    """Names of the formats in which a prompt requests its answer; [] if it requests none.

    They are read from the messages as the model gets them: templates, system messages and the
    question count alike.
    """
    instructions = "\n".join(m.content for m in prompt.messages if m.role in ("system", "user"))
    names = [name for name, pattern in _REQUESTS.items() if re.search(pattern, instructions)]
    if metadata_of(prompt).get("output_regex"):
        names.append("what its output_regex matches")
    return names


def lacks_format(prompt: Prompt, answer: str) -> bool:
    """Tell whether a prompt requests formats and the answer shows no sign of any of them."""
    signs = [_SIGNS[name] for name in requested_formats(prompt) if name in _SIGNS]
    return bool(signs) and not any(re.search(sign, answer) for sign in signs)


def no_answer_score(attempt: Attempt) -> Score:
    """The score of text without an answer: 0 if empty or if a format was requested, else unscored.

    It is wrong if it is empty or lacks the format that its prompt requests. Without a requested
    format it is unscored, which an evaluation counts as wrong.
    """
    if not attempt.completion.answer.strip():
        return Score(0.0, None, f"{NO_ANSWER}: empty")
    formats = requested_formats(attempt.prompt)
    if not formats:
        return unscored(None, f"{NO_ANSWER} found; the prompt asks for no format")
    return Score(0.0, None, f"{NO_ANSWER} found; the prompt asks for {' or '.join(formats)}")


def compared_score(correct: bool, answer: str, gold: str) -> Score:
    """The score of an answer that was compared with the gold."""
    if correct:
        return Score(1.0, one_line(answer), f"equal to the gold {one_line(gold)}")
    return Score(0.0, one_line(answer), f"not the gold {one_line(gold)}")


def unscored(answer: str | None, problem: str, failure: FailureKind | None = None) -> Score:
    """The score of an answer that could not be compared."""
    shown_answer = None if answer is None else one_line(answer)
    return Score(None, shown_answer, f"unscored: {problem}", failure)


def one_line(text: str) -> str:
    """The text on one line, shortened to its head and "…"."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
