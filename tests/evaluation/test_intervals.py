"""Intervals: Wilson's against published values; clustered samples: coverage, widths at the ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from posttrain.evaluation.intervals import Estimate, Length, length, pass_at, rate, welch, wilson
from posttrain.report.section import estimate
from tests.evaluation.coverage import Cell, measure_win_rate


def rated(values: Iterable[float], questions: Iterable[object]) -> Estimate:
    found = rate([*zip(values, questions, strict=True)])
    assert found is not None
    return found


def lengths(values: Iterable[float], questions: Iterable[object]) -> Length:
    found = length([*zip(values, questions, strict=True)], seed=0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_values(successes, trials, low, high):
    assert wilson(successes / trials, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_rate_at_its_end_has_a_width_and_more_samples_of_a_question_add_nothing(value: float):
    once = rated([value] * 200, range(200))
    often = rated([value] * 3200, [k // 16 for k in range(3200)])
    assert 0.01 < once.high - once.low < 0.03
    assert (often.low, often.high) == (once.low, once.high)


def test_the_interval_covers_as_often_as_it_says():
    # questions differ: a beta-binomial, rate 5 %, as an undeclared-call rate may be
    rng = np.random.default_rng(1)
    hits, runs = 0, 600
    for _ in range(runs):
        chances = rng.beta(0.25, 4.75, size=150)
        means = rng.binomial(4, chances) / 4
        found = rated(np.repeat(means, 4), [k // 4 for k in range(600)])
        hits += found.low <= 0.05 <= found.high
    assert 0.925 <= hits / runs <= 0.985


@pytest.mark.parametrize("ties", [0.0, 0.3])
@pytest.mark.parametrize("questions", [10, 20])
def test_a_win_rate_over_few_questions_is_covered_and_agrees_with_its_p(
    questions: int, ties: float
):
    """Student's t covers 65 % of ten duels of which nine in ten are lost."""
    measured = measure_win_rate(Cell(questions, 1, "hard"), ties=ties, trials=400)
    assert measured.agree
    assert 0.92 <= measured.coverage <= 0.995


def test_every_question_weighs_the_same():
    found = rated([1.0, 0.0, 0.0, 0.0], ["a", "b", "b", "b"])
    assert (found.value, found.questions, found.samples) == (0.5, 2, 4)


@pytest.mark.parametrize(
    ("k", "samples", "solved", "expected"),
    [(1, 4, 1, 0.25), (4, 4, 1, 1.0), (2, 4, 2, 1 - 1 / 6), (3, 5, 0, 0.0), (2, 3, 3, 1.0)],
)
def test_pass_at_k(k: int, samples: int, solved: int, expected: float):
    assert pass_at(k, samples=samples, solved=solved) == pytest.approx(expected)


def test_length_statistics_and_their_intervals():
    values = [float(k) for k in range(1, 101)]
    found = lengths(values, range(100))
    assert found.mean.value == pytest.approx(50.5)
    assert found.median.value == 50.0
    assert found.p90.value == 90.0
    for figure in (found.mean, found.median, found.p90):
        assert figure.low < figure.value < figure.high
    assert 10 < found.mean.high - found.mean.low < 13  # 2 · 1.96 · 28.9 / √100 = 11.3
    assert found == lengths(values, range(100))


@pytest.mark.parametrize("questions", [2, 5, 36])
def test_intervals_of_lengths_hold_the_truth_or_are_not_given(questions: int):
    """Answers of three samples a question whose lengths vary by question and by sample."""
    rng = np.random.default_rng(questions)
    truths = {"mean": 500.0, "median": 500.0, "p90": 500 + 1.2816 * (100**2 + 50**2) ** 0.5}
    held = dict.fromkeys(truths, 0)
    given = dict.fromkeys(truths, 0)
    trials = 200
    for _ in range(trials):
        means = rng.normal(500, 100, questions)
        drawn = rng.normal(np.repeat(means, 3), 50)
        found = lengths(drawn.tolist(), np.repeat(np.arange(questions), 3).tolist())
        for name, truth in truths.items():
            figure = getattr(found, name)
            if figure.low is not None:
                given[name] += 1
                held[name] += figure.low <= truth <= figure.high
    least = {"mean": 2, "median": 6, "p90": 36}
    for name in truths:
        assert given[name] == (trials if questions >= least[name] else 0)
        assert held[name] >= 0.86 * given[name]
    assert held["mean"] >= 0.9 * trials


def test_the_length_of_one_question_has_no_interval():
    found = lengths([100.0, 300.0], ["a", "a"])
    assert (found.mean.value, found.mean.low, found.mean.high) == (200.0, None, None)
    assert estimate(asdict(found.mean)) == "200.0"


def test_length_draws_questions_not_samples():
    values = [float(k // 10) for k in range(1000)]
    alone = lengths(values, range(1000))
    together = lengths(values, [k // 10 for k in range(1000)])
    wide, narrow = together.mean.high - together.mean.low, alone.mean.high - alone.mean.low
    assert wide == pytest.approx(narrow * 10**0.5, rel=0.15)


def test_welch_is_the_interval_of_scipy_and_has_no_width_without_spread():
    a, b = [1.0, 2.0, 4.0, 4.5], [3.0, 9.0, 5.0]
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert welch(a, b) == pytest.approx((expected.low, expected.high))
    assert welch([1.0, 1.0], [3.0, 3.0]) == (2.0, 2.0)
