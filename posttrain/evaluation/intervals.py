"""Figures of clustered samples, with intervals: the k samples of a question are not k questions.

A rate is the mean over questions of the mean over each one's samples. Its interval is Wilson's
(1927) with an effective number of samples, as for surveys (Korn and Graubard 1998; Franco et al.
2019): p(1 − p) over the cluster-robust variance, at least the number of questions. It has a width
at 0 and at 1, where a bootstrap has none, and takes scores between 0 and 1 too, as a tie's. Lengths
have percentile bootstraps that draw questions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Z95 = 1.959963984540054  # two-sided 95 %
DRAWS = 1000
Floats = np.ndarray[Any, np.dtype[np.float64]]
Values = Sequence[tuple[float, Hashable]]
"""The values of a figure, each with the question that it belongs to."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval, and the number of its questions and samples."""

    value: float
    low: float
    high: float
    questions: int
    samples: int


@dataclass(frozen=True, slots=True)
class Clustered:
    """Samples by question, in order of first sight; `index` is the question of each sample."""

    names: tuple[Hashable, ...]
    means: Floats
    counts: Floats
    index: np.ndarray[Any, np.dtype[np.int64]]


def by_question(values: Values) -> Clustered:
    places = {name: i for i, name in enumerate(dict.fromkeys(name for _, name in values))}
    index = np.asarray([places[name] for _, name in values], dtype=np.int64)
    counts = np.bincount(index, minlength=len(places)).astype(float)
    weights = np.asarray([value for value, _ in values], dtype=float)
    sums = np.bincount(index, weights=weights, minlength=len(places))
    return Clustered(tuple(places), sums / np.maximum(counts, 1), counts, index)


def rate(values: Values) -> Estimate | None:
    """A share in [0, 1] with its interval; None without a sample."""
    return rate_of_means(by_question(values).means, samples=len(values)) if values else None


def rate_of_means(means: Floats, *, samples: int) -> Estimate:
    """A share from the means of its questions, which `samples` samples have."""
    share = float(np.clip(means.mean(), 0.0, 1.0))
    low, high = wilson(share, effective_samples(means))
    return Estimate(share, low, high, questions=len(means), samples=samples)


def p_of_half(means: Floats) -> float:
    """Two-sided p of a true share of one half, by the score test that the interval of
    `rate_of_means` inverts: below 0.05 exactly where that leaves out one half."""
    z = 2 * abs(float(means.mean()) - 0.5) * math.sqrt(effective_samples(means))
    return 2 * float(stats.norm.sf(z))


def effective_samples(means: Floats) -> float:
    """The number of independent yes-or-no samples that carry as much, at least one a question. The
    t quantile of so many questions stands in for the normal one, as in Korn and Graubard."""
    questions, share = len(means), float(means.mean())
    if questions == 1:
        return 1.0
    effective, variance = float(questions), float(means.var(ddof=1)) / questions
    if variance > 0 and 0 < share < 1:
        effective = max(share * (1 - share) / variance, questions)
    return effective * (Z95 / float(stats.t.ppf(0.975, questions - 1))) ** 2


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval for a share of a number of trials that need not be whole."""
    spread = 1 + Z95 * Z95 / trials
    centre = (share + Z95 * Z95 / (2 * trials)) / spread
    half = Z95 / spread * math.sqrt(share * (1 - share) / trials + (Z95 / (2 * trials)) ** 2)
    # at the ends the exact bound is 0 or 1; rounding must not move it off the share
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return low, 1.0 if share == 1 else min(1.0, centre + half)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Welch's 95 % interval of mean(b) − mean(a), of two or more independent draws on each side."""
    change = float(np.mean(b) - np.mean(a))
    errors = [float(np.var(side, ddof=1)) / len(side) for side in (a, b)]
    if not any(errors):
        return change, change
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(side) - 1) for error, side in zip(errors, (a, b), strict=True)
    )
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(errors))
    return change - half, change + half


def pass_at(k: int, *, samples: int, solved: int) -> float:
    """The chance that k of the samples hold a solved one: 1 − C(n − c, k) / C(n, k), unbiased
    (Chen et al. 2021, arXiv 2107.03374)."""
    assert 1 <= k <= samples
    assert 0 <= solved <= samples
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


@dataclass(frozen=True, slots=True)
class Length:
    """A length's mean, median and 90th percentile."""

    mean: Estimate
    median: Estimate
    p90: Estimate


def length(values: Values, *, seed: int) -> Length | None:
    """Mean, median and 90th percentile over samples, with bootstrap intervals (`seed` is of their
    draws); None without any."""
    if not values:
        return None
    clustered = by_question(values)
    all_values = np.asarray([value for value, _ in values], dtype=float)
    order = np.argsort(all_values, kind="stable")
    ordered, of = all_values[order], clustered.index[order]
    questions = len(clustered.names)
    draws = np.random.default_rng(seed).multinomial(
        questions, np.full(questions, 1 / questions), size=DRAWS
    )
    rows = [_statistics(ordered, weights[of]) for weights in draws]
    bounds = np.quantile(np.asarray(rows), [0.025, 0.975], axis=0)
    whole = _statistics(ordered, np.ones(len(ordered)))
    return Length(*(
        Estimate(value, float(low), float(high), questions, len(ordered))
        for value, low, high in zip(whole, *bounds, strict=True)
    ))  # fmt: skip


def _statistics(ordered: Floats, weights: Floats) -> tuple[float, float, float]:
    total = np.cumsum(weights)
    last = float(total[-1])
    at = np.searchsorted(total, [0.5 * last, 0.9 * last], side="left")
    mean = float((ordered * weights).sum() / last)
    return mean, float(ordered[at[0]]), float(ordered[at[1]])
