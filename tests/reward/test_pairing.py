"""Pairs of a group, and base rewards against a slow reading of the paper's equations."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.judge.verdict import Verdict
from reward.pairing import (
    STRATEGIES,
    all_pairs,
    base_rewards,
    both_orders,
    circular_pairs,
)

Judgements = list[tuple[int, int, Verdict | None]]
drawn = settings(max_examples=80, deadline=None, derandomize=True)
HALVES = st.integers(2, 10).map(lambda k: k / 2)  # 1 to 5
verdicts = st.builds(Verdict, HALVES, HALVES, st.integers(1, 6).map(float))


@st.composite
def judged_groups(draw: st.DrawFn) -> tuple[int, Judgements]:
    n = draw(st.integers(2, 9))
    pairs = draw(st.sampled_from(sorted(STRATEGIES)).map(lambda name: STRATEGIES[name](n)))
    return n, [(i, j, draw(st.none() | verdicts)) for i, j in pairs]


def slow_base_rewards(n: int, judgements: Judgements) -> list[Fraction | None]:
    """Equations 2 and 3 and the mean over matches, response by response, in exact fractions."""
    found: list[Fraction | None] = []
    for response in range(n):
        total, matches = Fraction(0), 0
        for i, j, verdict in judgements:
            if verdict is None or response not in (i, j):
                continue
            own, other = verdict.score_1, verdict.score_2
            towards_first = Fraction("3.5") - Fraction(verdict.ranking)
            if response == j:
                own, other, towards_first = other, own, -towards_first
            total += Fraction(own) + (towards_first if own == other else 0)
            matches += 1
        found.append(total / matches if matches else None)
    return found


def test_a_circle_has_every_response_once_in_each_position():
    assert circular_pairs(4) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert [pairs(n) for pairs in STRATEGIES.values() for n in (0, 1)] == [[]] * 6
    for n in range(2, 20):
        pairs = circular_pairs(n)
        assert sorted(i for i, _ in pairs) == sorted(j for _, j in pairs) == list(range(n))
        assert set(both_orders(n)) == {*pairs, *((j, i) for i, j in pairs)}
        assert sorted(all_pairs(n)) == list(combinations(range(n), 2))


def test_a_circle_of_three_by_hand():
    # response 0: 4 as the first of (0, 1), 5 as the second of (2, 0); 1: 2 and 3 − 1.5; 2: 3 + 1.5
    # and 1
    judged: Judgements = [
        (0, 1, Verdict(4, 2, 2)),
        (1, 2, Verdict(3, 3, 5)),
        (2, 0, Verdict(1, 5, 6)),
    ]
    assert base_rewards(3, judged) == [4.5, 1.75, 2.75]


def test_a_response_without_any_judgement_is_unscored():
    judged: Judgements = [(0, 1, None), (1, 2, None), (2, 3, Verdict(4, 3, 2)), (3, 0, None)]
    assert base_rewards(4, judged) == [None, None, 4.0, 3.0]
    assert base_rewards(1, []) == [None]
    assert base_rewards(0, []) == []


@pytest.mark.parametrize("pair", [(0, 3), (3, 0), (-1, 0), (1, 1)])
def test_pairs_outside_the_group_are_refused(pair: tuple[int, int]):
    with pytest.raises(ValueError, match="no pair of two different responses"):
        base_rewards(3, [(*pair, None)])


def test_a_verdict_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        base_rewards(2, [(0, 1, Verdict(4, 3, float("nan")))])


@drawn
@given(judged_groups())
def test_as_the_slow_reading(case: tuple[int, Judgements]):
    n, judgements = case
    expected = slow_base_rewards(n, judgements)
    assert base_rewards(n, judgements) == [None if e is None else float(e) for e in expected]


@drawn
@given(judged_groups(), st.integers(0, 1000))
def test_the_order_of_arrival_changes_no_bit(case: tuple[int, Judgements], seed: int):
    n, judgements = case
    thirds = [
        (i, j, v and Verdict(v.score_1 / 3, v.score_2 / 3, v.ranking)) for i, j, v in judgements
    ]
    shuffled = random.Random(seed).sample(thirds, len(thirds))
    assert base_rewards(n, shuffled) == base_rewards(n, thirds)
