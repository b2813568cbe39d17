"""Figures of clustered samples, with intervals: the k samples of a question are not k questions.

A rate is the mean over questions of the mean over each one's samples. Its interval is Wilson's
(1927) with an effective number of samples, as for surveys (Korn and Graubard 1998; Franco et al.
2019): p(1 − p) over the cluster-robust variance, at least the number of questions. It has a width
at 0 and at 1, where a bootstrap has none, and takes scores between 0 and 1 too, as a tie's. Means
have Student's interval over questions. Quantiles of lengths have percentile bootstraps that draw
questions, and too few questions bound neither.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

Z95 = 1.959963984540054  # normal quantile of a two-sided 95 % interval
DRAWS = 1000  # of a bootstrap
# Of fewer questions than these the longest is, in more than 2.5 % of data sets, below the true
# median or 90th percentile: no interval within the data can hold it often enough.
_LEAST_FOR_MEDIAN = 6
_LEAST_FOR_P90 = 36
Floats = np.ndarray[Any, np.dtype[np.float64]]
Values = Sequence[tuple[float, Hashable]]
"""Values of a figure, each with the question that it belongs to."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Figure with its 95 % interval, and the number of its questions and samples.

    Attributes:
        low, high: None where the questions are too few for an interval of such a figure.
    """

    value: float
    low: float | None
    high: float | None
    questions: int
    samples: int


@dataclass(frozen=True, slots=True)
class Clustered:
    """Samples grouped by question, with the questions in order of first sight.

    Attributes:
        names, means, counts: `(questions,)`; mean value and number of samples of each question.
        index: `(samples,)`, index of each sample's question.
    """

    names: tuple[Hashable, ...]
    means: Floats
    counts: Floats
    index: np.ndarray[Any, np.dtype[np.int64]]


def by_question(values: Values) -> Clustered:
    """Group values by question: each question's mean and number of samples."""
    index_of_question: dict[Hashable, int] = {}
    for _, question in values:
        index_of_question.setdefault(question, len(index_of_question))
    questions = len(index_of_question)
    index = np.asarray([index_of_question[question] for _, question in values], dtype=np.int64)
    counts = np.bincount(index, minlength=questions).astype(float)
    weights = np.asarray([value for value, _ in values], dtype=float)
    sums = np.bincount(index, weights=weights, minlength=questions)
    return Clustered(tuple(index_of_question), sums / np.maximum(counts, 1), counts, index)


def rate(values: Values) -> Estimate | None:
    """Estimate a share in [0, 1] with its interval; None without a sample."""
    if not values:
        return None
    return rate_of_means(by_question(values).means, samples=len(values))


def rate_of_means(means: Floats, *, samples: int) -> Estimate:
    """Estimate a share from the mean of each question.

    Args:
        means: mean of each question, `(questions,)`.
        samples: number of samples behind these means.
    """
    share = float(np.clip(means.mean(), 0.0, 1.0))
    low, high = wilson(share, effective_samples(means))
    return Estimate(share, low, high, questions=len(means), samples=samples)


def p_of_half(means: Floats) -> float:
    """Two-sided p-value of a true share of one half.

    It is that of the score test which the interval of `rate_of_means` inverts: below 0.05 exactly
    if that interval leaves out one half.
    """
    z = 2 * abs(float(means.mean()) - 0.5) * math.sqrt(effective_samples(means))
    return 2 * float(special.ndtr(-z))


def effective_samples(means: Floats) -> float:
    """Number of independent yes-or-no samples with the same information, at least one a question.

    A t quantile with questions − 1 degrees of freedom replaces the normal one, as in Korn and
    Graubard (1998).
    """
    questions = len(means)
    share = float(means.mean())
    if questions == 1:
        return 1.0
    effective = float(questions)
    variance = float(means.var(ddof=1)) / questions
    if variance > 0 and 0 < share < 1:
        effective = max(share * (1 - share) / variance, questions)
    return effective * (Z95 / float(special.stdtrit(questions - 1, 0.975))) ** 2


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval of a share; `trials` need not be a whole number."""
    spread = 1 + Z95 * Z95 / trials
    centre = (share + Z95 * Z95 / (2 * trials)) / spread
    half = Z95 / spread * math.sqrt(share * (1 - share) / trials + (Z95 / (2 * trials)) ** 2)
    # at the ends the exact bound is 0 or 1; rounding must not move it off the share
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Welch's 95 % interval of mean(b) − mean(a), from at least two independent draws a side."""
    change = float(np.mean(b) - np.mean(a))
    variance_a = float(np.var(a, ddof=1)) / len(a)
    variance_b = float(np.var(b, ddof=1)) / len(b)
    variance = variance_a + variance_b
    if variance == 0:
        return change, change
    degrees = variance**2 / (variance_a**2 / (len(a) - 1) + variance_b**2 / (len(b) - 1))
    half = float(special.stdtrit(degrees, 0.975)) * math.sqrt(variance)
    return change - half, change + half


