"""What every grader is, and the scores that all of them give alike. One that fails, times out or
cannot read its gold leaves the attempt unscored and names the failure. One that finds no answer
scores 0 where the prompt requests a format; where it requests none the attempt is unscored, without
a failure. An answer outside the requested format still counts.
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
    """A named way to grade. Thread-safe: any number of threads may call it at once."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Per prompt: why its gold cannot be used (drop reason), or None. Gold must pass itself."""
        ...

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt, in order."""
        ...


@dataclass(frozen=True, slots=True)
class PlainGrader:
    """A grader of two functions that always end: a prompt's drop reason, and an answer's score."""

    refusal: Callable[[Prompt], str | None]
    score: Callable[[Attempt], Score]

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Per prompt: the drop reason, or None."""
        return [self.refusal(prompt) for prompt in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
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


# name → how a prompt asks for it
_REQUESTS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)(?![A-Za-z])",
    "<answer>…</answer>": r"(?i)</?answer>",
    "#### …": r"\#{4}",
    # quoted, or with what is to be filled in behind it; "Answer:" at the end asks for nothing
    "Answer: …": (
        r"(?<!\w)[\"'`“‘][^\"'`”’\n]{0,30}\b[Aa](?:nswer|NSWER)\b(?:[ \t]+is\b|[ \t*]*:)"
        r"|\b[Aa](?:nswer|NSWER)[ \t*]*:[ \t*]*(?:\$?[A-Z]{3,}\b|X\b|[<\[({_]|\$[a-z]|\.\.\.|…)"
    ),
    "JSON": (
        r"(?i)\b(?:in|as|with|return|output|produce|write|give|valid)\s+"
        r"(?:(?:an?|one|only|valid|the|following|single)\s+)*JSON\b"
    ),
}


# name → what an answer in it holds at least
_SIGNS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)\s*\{",
    "<answer>…</answer>": r"(?i)<answer>",
    "#### …": r"\#{4}",
    "Answer: …": r"(?i)answer",
    "JSON": r"[{\[]",
}


def requested_formats(prompt: Prompt) -> list[str]:
    """Names of the formats in which a prompt wants its answer; [] where it wants none. They are
    read from what the model is given: templates, system messages and the question count alike.
    """
    texts = (m.content for m in prompt.messages if m.role in ("system", "user"))
    question = "\n".join(texts)
    names = [name for name, request in _REQUESTS.items() if re.search(request, question)]
    if metadata_of(prompt).get("output_regex"):
        names.append("what its output_regex matches")
    return names


def lacks_format(prompt: Prompt, answer: str) -> bool:
    """Whether a prompt asks for formats, and its answer shows no sign of any of them."""
    signs = [_SIGNS[name] for name in requested_formats(prompt) if name in _SIGNS]
    return bool(signs) and not any(re.search(sign, answer) for sign in signs)


def no_answer(attempt: Attempt) -> Score:
    """The score of a completion in which no answer is found: wrong if it is empty, or lacks the
    format that its prompt asks for; without a format unscored, which an evaluation counts as wrong.
    """
    if not attempt.completion.answer.strip():
        return Score(0.0, None, f"{NO_ANSWER}: empty")
    formats = requested_formats(attempt.prompt)
    if not formats:
        return unscored(None, f"{NO_ANSWER} found; the prompt asks for no format")
    return Score(0.0, None, f"{NO_ANSWER} found; the prompt asks for {' or '.join(formats)}")


def verdict(correct: bool, answer: str, gold: str) -> Score:
    """The score of an answer that was compared."""
    if correct:
        return Score(1.0, one_line(answer), f"equal to the gold {one_line(gold)}")
    return Score(0.0, one_line(answer), f"not the gold {one_line(gold)}")


def unscored(answer: str | None, problem: str, failure: FailureKind | None = None) -> Score:
    """The score of an answer that could not be compared."""
    shown = None if answer is None else one_line(answer)
    return Score(None, shown, f"unscored: {problem}", failure)


def one_line(text: str) -> str:
    """The text on one line, shortened to its head and "…"."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
