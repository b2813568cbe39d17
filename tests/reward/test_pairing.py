"""Pairs of a group, and base rewards against a slow reading of the paper's equations."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.judge.verdict import Verdict
from reward.pairing import STRATEGIES, all_pairs, base_rewards, both_orders, circular_pairs

Judgements = list[tuple[int, int, Verdict | None]]
HALVES = st.integers(2, 10).map(lambda k: k / 2)  # 1 to 5
verdicts = st.builds(Verdict, HALVES, HALVES, st.integers(1, 6).map(float))


@st.composite
def judged_groups(draw: st.DrawFn) -> tuple[int, Judgements]:
    n = draw(st.integers(2, 9))
    pairs = draw(st.sampled_from(sorted(STRATEGIES)).map(lambda name: STRATEGIES[name](n)))
    return n, [(i, j, draw(st.none() | verdicts)) for i, j in pairs]


def slow_base_rewards(n: int, judgements: Judgements) -> list[float | None]:
    """Equations 2 and 3 and the mean over matches, response by response, in exact fractions."""
    found: list[float | None] = []
    for response in range(n):
        own: list[Fraction] = []
        for i, j, verdict in judgements:
            if verdict is not None and response in (i, j):
                sign = 1 if response == i else -1
                tie = verdict.score_1 == verdict.score_2
                score = verdict.score_1 if response == i else verdict.score_2
                own.append(
                    Fraction(score) + tie * sign * (Fraction("3.5") - Fraction(verdict.ranking))
                )
        found.append(float(sum(own) / len(own)) if own else None)
    return found


def test_a_circle_has_every_response_once_in_each_position():
    assert circular_pairs(4) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert [pairs(n) for pairs in STRATEGIES.values() for n in (0, 1)] == [[]] * 6
    for n in range(2, 20):
        pairs = circular_pairs(n)
        assert sorted(i for i, _ in pairs) == sorted(j for _, j in pairs) == list(range(n))
        assert set(both_orders(n)) == {*pairs, *((j, i) for i, j in pairs)}
        assert sorted(all_pairs(n)) == list(combinations(range(n), 2))


def test_base_rewards_by_hand():
    # response 0: 4 as the first of (0, 1), 5 as the second of (2, 0); 1: 2 and 3 − 1.5; 2: 3 + 1.5
    # and 1
    three = [(0, 1, Verdict(4, 2, 2)), (1, 2, Verdict(3, 3, 5)), (2, 0, Verdict(1, 5, 6))]
    assert base_rewards(3, three) == [4.5, 1.75, 2.75]
    four = [(0, 1, None), (1, 2, None), (2, 3, Verdict(4, 3, 2)), (3, 0, None)]
    assert base_rewards(4, four) == [None, None, 4.0, 3.0]
    assert (base_rewards(1, []), base_rewards(0, [])) == ([None], [])


@pytest.mark.parametrize("pair", [(0, 3), (-1, 0), (1, 1)])
def test_pairs_outside_the_group_and_verdicts_that_are_not_finite_are_refused(pair):
    with pytest.raises(ValueError, match="no pair of two different responses"):
        base_rewards(3, [(*pair, None)])
    with pytest.raises(ValueError, match="finite"):
        base_rewards(2, [(0, 1, Verdict(4, 3, float("nan")))])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(judged_groups(), st.integers(0, 1000))
def test_as_the_slow_reading_and_in_any_order(case: tuple[int, Judgements], seed: int):
    n, judgements = case
    assert base_rewards(n, judgements) == slow_base_rewards(n, judgements)
    thirds = [
        (i, j, v and Verdict(v.score_1 / 3, v.score_2 / 3, v.ranking)) for i, j, v in judgements
    ]
    shuffled = random.Random(seed).sample(thirds, len(thirds))
    assert base_rewards(n, shuffled) == base_rewards(n, thirds)  # to the last bit
