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
from scipy import stats
from scipy.optimize import brentq

from posttrain.evaluation.intervals import Floats, wilson
from posttrain.evaluation.metrics import ALL, Cell, by_cell
from posttrain.evaluation.run import Record

Row = dict[str, Any]
Answers = Mapping[str, Mapping[str, Sequence[Record]]]
"""Template → question → its scored records."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The spread of template means, in the unit of the means.

    Attributes:
        sd: population standard deviation of the means as measured.
        floor: the root mean square that sampling alone gives; None: not known, with one sample.
        debiased: sd with the floor's square taken off its own, not below 0.
        low, high: 95 % interval of the true value.
        p: of a true value of 0.
    """

    sd: float
    floor: float | None = None
    debiased: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def sensitivity(means: Floats, variances: Floats | None) -> Sensitivity:
    """The spread of template means `(templates,)` on the same questions; `variances` of each mean
    are from sampling, None where not known."""
    sd, count = float(means.std()), len(means)
    if variances is None:
        return Sensitivity(sd)
    noise = float(variances.mean())
    if noise == 0:  # nothing was left to chance
        return Sensitivity(sd, 0.0, sd, sd, sd, p=float(sd == 0))
    degrees, found, scale = count - 1, count * sd**2 / noise, math.sqrt(noise / count)
    floor = math.sqrt(noise * degrees / count)
    debiased = math.sqrt(max(0.0, sd**2 - floor**2))
    low, high = (scale * math.sqrt(_noncentrality(found, degrees, at)) for at in (0.975, 0.025))
    return Sensitivity(sd, floor, debiased, low, high, p=float(stats.chi2.sf(found, degrees)))


def _noncentrality(value: float, degrees: int, share: float) -> float:
    """The noncentrality with which a share of draws is at most `value`, not below 0."""
    if stats.chi2.cdf(value, degrees) <= share:
        return 0.0
    most = (math.sqrt(value) + 10) ** 2
    root: Any = brentq(lambda c: float(stats.ncx2.cdf(value, degrees, c)) - share, 1e-12, most)
    return float(root)


def mean_and_variance(scores: Sequence[Sequence[float]]) -> tuple[float, float | None]:
    """The mean over questions of each one's mean, and its variance from sampling alone: None where
    a question has a single sample."""
    mean = float(np.mean([np.mean(own) for own in scores]))
    if min(map(len, scores)) < 2:
        return mean, None
    noise = sum(float(np.var(own, ddof=1)) / len(own) for own in scores)
    return mean, noise / len(scores) ** 2


def sensitivity_rows(records: Sequence[Record]) -> list[Row]:
    """A row for every checkpoint × task × setting × mode that is asked in several templates."""
    rows: list[Row] = []
    for cell, own in by_cell(records).items():
        names = dict.fromkeys(r.prompt.template for r in own if r.prompt.template is not None)
        if cell.task != ALL and len(names) > 1:
            rows.append(_row(cell, own, (*names,)))
    return rows


def _row(cell: Cell, records: Sequence[Record], names: Sequence[str]) -> Row:
    unscored, samples = Counter[str](), Counter[str]()
    answers = {name: defaultdict[str, list[Record]](list) for name in names}
    for record in records:
        template = str(record.prompt.template)
        samples[record.prompt.id] += 1
        if record.score.value is None:
            unscored[template] += 1
        else:
            answers[template][record.prompt.task].append(record)
    k = max(samples.values())
    every = dict.fromkeys(record.prompt.task for record in records)
    # the same questions under every template, else what one cannot read would move its mean
    questions = [
        question
        for question in every
        if all(len(answers[name][question]) >= min(k, 2) for name in names)
    ]
    if not questions:
        return {**cell._asdict(), "questions": 0, "unscored": dict(unscored), "templates": []}
    templates: list[Row] = []
    variances: list[float | None] = []
    for name in names:
        scores = [[r.score.value or 0.0 for r in answers[name][q]] for q in questions]
        mean, variance = mean_and_variance(scores)
        variances.append(variance)
        # as many independent samples as carry this variance; at 0 and 1 all of them
        trials = mean * (1 - mean) / variance if variance else sum(map(len, scores))
        low, high = wilson(mean, trials)
        row: Row = {"template": name, "mean": mean, "low": low, "high": high}
        templates.append(row | {"unscored": unscored[name]})
    means = np.asarray([row["mean"] for row in templates])
    found = sensitivity(means, None if None in variances else np.asarray(variances, dtype=float))
    between, within = consistency(answers, questions)
    return {
        **cell._asdict(),
        "questions": len(questions),
        "left_out": len(every) - len(questions),
        "k": k,
        **asdict(found),
        "consistency": between,
        "consistency_within": within,
        "unscored": dict(unscored),
        "templates": templates,
    }


def consistency(answers: Answers, questions: Sequence[str]) -> tuple[float | None, float | None]:
    """Agreeing pairs of answers to one question over all pairs, as in NeMo Skills' robustness
    summary: between two templates, and within one; None where there is no pair. Two answers agree
    where they read the same or both are right; one that is not read never does."""
    agreeing, pairs = Counter[bool](), Counter[bool]()
    for question in questions:
        counts = {name: Counter(map(_answer, own[question])) for name, own in answers.items()}
        total = sum(counts.values(), Counter[str | None]())
        within = sum(math.comb(own.total(), 2) for own in counts.values())
        same = sum(math.comb(n, 2) for own in counts.values() for a, n in own.items() if a)
        pairs[True] += within
        agreeing[True] += same
        pairs[False] += math.comb(total.total(), 2) - within
        agreeing[False] += sum(math.comb(n, 2) for a, n in total.items() if a) - same
    between, within = (agreeing[k] / pairs[k] if pairs[k] else None for k in (False, True))
    return between, within


def _answer(record: Record) -> str | None:
    """What an answer is compared by; None: it was not read."""
    return "\0right" if record.score.value == 1.0 else record.score.answer
