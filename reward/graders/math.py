"""The graders "math" and "numeric": numbers exactly and at once, formulas in workers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, before_reading, no_answer, one_line, unscored, verdict
from reward.graders.final_answer import find_answer, numbers_beside, reads_as_math
from reward.graders.numbers import Number, read_number, same_number
from reward.graders.tidy import bare
from reward.graders.workers import JobResult, RunJobs, run_shared

Comparison = tuple[str, str, float | None]  # gold, answer, tolerance
LONGEST = 2000  # characters of an answer
_EQUALS = re.compile(r"(?<![<>!\\:=~])=(?![=>])")
# between two answers: "x = 2, x = 3" is no chain of equal sides
_SEPARATOR = re.compile(r",(?!\d{3})|;|\b(?:and|or)\b")
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*[-+]?\s*\\infty")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])|~=")

_ARITHMETIC = re.compile(r"(?:[\d\s.+*/^(){}-]|\\times|\\cdot|\\div)+")
_ASSIGNMENT = re.compile(r"([A-Za-z]\w*|\\[a-z]+)\s*=(?:[^<>,;]*=)?\s*([^=<>,;]+)")


class Math:
    """Accepts an answer that is the gold by exact arithmetic, by algebra, or word by word.

    Nothing is rounded unless `metadata.tolerance`, a share of the gold number, allows it. With
    `numbers_only` ("numeric") a gold that is no number is refused.
    """

    def __init__(self, *, numbers_only: bool = False, run: RunJobs = run_shared) -> None:
        self.numbers_only, self._run = numbers_only, run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No gold, one that cannot be read, or one that is not accepted as its own answer."""
        own = [self._own_answer(prompt) for prompt in prompts]
        golds = [c for c in own if not isinstance(c, str)]
        # a gold equals itself at once; it must be distinguished from a number in time as well
        results = self._compare([*golds, *((gold, "1.5", share) for gold, _, share in golds)])
        return [
            c if isinstance(c, str) else _refusal(c[0], results[c], results[c[0], "1.5", c[2]])
            for c in own
        ]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        read = [self._read(attempt) for attempt in attempts]
        results = self._compare([c[0] for c in read if not isinstance(c, Score)])
        return [c if isinstance(c, Score) else _score(c[0], results[c[0]], c[1]) for c in read]

    def _read(self, attempt: Attempt) -> Score | tuple[Comparison, str]:
        score = before_reading(attempt)
        if score is not None:
            return score
        if attempt.prompt.gold is None:
            return unscored(None, "the prompt has no gold", "malformed_row")
        gold = gold_text(attempt.prompt.gold)
        if self.numbers_only and read_number(bare(gold)) is None:
            return unscored(None, "the gold is no number", "malformed_row")
        answer, prose = find_answer(attempt.completion.answer)
        if answer is None:  # a gold of words may be all of the answer, or of what a label is before
            answer = prose or bare(attempt.completion.answer)
            if not _is_words(bare(gold)) or _plain(answer) != _plain(gold):
                return no_answer(attempt)
        if prose and "!" not in gold:
            answer = answer.removesuffix("!")  # "The answer is 12!" is no factorial
        try:
            return (gold, answer, tolerance_of(attempt.prompt)), prose
        except ValueError as problem:
            return unscored(answer, str(problem), "malformed_row")

    def _compare(self, comparisons: Sequence[Comparison]) -> dict[Comparison, JobResult]:
        """Each distinct comparison once: most completions of a prompt answer alike."""
        results: dict[Comparison, JobResult] = {}
        formulas: dict[Comparison, list[str]] = {}
        for comparison in dict.fromkeys(comparisons):
            gold, answer = bare(comparison[0]), bare(comparison[1][: LONGEST + 1])
            equal = same_written(gold, answer, comparison[2])
            if equal is None:
                formulas[comparison] = [gold, answer]
            else:
                results[comparison] = JobResult(equal)
        done = self._run([("equal", arguments) for arguments in formulas.values()])
        results.update(zip(formulas, done, strict=True))
        return results

    def _own_answer(self, prompt: Prompt) -> Comparison | str:
        """The comparison of the prompt's gold with itself, or why the prompt cannot be used."""
        if prompt.gold is None or not gold_text(prompt.gold):
            return "no_gold"
        gold = gold_text(prompt.gold)
        try:
            tolerance = tolerance_of(prompt)
        except ValueError as problem:
            return str(problem)
        answer, _ = find_answer(f"The answer is $\\boxed{{{gold}}}$.")
        if answer is None or (self.numbers_only and read_number(bare(gold)) is None):
            return f"gold_unreadable: {one_line(gold)}"
        return gold, answer, tolerance


