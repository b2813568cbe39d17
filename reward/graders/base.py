"""What every grader is, and the scores that all of them give alike. One that fails, times out,
cannot read its gold, or finds no answer where the prompt requests no format, leaves the attempt
unscored. An answer outside the requested format still counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.records import FailureKind, Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.graders.final_answer import LABEL


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


# name → how a prompt asks for it, what an answer in it holds
_FORMATS = {
    "\\boxed{…}": (r"\\(?:boxed|fbox)(?![A-Za-z])", r"\\(?:boxed|fbox)\s*\{\s*[^\s}][^{}]*[{}]"),
    "<answer>…</answer>": (r"(?i)</?answer>", r"(?i)<answer>\s*[^\s<]"),
    "#### …": (r"\#{4}", r"(?m)^[ \t]*\#{4}[ \t]*\S"),
    # quoted, or with what is to be filled in behind it; "Answer:" at the end asks for nothing
    "Answer: …": (
        r"(?<!\w)[\"'`“‘][^\"'`”’\n]{0,30}\b[Aa](?:nswer|NSWER)\b(?:[ \t]+is\b|[ \t*]*:)"
        r"|\b[Aa](?:nswer|NSWER)[ \t*]*:[ \t*]*(?:\$?[A-Z]{3,}\b|X\b|[<\[({_]|\$[a-z]|\.\.\.|…)",
        f"(?im){LABEL.pattern}",
    ),
    "JSON": (
        r"(?i)\b(?:in|as|with|return|output|produce|write|give|valid)\s+"
        r"(?:(?:an?|one|only|valid|the|following|single)\s+)*JSON\b",
        r"[{\[]",
    ),
}


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
    """The score of a completion in which no answer is found: wrong if it is empty, or lacks the
    format that its prompt asks for."""
    answer, prompt = attempt.completion.answer, attempt.prompt
    if not answer.strip():
        return Score(0.0, None, "no answer: empty")
    question = "\n".join(m.content for m in prompt.messages if m.role in ("system", "user"))
    names = [name for name, (requested, _) in _FORMATS.items() if re.search(requested, question)]
    used = any(re.search(_FORMATS[name][1], answer) for name in names)
    if metadata_of(prompt).get("output_regex"):
        names.append("what its output_regex matches")
    if not names:
        return unscored(None, "no answer found; the prompt asks for no format")
    formats = " or ".join(names)
    if used:
        return unscored(None, f"no answer that can be read in the {formats} of the prompt")
    return Score(0.0, None, f"no answer found; the prompt asks for {formats}")


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
