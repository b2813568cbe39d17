"""Share of a teacher's lead that a student has recovered, with an interval of the ratio.

    recovery = (after − before) / (teacher − before)      means over the same questions

It may exceed 1, and be negative. The interval is Fieller's (1954) for a ratio of paired means, with
Student's t: it is the set of ratios ρ for which the questions' values of after − before −
ρ · (teacher − before) do not differ from 0, so that it exists only where the lead itself is
resolved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from posttrain.config.eval import RecoveryConfig
from posttrain.evaluation.intervals import Clustered, by_question
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
    gains = scores[1] - scores[0]
    leads = scores[2] - scores[0]
    gain = float(gains.mean())
    lead = float(leads.mean())
    # variances and covariance of the two means
    (gain_variance, covariance), (_, lead_variance) = np.cov(gains, leads) / questions
    t_squared = float(stats.t.ppf((1 + quantile) / 2, questions - 1)) ** 2
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
    """A row for each task × setting × mode: mean accuracy of the student before and after and of
    the task's teacher, over the questions that all three have, and the recovery."""
    accuracies: dict[str, dict[tuple[str, ...], Clustered]] = {}
    for checkpoint in {config.before, config.after, *config.teachers.values()}:
        cells = by_cell(records[checkpoint])
        accuracies[checkpoint] = {
            cell[1:]: by_question(values)
            for cell, rows in cells.items()
            if cell.task != ALL and (values := values_of(rows)["accuracy"])
        }
    rows: list[dict[str, Any]] = []
    for cell, before in accuracies[config.before].items():
        teacher = config.teachers.get(cell[0])
        if teacher is None:
            continue
        sides = [before, accuracies[config.after].get(cell), accuracies[teacher].get(cell)]
        scores = _shared_scores([side for side in sides if side is not None])
        if None in sides or not scores[0]:
            continue
        result = recovery(*scores)
        means = [float(np.mean(values)) for values in scores]
        rows.append(
            {
                "task": cell[0],
                "setting": cell[1],
                "thinking": cell[2],
                "teacher": teacher,
                "questions": len(scores[0]),
                "before": means[0],
                "after": means[1],
                "teacher_mean": means[2],
                "recovery": None if result is None else result._asdict(),
            }
        )
    return rows


def _shared_scores(sides: Sequence[Clustered]) -> list[list[float]]:
    """Mean scores of the questions that all sides have, in one order."""
    of_question = [dict(zip(side.names, side.means.tolist(), strict=True)) for side in sides]
    shared = [name for name in of_question[0] if all(name in scores for scores in of_question[1:])]
    return [[scores[name] for name in shared] for scores in of_question]
