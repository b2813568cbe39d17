"""The grader "math": numbers at once, formulas in workers.

Math().grade([Attempt(prompt with gold "1/2", completion ending in \\\\boxed{0.5})])
→ [Score(1.0, "0.5", "equal to the gold 1/2")]
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.graders.base import (
    Attempt,
    before_reading,
    no_answer,
    one_line,
    tolerance_of,
    unscored,
    verdict,
)
from reward.graders.final_answer import final_answer
from reward.graders.math_answers import NeedsAlgebra, gold_text, same
from reward.graders.workers import JobResult, Workers, shared_workers

AnswerCheck = tuple[str, str, float | None]  # gold, answer, tolerance


class Math:
    """Accepts an answer that is the gold by exact arithmetic, or by algebra."""

    def __init__(self, *, last_line: bool = True, workers: Workers | None = None) -> None:
        """`last_line`: whether, without tag, box and label, the last line's formula counts."""
        self.last_line, self._workers = last_line, workers

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """No gold, one that cannot be read, or one that is not accepted as its own answer."""
        reasons: list[str | None] = []
        questions: list[AnswerCheck | None] = []
        for prompt in prompts:
            reason, question = _own_answer(prompt)
            reasons.append(reason)
            questions.append(question)
        results = self._settle([q for q in questions if q is not None])
        # a gold equals itself at once; it must be told from another number in time as well
        others = self._settle([_another(q) for q in results])
        return [
            reason if q is None else _refusal(q[0], results[q], others[_another(q)])
            for reason, q in zip(reasons, questions, strict=True)
        ]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        found = [self._read(attempt) for attempt in attempts]
        results = self._settle([q for q in found if not isinstance(q, Score)])
        return [q if isinstance(q, Score) else _score(q, results[q]) for q in found]

    def _read(self, attempt: Attempt) -> Score | AnswerCheck:
        score = before_reading(attempt)
        if score is not None:
            return score
        gold = attempt.prompt.gold
        if gold is None:
            return unscored(None, "the prompt has no gold")
        answer = final_answer(attempt.completion.answer, last_line=self.last_line)
        try:
            tolerance = tolerance_of(attempt.prompt)
        except ValueError as problem:
            return unscored(answer, str(problem))
        return no_answer(attempt) if answer is None else (gold_text(gold), answer, tolerance)

    def _settle(self, questions: Sequence[AnswerCheck]) -> dict[AnswerCheck, JobResult]:
        """Each distinct question once: most completions of a prompt answer alike."""
        results: dict[AnswerCheck, JobResult] = {}
        harder: dict[AnswerCheck, None] = {}
        for gold, answer, tolerance in dict.fromkeys(questions):
            try:
                correct = same(gold, answer, tolerance=tolerance)
            except NeedsAlgebra:
                harder[gold, answer, tolerance] = None
            else:
                results[gold, answer, tolerance] = JobResult(correct)
        if harder:
            workers = self._workers or shared_workers()
            done = workers.run([("same", list(question)) for question in harder])
            results.update(zip(harder, done, strict=True))
        return results


def _own_answer(prompt: Prompt) -> tuple[str | None, AnswerCheck | None]:
    """Why the prompt cannot be used, or the question whether its gold is its own answer."""
    if prompt.gold is None or not gold_text(prompt.gold):
        return "no_gold", None
    try:
        tolerance = tolerance_of(prompt)
    except ValueError as problem:
        return str(problem), None
    gold = gold_text(prompt.gold)
    boxed = final_answer(f"The answer is $\\boxed{{{gold}}}$.")
    if boxed is None:
        return f"gold_unreadable: {one_line(gold)}", None
    return None, (gold, boxed, tolerance)


def _another(question: AnswerCheck) -> AnswerCheck:
    return question[0], "1.5", question[2]


def _refusal(gold: str, itself: JobResult, another: JobResult) -> str | None:
    if itself.problem is not None and itself.problem.startswith("Unreadable"):
        return f"gold_unreadable: {one_line(gold)}"
    if itself.problem is not None or another.problem is not None:
        return f"gold_too_hard: {one_line(gold)}"
    return None if itself.value is True else f"gold_not_accepted: {one_line(gold)}"


def _score(question: AnswerCheck, result: JobResult) -> Score:
    gold, answer, _ = question
    if result.problem is not None:
        return unscored(answer, result.problem)
    return verdict(result.value is True, answer, gold)
