"""Leave-one-out advantages against the reference's formula in 60 decimal digits."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.training.rl.advantages import leave_one_out_advantages

drawn = settings(max_examples=150, deadline=None, derandomize=True)
NAN = float("nan")
Reward = float | None


def literal(rewards: Sequence[Reward]) -> list[float]:
    """One group: the reference's formula as it is written, rollout by rollout."""
    found: list[float] = []
    with localcontext() as context:
        context.prec = 60
        for i, own in enumerate(rewards):
            others = [Decimal(r) for j, r in enumerate(rewards) if j != i and r is not None]
            if own is None or not others:
                found.append(0.0)
                continue
            n = len(others)
            baseline = sum(others) / n
            advantage = Decimal(own) - baseline
            if n > 1 and len(set(others)) > 1:
                square = sum(r * r for r in others) / n - baseline * baseline
                advantage /= (square * n / (n - 1)).sqrt() + Decimal("1e-6")
            found.append(float(advantage))
    return found


def fp32_one_pass(rewards: Sequence[float]) -> list[float]:
    """The same in single precision, as the reference computes it."""
    r = np.asarray(rewards, np.float32)
    n = np.float32(len(r) - 1)
    found: list[float] = []
    for i in range(len(r)):
        others = np.delete(r, i)
        baseline = others.sum(dtype=np.float32) / n
        square = (others**2).sum(dtype=np.float32) / n - baseline**2
        s = np.sqrt(max(square, np.float32(0)) * n / (n - np.float32(1)))
        a = r[i] - baseline
        found.append(float(a / (s + np.float32(1e-6)) if s > 0 else a))
    return found


# judges' rewards lie on a grid: what differs differs by much more than rounding
rewards = st.integers(-400, 400).map(lambda k: k / 64)
rows = st.lists(rewards | st.none(), min_size=1, max_size=16)


def test_four_rewards_by_hand():
    # the odd one's others do not differ: 1 − 0. Of the rest: b = 1/3, s² = (1/3 − 1/9) · 3/2 = 1/3
    rest = (-1 / 3) / (3**-0.5 + 1e-6)
    found = leave_one_out_advantages([[1.0, 0.0, 0.0, 0.0]])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[1.0, rest, rest, rest]], rtol=1e-14)


@drawn
@given(rows)
def test_as_the_formula_in_many_digits(row: list[Reward]):
    np.testing.assert_allclose(
        leave_one_out_advantages([row])[0], literal(row), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("common", [0.1, 1 / 3, 3.3, 4.7, -6.1, 1000.1])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_one_odd_reward_in_sixteen_is_not_blown_up(common: float, place: int):
    row = [common] * 16
    row[place] = common - 1.0
    found = leave_one_out_advantages([row])[0]
    assert found[place] == pytest.approx(-1.0)
    np.testing.assert_allclose(found, literal(row), rtol=1e-6)
    assert np.abs(found).max() <= 1.0 + 1e-9


def test_the_trap_is_there_in_single_precision():
    row = [3.3] * 15 + [2.3]
    assert abs(fp32_one_pass(row)[15]) > 100
    np.testing.assert_allclose(leave_one_out_advantages([row])[0, 15], -1.0)


def test_rounding_of_the_rewards_themselves_is_no_spread():
    row = [3.3, 3.3 + 4e-7, 3.3 - 4e-7, 3.3, 2.3]
    assert leave_one_out_advantages([row])[0, 4] == pytest.approx(-1.0)
    assert np.abs(leave_one_out_advantages([row[:4]])).max() < 1e-6


def test_equal_rewards_have_no_advantage():
    for value in (0.0, 0.1, -7.3, 1e9):
        assert np.abs(leave_one_out_advantages([[value] * 16])).max() <= 1e-6


def test_two_are_compared_without_a_deviation():
    assert leave_one_out_advantages([[3.0, 1.0]]).tolist() == [[2.0, -2.0]]


@pytest.mark.parametrize("row", [[2.0], [NAN, 2.0, NAN], [NAN, NAN], [None, 5.0]])
def test_one_scored_or_none_has_no_advantage(row: list[Reward]):
    assert leave_one_out_advantages([row]).tolist() == [[0.0] * len(row)]


@pytest.mark.parametrize("unscored", range(6))
def test_an_unscored_rollout_is_as_if_not_there(unscored: int):
    row = [4.0, 2.5, 3.0, 3.25, 5.0]
    whole = leave_one_out_advantages([row])[0]
    gap = [*row[:unscored], NAN, *row[unscored:]]
    found = leave_one_out_advantages([gap])[0]
    assert found[unscored] == 0.0
    np.testing.assert_allclose(np.delete(found, unscored), whole, rtol=1e-14)


@drawn
@given(st.lists(st.lists(rewards | st.none(), min_size=5, max_size=5), max_size=4))
def test_groups_do_not_touch(groups: list[list[Reward]]):
    if not groups:
        assert leave_one_out_advantages(np.empty((0, 5))).shape == (0, 5)
        return
    together = leave_one_out_advantages(groups)
    assert together.tolist() == [leave_one_out_advantages([g])[0].tolist() for g in groups]


@drawn
@given(st.lists(rewards, min_size=2, max_size=16), st.integers(-64, 64).map(float))
def test_the_level_of_the_rewards_does_not_matter(row: list[float], level: float):
    raised = [r + level for r in row]
    np.testing.assert_allclose(
        leave_one_out_advantages([raised]), leave_one_out_advantages([row]), rtol=1e-7, atol=1e-9
    )


@drawn
@given(rows, st.randoms(use_true_random=False))
def test_permuting_rollouts_permutes_advantages(row: list[Reward], random: Random):
    order = list(range(len(row)))
    random.shuffle(order)
    np.testing.assert_allclose(
        leave_one_out_advantages([[row[k] for k in order]])[0],
        leave_one_out_advantages([row])[0][order],
        rtol=1e-9,
        atol=1e-9,
    )


@drawn
@given(st.lists(rewards, min_size=2, max_size=16))
def test_the_better_reward_has_the_greater_advantage(row: list[float]):
    found = leave_one_out_advantages([row])[0]
    best, worst = int(np.argmax(row)), int(np.argmin(row))
    assert found[best] >= 0 >= found[worst]


@pytest.mark.parametrize("bad", [[1.0, 2.0], 1.0, [[[1.0]]]])
def test_other_shapes_are_refused(bad: object):
    with pytest.raises(ValueError, match="groups × generations"):
        leave_one_out_advantages(bad)


def test_infinite_rewards_are_refused():
    with pytest.raises(ValueError, match="infinite"):
        leave_one_out_advantages([[1.0, float("inf")]])


def test_the_argument_is_not_changed():
    given_rewards = np.array([[1.0, NAN, 2.0]])
    leave_one_out_advantages(given_rewards)
    np.testing.assert_array_equal(given_rewards, [[1.0, NAN, 2.0]])


def test_what_rounding_leaves_of_equal_rewards_is_nothing():
    for size in (3, 7, 11, 22):
        for value in (16.667, 0.1, -3.3, 1e6 / 3):
            assert not leave_one_out_advantages([[value] * size]).any()
