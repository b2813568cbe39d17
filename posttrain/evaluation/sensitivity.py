"""Prompt sensitivity: how far a task's accuracy depends on the template of its questions.

The metric is that of the Nemotron 3 Nano report (arXiv 2512.20848, Appendix E): the population
standard deviation over templates of each one's mean accuracy, over k samples of a question. Samples
alone give a positive value; with v the mean sampling variance of a template's mean and T templates,
T·sd²/v has a noncentral chi-squared distribution with T − 1 degrees of freedom and noncentrality
T·σ²/v, whence floor, debiased value, test of σ = 0 and interval (as for effect sizes in an analysis
of variance: Steiger 2004). σ is that of these questions and templates, which all stay fixed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from posttrain.evaluation.intervals import Floats, wilson
from posttrain.evaluation.metrics import ALL, Cell, by_cell
from posttrain.evaluation.run import Record

Row = dict[str, Any]
Answers = Mapping[str, Mapping[str, Sequence[Record]]]
"""Template → question → its scored records."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Spread of template means, in the unit of the means.

    Attributes:
        sd: population standard deviation of the measured means.
        floor: root mean square of the standard deviation that sampling alone gives; None where it
            is not known, with a single sample of a question.
        debiased: √(sd² − floor²), not below 0.
        low, high: 95 % interval of the true standard deviation.
        p: p-value of a true standard deviation of 0.
    """

    sd: float
    floor: float | None = None
    debiased: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def sensitivity(means: Floats, variances: Floats | None) -> Sensitivity:
    """Spread of template means over the same questions.

    Args:
        means: `(templates,)`.
        variances: `(templates,)`, of each mean from sampling; None where they are not known.
    """
    sd = float(means.std())
    count = len(means)
    if variances is None:
        return Sensitivity(sd)
    noise = float(variances.mean())
    if noise == 0:  # no sampling, as with temperature 0: the spread is exact
        return Sensitivity(sd, 0.0, sd, sd, sd, p=float(sd == 0))
    degrees = count - 1
    statistic = count * sd**2 / noise
    floor = math.sqrt(noise * degrees / count)
    debiased = math.sqrt(max(0.0, sd**2 - floor**2))
    scale = math.sqrt(noise / count)
    # the larger the true spread, the rarer so small a statistic: 97.5 % gives the lower bound
    low = scale * math.sqrt(_noncentrality(statistic, degrees, 0.975))
    high = scale * math.sqrt(_noncentrality(statistic, degrees, 0.025))
    return Sensitivity(sd, floor, debiased, low, high, p=float(special.chdtrc(degrees, statistic)))


def _noncentrality(statistic: float, degrees: int, share: float) -> float:
    """Noncentrality, not below 0, with which a share of draws is at most the statistic."""
    if special.chdtr(degrees, statistic) <= share:
        return 0.0
    # here, because they take longer to import than most evaluations need to be shown
    from scipy.optimize import brentq
    from scipy.stats import ncx2

    def excess(noncentrality: float) -> float:
        return float(ncx2.cdf(statistic, degrees, noncentrality)) - share

    # at ten standard deviations above the statistic the share is far below 2.5 %
    upper = (math.sqrt(statistic) + 10) ** 2
    root: Any = brentq(excess, 1e-12, upper)
    return float(root)


def mean_and_variance(scores: Sequence[Sequence[float]]) -> tuple[float, float | None]:
    """Mean over questions of each question's mean score, and its variance from sampling alone.

    Args:
        scores: of each question, the scores of its samples.

    Returns:
        The mean; and the variance, None where a question has a single sample.
    """
    mean = float(np.mean([np.mean(question_scores) for question_scores in scores]))
    if min(map(len, scores)) < 2:
        return mean, None
    variances = [float(np.var(samples, ddof=1)) / len(samples) for samples in scores]
    return mean, sum(variances) / len(scores) ** 2


def sensitivity_rows(records: Sequence[Record]) -> list[Row]:
    """Rows of each checkpoint, task, setting and reasoning mode that is asked in several templates.

    A row has the spread over templates, the consistency of answers, and the mean of each template;
    no templates where no question has enough scored samples under all of them.
    """
    rows: list[Row] = []
    for cell, cell_records in by_cell(records).items():
        names: dict[str, None] = {}
        for record in cell_records:
            if record.prompt.template is not None:
                names[record.prompt.template] = None
        if cell.task != ALL and len(names) > 1:
            rows.append(_sensitivity_row(cell, cell_records, (*names,)))
    return rows


def _sensitivity_row(cell: Cell, records: Sequence[Record], names: Sequence[str]) -> Row:
    unscored = Counter[str]()
    samples = Counter[str]()
    answers = {name: defaultdict[str, list[Record]](list) for name in names}
    for record in records:
        template = str(record.prompt.template)
        samples[record.prompt.id] += 1
        if record.score.value is None:
            unscored[template] += 1
        else:
            answers[template][record.prompt.task].append(record)
    k = max(samples.values())
    asked = dict.fromkeys(record.prompt.task for record in records)
    # the same questions under every template, else what one cannot read would move its mean
    questions: list[str] = []
    for question in asked:
        fewest = min(len(answers[name][question]) for name in names)
        if fewest >= min(k, 2):
            questions.append(question)
    if not questions:
        return {**cell._asdict(), "questions": 0, "unscored": dict(unscored), "templates": []}
    templates: list[Row] = []
    variances: list[float | None] = []
    for name in names:
        scores = [_scores(answers[name][question]) for question in questions]
        mean, variance = mean_and_variance(scores)
        variances.append(variance)
        # as many independent samples as carry this variance; at 0 and 1 all of them
        trials = mean * (1 - mean) / variance if variance else sum(map(len, scores))
        low, high = wilson(mean, trials)
        row: Row = {"template": name, "mean": mean, "low": low, "high": high}
        templates.append(row | {"unscored": unscored[name]})
    means = np.asarray([row["mean"] for row in templates])
    known_variances = None if None in variances else np.asarray(variances, dtype=float)
    between, within = consistency(answers, questions)
    return {
        **cell._asdict(),
        "questions": len(questions),
        "left_out": len(asked) - len(questions),
        "k": k,
        **asdict(sensitivity(means, known_variances)),
        "consistency": between,
        "consistency_within": within,
        "unscored": dict(unscored),
        "templates": templates,
    }


def _scores(records: Sequence[Record]) -> list[float]:
    return [record.score.value or 0.0 for record in records]


def consistency(answers: Answers, questions: Sequence[str]) -> tuple[float | None, float | None]:
    """Shares of pairs of answers to a question that agree, between templates and within one.

    The measure is that of NeMo Skills' robustness summary. Two answers agree where they read the
    same or both are right; an answer that could not be read agrees with none.

    Returns:
        The share of pairs of two templates, and that of pairs of one; None where there is no pair.
    """
    all_pairs = 0
    all_agreeing = 0
    pairs_within = 0
    agreeing_within = 0
    for question in questions:
        total = Counter[str | None]()
        for template_answers in answers.values():
            counts = Counter(map(_answer_key, template_answers[question]))
            total += counts
            pairs_within += math.comb(counts.total(), 2)
            agreeing_within += _agreeing_pairs(counts)
        all_pairs += math.comb(total.total(), 2)
        all_agreeing += _agreeing_pairs(total)
    pairs_between = all_pairs - pairs_within
    agreeing_between = all_agreeing - agreeing_within
    between = agreeing_between / pairs_between if pairs_between else None
    within = agreeing_within / pairs_within if pairs_within else None
    return between, within


def _agreeing_pairs(counts: Mapping[str | None, int]) -> int:
    """Pairs of equal answers, from the count of each; unread and empty answers never agree."""
    return sum(math.comb(count, 2) for answer, count in counts.items() if answer)


def _answer_key(record: Record) -> str | None:
    """Text that answers are compared by: one for all right answers; None for an unread answer."""
    return "\0right" if record.score.value == 1.0 else record.score.answer
