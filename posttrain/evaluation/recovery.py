"""Share of a teacher's lead that a student has recovered, with an interval of the ratio.

    recovery = (after − before) / (teacher − before)      means over the same questions

It may exceed 1, and be negative. A quantised checkpoint has no student before it: its recovery is
after / teacher, the teacher being its source. The interval is Fieller's (1954) for a ratio of
paired means, with Student's t: it is the set of ratios ρ for which the questions' values of after −
before − ρ · (teacher − before) do not differ from 0, so that it exists only where the lead itself
is resolved.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from posttrain.config.eval import RecoveryConfig
from posttrain.evaluation.intervals import by_question
from posttrain.evaluation.metrics import ALL, by_cell, values_of
from posttrain.evaluation.run import Record


class Recovery(NamedTuple):
    """Recovered share of the teacher's lead, and the bounds of its interval."""

    value: float
    low: float
    high: float


def recovery(
    before: Sequence[float],
    after: Sequence[float],
    teacher: Sequence[float],
    *,
    quantile: float = 0.95,
) -> Recovery | None:
    """Recovery of the teacher's lead by the student.

    Args:
        before, after: score of each question by the student before and after training; the mean of
            a question's samples where it has several.
        teacher: scores of the same questions, in the same order, by the teacher.
        quantile: share of experiments whose interval holds the true ratio.

    Returns:
        None where the teacher's lead is not resolved: at this level its interval reaches 0 or
        below, or there are fewer than two questions.

    Raises:
        ValueError: the questions differ in number, a score is not finite, or quantile is no number
            between 0 and 1.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be between 0 and 1, not {quantile!r}")
    if not len(before) == len(after) == len(teacher):
        raise ValueError(
            f"scores of the same questions are needed: {len(before)} before, {len(after)} after, "
            f"{len(teacher)} of the teacher"
        )
    scores = np.asarray([before, after, teacher], dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("a score is not finite: leave the question out of all three")
    questions = len(before)
    if questions < 2:
        return None
    before_scores, after_scores, teacher_scores = scores
    gains = after_scores - before_scores
    leads = teacher_scores - before_scores
    gain = float(gains.mean())
    lead = float(leads.mean())
    # variances and covariance of the two means
    (gain_variance, covariance), (_, lead_variance) = np.cov(gains, leads) / questions
    t_squared = float(special.stdtrit(questions - 1, (1 + quantile) / 2)) ** 2
    # the ratios ρ of the interval: a ρ² − 2 b ρ + c ≤ 0
    a = lead**2 - t_squared * float(lead_variance)
    b = gain * lead - t_squared * float(covariance)
    c = gain**2 - t_squared * float(gain_variance)
    if lead <= 0 or a <= 0:
        return None
    # rounding may leave a root of less than nothing where the two means do not vary
    half = math.sqrt(max(0.0, b * b - a * c))
    return Recovery(gain / lead, (b - half) / a, (b + half) / a)


def recovery_rows(
    records: Mapping[str, Sequence[Record]], config: RecoveryConfig
) -> list[dict[str, Any]]:
    """Rows of recovery, one for each task that has a teacher, setting and reasoning mode.

    A row has the mean accuracy of the student before and after and of the task's teacher, over the
    questions that all three have, and the recovery; None where it is not resolved. `before` is None
    where the recovery is of the teacher's accuracy itself.

    Args:
        records: by checkpoint.
    """
    scores_after = _accuracies(records[config.after])
    if config.before is None:
        scores_before = {cell: dict.fromkeys(scores, 0.0) for cell, scores in scores_after.items()}
    else:
        scores_before = _accuracies(records[config.before])
    teachers = dict.fromkeys(config.teachers.values())
    scores_of_teacher = {teacher: _accuracies(records[teacher]) for teacher in teachers}
    rows: list[dict[str, Any]] = []
    for cell, cell_before in scores_before.items():
        task, setting, thinking = cell
        teacher = config.teachers.get(task)
        if teacher is None:
            continue
        cell_after = scores_after.get(cell, {})
        cell_teacher = scores_of_teacher[teacher].get(cell, {})
        shared = [name for name in cell_before if name in cell_after and name in cell_teacher]
        if not shared:
            continue
        before = [cell_before[name] for name in shared]
        after = [cell_after[name] for name in shared]
        teacher_scores = [cell_teacher[name] for name in shared]
        result = recovery(before, after, teacher_scores)
        row: dict[str, Any] = {
            "task": task,
            "setting": setting,
            "thinking": thinking,
            "teacher": teacher,
            "questions": len(shared),
            "before": None if config.before is None else float(np.mean(before)),
            "after": float(np.mean(after)),
            "teacher_mean": float(np.mean(teacher_scores)),
            "recovery": None if result is None else result._asdict(),
        }
        rows.append(row)
    return rows


def _accuracies(records: Sequence[Record]) -> dict[tuple[str, ...], dict[Hashable, float]]:
    """Mean accuracy of each question, by (task, setting, thinking)."""
    accuracies: dict[tuple[str, ...], dict[Hashable, float]] = {}
    for cell, cell_records in by_cell(records).items():
        values = values_of(cell_records)["accuracy"]
        if cell.task != ALL and values:
            questions = by_question(values)
            means = dict(zip(questions.names, questions.means.tolist(), strict=True))
            accuracies[cell.task, cell.setting, cell.thinking] = means
    return accuracies