def ratio(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Mean over all items, from the sums and counts of clusters, with its 95 % interval.

    The interval is of the jackknife variance over clusters, with their t quantile: tokens of one
    row are not independent, and rows differ in length.

    Returns:
        An estimate whose questions are the clusters, and whose samples are the items.
    """
    assert len(sums) == len(counts) > 1, "a variance needs two clusters"
    items = int(np.sum(counts))
    value = float(np.sum(sums)) / items
    clusters = len(sums)
    # change of the ratio, times the number of items, where one cluster is left out
    changes = (np.asarray(sums) - value * np.asarray(counts)) / (1 - np.asarray(counts) / items)
    error = math.sqrt((clusters - 1) / clusters * float(np.sum(changes**2))) / items
    half = float(special.stdtrit(clusters - 1, 0.975)) * error
    return Estimate(value, value - half, value + half, questions=clusters, samples=items)


def mean(values: Values) -> Estimate | None:
    """Estimate a mean over samples with its interval, as `ratio`; None without a sample."""
    if not values:
        return None
    clustered = by_question(values)
    if len(clustered.names) == 1:
        return Estimate(float(clustered.means[0]), None, None, questions=1, samples=len(values))
    counts = clustered.counts.astype(int)
    return ratio((clustered.means * clustered.counts).tolist(), counts.tolist())


def pass_at(k: int, *, samples: int, solved: int) -> float:
    """Unbiased pass@k: probability that k of n samples include a solved one.

    It is 1 − C(n − c, k) / C(n, k) for c solved samples (Chen et al. 2021, arXiv 2107.03374).
    """
    assert 1 <= k <= samples
    assert 0 <= solved <= samples
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


@dataclass(frozen=True, slots=True)
class Length:
    """Mean, median and 90th percentile of a length."""

    mean: Estimate
    median: Estimate
    p90: Estimate


def length(values: Values, *, seed: int) -> Length | None:
    """Mean, median and 90th percentile over samples, with intervals; None without samples.

    Args:
        seed: of the bootstrap draws.
    """
    mean_length = mean(values)
    if mean_length is None:
        return None
    clustered = by_question(values)
    lengths = np.asarray([value for value, _ in values], dtype=float)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    question_index = clustered.index[order]
    questions = len(clustered.names)
    draws = np.random.default_rng(seed).multinomial(
        questions, np.full(questions, 1 / questions), size=DRAWS
    )
    resampled = [_quantiles(sorted_lengths, weights[question_index]) for weights in draws]
    lows, highs = np.quantile(np.asarray(resampled), [0.025, 0.975], axis=0)
    measured = _quantiles(sorted_lengths, np.ones(len(lengths)))
    estimates: list[Estimate] = []
    least_questions = (_LEAST_FOR_MEDIAN, _LEAST_FOR_P90)
    for value, low, high, least in zip(measured, lows, highs, least_questions, strict=True):
        bounds = (float(low), float(high)) if questions >= least else (None, None)
        estimates.append(Estimate(value, *bounds, questions, len(lengths)))
    return Length(mean_length, *estimates)


def _quantiles(sorted_lengths: Floats, weights: Floats) -> tuple[float, float]:
    """Weighted median and 90th percentile."""
    cumulated = np.cumsum(weights)
    total = float(cumulated[-1])
    median, p90 = np.searchsorted(cumulated, [0.5 * total, 0.9 * total], side="left")
    return float(sorted_lengths[median]), float(sorted_lengths[p90])
