"""The graders "math" and "numeric": numbers are compared exactly here, formulas in workers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from posttrain.records import Score
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import (
    Attempt,
    before_reading,
    compared_score,
    no_answer_score,
    one_line,
    unscored,
)
from reward.graders.final_answer import find_answer, numbers_beside, reads_as_math
from reward.graders.numbers import Number, read_number, same_number
from reward.graders.tidy import bare
from reward.graders.workers import JobResult, RunJobs, run_shared

Comparison = tuple[str, str, float | None]  # gold, answer, tolerance
LONGEST = 2000  # characters of an answer; no longer one is compared
_EQUALS = re.compile(r"(?<![<>!\\:=~])=(?![=>])")
# what separates two answers: "x = 2, x = 3" is no chain of equal sides
_SEPARATOR = re.compile(r",(?!\d{3})|;|\b(?:and|or)\b")
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*[-+]?\s*\\infty")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])|~=")

_ARITHMETIC = re.compile(r"(?:[\d\s.+*/^(){}-]|\\times|\\cdot|\\div)+")
_ASSIGNMENT = re.compile(r"([A-Za-z]\w*|\\[a-z]+)\s*=(?:[^<>,;]*=)?\s*([^=<>,;]+)")


class Math:
    """Grader that accepts what equals the gold by exact arithmetic, by algebra, or word by word.

    Nothing is rounded unless `metadata.tolerance`, a share of the gold number, allows it. With
    `numbers_only` (the grader "numeric") a gold that is no number is refused.
    """

    def __init__(self, *, numbers_only: bool = False, run: RunJobs = run_shared) -> None:
        self.numbers_only = numbers_only
        self._run = run

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt, or None.

        Reasons: no gold, an unreadable one, one that is not accepted as its own answer.
        """
        comparisons = [self._gold_with_itself(prompt) for prompt in prompts]
        needed: list[Comparison] = []
        for comparison in comparisons:
            if not isinstance(comparison, str):
                # a gold equals itself at once, but telling it from a number may take for ever
                needed += [comparison, _with_other_answer(comparison)]
        results = self._compare(needed)
        reasons: list[str | None] = []
        for comparison in comparisons:
            if isinstance(comparison, str):
                reasons.append(comparison)
            else:
                gold = comparison[0]
                with_itself = results[comparison]
                with_other = results[_with_other_answer(comparison)]
                reasons.append(_refusal_reason(gold, with_itself, with_other))
        return reasons

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order."""
        answers = [self._read_answer(attempt) for attempt in attempts]
        results = self._compare([a[0] for a in answers if not isinstance(a, Score)])
        scores: list[Score] = []
        for answer in answers:
            if isinstance(answer, Score):
                scores.append(answer)
            else:
                comparison, prose = answer
                scores.append(_score_comparison(comparison, results[comparison], prose))
        return scores

    def _read_answer(self, attempt: Attempt) -> Score | tuple[Comparison, str]:
        """The comparison to make and the prose around the answer, or a score without comparing."""
        early_score = before_reading(attempt)
        if early_score is not None:
            return early_score
        if attempt.prompt.gold is None:
            return unscored(None, "the prompt has no gold", "malformed_row")
        gold = gold_text(attempt.prompt.gold)
        if self.numbers_only and read_number(bare(gold)) is None:
            return unscored(None, "the gold is no number", "malformed_row")
        answer, prose = find_answer(attempt.completion.answer)
        if answer is None:
            # a gold of words may be the whole text, or the whole line behind a label
            answer = prose or bare(attempt.completion.answer)
            if not _is_words(bare(gold)) or _words_alone(answer) != _words_alone(gold):
                return no_answer_score(attempt)
        if prose and "!" not in gold:
            answer = answer.removesuffix("!")  # "The answer is 12!" is no factorial
        try:
            return (gold, answer, tolerance_of(attempt.prompt)), prose
        except ValueError as problem:
            return unscored(answer, str(problem), "malformed_row")

    def _compare(self, comparisons: Sequence[Comparison]) -> dict[Comparison, JobResult]:
        """Compare each distinct pair once: most completions of a prompt give equal answers."""
        results: dict[Comparison, JobResult] = {}
        formulas: dict[Comparison, list[str]] = {}
        for comparison in dict.fromkeys(comparisons):
            gold = bare(comparison[0])
            answer = bare(comparison[1][: LONGEST + 1])
            equal = same_written(gold, answer, comparison[2])
            if equal is None:
                formulas[comparison] = [gold, answer]
            else:
                results[comparison] = JobResult(equal)
        formula_results = self._run([("equal", arguments) for arguments in formulas.values()])
        results.update(zip(formulas, formula_results, strict=True))
        return results

    def _gold_with_itself(self, prompt: Prompt) -> Comparison | str:
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
    """The answer in a gold: its last box, what follows "####" or another label, or all of it."""
    if gold.lstrip().startswith(("{", "[")):  # a set or an interval, and no JSON with a field
        return gold.strip()
    return find_answer(gold, last_line=False)[0] or gold.strip()


def same_written(gold: str, answer: str, tolerance: float | None = None) -> bool | None:
    """Compare two texts, as `tidy.bare` leaves them; None where that takes algebra.

    A gold that is a number wants a number: a sum or a product of numbers is work left undone.
    """
    if not gold or not answer or len(answer) > LONGEST:
        return False
    if _CLOSED_AT_INFINITY.search(answer) and not _CLOSED_AT_INFINITY.search(gold):
        return False  # algebra reads [0, infinity] as [0, infinity)
    number = read_number(gold)
    sides = _EQUALS.split(answer)
    if number is not None and not any(map(_SEPARATOR.search, sides[1:-1])):
        values_by_side = [_values_of_side(side) for side in sides]
        final_values = values_by_side[-1]
        if any(same_number(number, value, tolerance) for value in final_values):
            all_values = itertools.chain.from_iterable(values_by_side)
            return all(_agrees_with_gold(value, number, tolerance) for value in all_values)
        if final_values or _ARITHMETIC.fullmatch(answer) or not reads_as_math(answer):
            # the comma of a gold such as 1,25 may be that of a list: left to algebra
            return None if "," in gold and number.form == "decimal" else False
    gold_assignment = _ASSIGNMENT.fullmatch(gold)
    answer_assignment = _ASSIGNMENT.match(answer)
    if gold_assignment and (
        answer_assignment is None or answer_assignment[1] == gold_assignment[1]
    ):
        return same_written(gold_assignment[2], sides[-1].strip(), tolerance)
    if gold == answer:
        return True
    if _is_words(gold):
        return _words_alone(gold) == _words_alone(answer)
    return None


def _values_of_side(side: str) -> list[Number]:
    """The numbers that one side of an equation states: "1/3 \\\\approx 0.333" states two."""
    numbers = [read_number(text.strip()) for text in _APPROXIMATELY.split(side)]
    return [number for number in numbers if number is not None]


def _agrees_with_gold(value: Number, gold: Number, tolerance: float | None) -> bool:
    """Tell whether a side may state the gold: equal, in another unit, or not whole and within 1 %.

    "1/3 = 0.333" and "2 h = 120 min" state one answer, "121 = 120" states two.
    """
    if same_number(gold, value, tolerance) or value.unit != gold.unit:
        return True
    difference = abs(value.value - gold.value)
    return value.form != "integer" and difference * 100 <= abs(gold.value)


def _is_words(gold: str) -> bool:
    """Tell whether a gold is words alone: "odd", "the midpoints form a hexagon"."""
    return re.fullmatch(r"[^\W\d_]{3,}(?:[ ,'-]+[^\W\d_]+)*", gold) is not None


def _words_alone(text: str) -> str:
    """The words of a text without case and punctuation."""
    return " ".join(re.findall(r"\w+", bare(text).casefold()))


def tolerance_of(prompt: Prompt) -> float | None:
    """`tolerance` of a prompt, a share of its gold or None; ValueError if it is not in (0, 1)."""
    value = metadata_of(prompt).get("tolerance")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"bad_tolerance: {value!r} is no share between 0 and 1")
    return float(value)


def _with_other_answer(comparison: Comparison) -> Comparison:
    """The comparison of the same gold with 1.5, whatever the gold is."""
    gold, _, tolerance = comparison
    return gold, "1.5", tolerance


def _refusal_reason(gold: str, with_itself: JobResult, with_other: JobResult) -> str | None:
    """Drop reason of a gold by its comparisons with itself and with some number; None if usable."""
    problem = with_itself.problem or with_other.problem
    if problem is not None:
        reason = "gold_unreadable" if problem.startswith("Unreadable") else "gold_too_hard"
        return f"{reason}: {one_line(gold)}"
    return None if with_itself.value is True else f"gold_not_accepted: {one_line(gold)}"


def _score_comparison(comparison: Comparison, result: JobResult, prose: str) -> Score:
    """Score by a comparison; unscored if it failed, or if only the prose states the gold."""
    gold, answer, tolerance = comparison
    if result.problem is not None:
        return unscored(answer, result.problem, result.failure)
    if prose and not result.value and _states_gold(gold, numbers_beside(answer, prose), tolerance):
        # perhaps we read the wrong one of two numbers; a right answer graded 0 would be worse
        return unscored(answer, "the gold stands beside the answer that was read")
    return compared_score(result.value is True, answer, gold)


def _states_gold(gold: str, texts: Sequence[str], tolerance: float | None) -> bool:
    """Tell whether the gold is a number and one of the texts is that number."""
    gold_number = read_number(bare(gold))
    if gold_number is None:
        return False
    numbers = [read_number(bare(text)) for text in texts]
    return any(n is not None and same_number(gold_number, n, tolerance) for n in numbers)