def gold_text(gold: str) -> str:
    """The answer a gold holds: in its last box, behind "####" or another label, or all of it."""
    found = None if gold.lstrip().startswith(("{", "[")) else find_answer(gold, last_line=False)[0]
    return found or gold.strip()


def same_written(gold: str, answer: str, tolerance: float | None = None) -> bool | None:
    """Whether an answer is the gold, both as from `tidy.bare`; None where that takes algebra. A
    gold that is a number wants a number: a sum or a product of numbers is work left undone."""
    if not gold or not answer or len(answer) > LONGEST:
        return False
    if _CLOSED_AT_INFINITY.search(answer) and not _CLOSED_AT_INFINITY.search(gold):
        return False  # algebra reads [0, infinity] as [0, infinity)
    number = read_number(gold)
    sides = _EQUALS.split(answer)
    if number is not None and not any(map(_SEPARATOR.search, sides[1:-1])):
        values = [
            value
            for side in sides
            for text in _APPROXIMATELY.split(side)
            if (value := read_number(text.strip())) is not None
        ]
        stated = [read_number(text.strip()) for text in _APPROXIMATELY.split(sides[-1])]
        if any(value and same_number(number, value, tolerance) for value in stated):
            return all(_agrees(value, number, tolerance) for value in values)
        if any(stated) or _ARITHMETIC.fullmatch(answer) or not reads_as_math(answer):
            # a decimal comma may be that of a list
            return None if "," in gold and number.form == "decimal" else False
    assigned = _ASSIGNMENT.fullmatch(gold)
    other = _ASSIGNMENT.match(answer)
    if assigned and (other is None or other[1] == assigned[1]):
        return same_written(assigned[2], sides[-1].strip(), tolerance)
    if gold == answer:
        return True
    if _is_words(gold):
        return _plain(gold) == _plain(answer)
    return None


def _agrees(value: Number, gold: Number, tolerance: float | None) -> bool:
    """Whether a side of an equation is the gold, or either of them is the other one rounded.

    "1/3 = 0.333" and "2 h = 120 min" state one answer, "121 = 120" states two.
    """
    if same_number(gold, value, tolerance) or value.unit != gold.unit:
        return True
    difference = abs(value.value - gold.value)
    return value.form != "integer" and difference * 100 <= abs(gold.value)


def _is_words(gold: str) -> bool:
    """Whether a gold is words alone: "odd", "the midpoints form a hexagon"."""
    return re.fullmatch(r"[^\W\d_]{3,}(?:[ ,'-]+[^\W\d_]+)*", gold) is not None


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", bare(text).casefold()))


def tolerance_of(prompt: Prompt) -> float | None:
    """`tolerance` of a prompt's metadata: a share of the gold. Raises ValueError: it is no number
    in (0, 1)."""
    value = metadata_of(prompt).get("tolerance")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"bad_tolerance: {value!r} is no share between 0 and 1")
    return float(value)


def _refusal(gold: str, itself: JobResult, another: JobResult) -> str | None:
    problem = itself.problem or another.problem
    if problem is not None:
        kind = "unreadable" if problem.startswith("Unreadable") else "too_hard"
        return f"gold_{kind}: {one_line(gold)}"
    return None if itself.value is True else f"gold_not_accepted: {one_line(gold)}"


def _score(comparison: Comparison, result: JobResult, prose: str) -> Score:
    gold, answer, tolerance = comparison
    if result.problem is not None:
        return unscored(answer, result.problem, result.failure)
    number = read_number(bare(gold)) if prose and not result.value else None
    if number is not None and any(
        (other := read_number(bare(text))) and same_number(number, other, tolerance)
        for text in numbers_beside(answer, prose)
    ):
        return unscored(answer, "the gold stands beside the answer that was read")
    return verdict(result.value is True, answer, gold)
