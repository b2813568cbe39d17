"""Leave-one-out advantages against the reference's formula in 60 decimal digits."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

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


# judges' rewards lie on a grid: what differs differs by much more than rounding
rewards = st.integers(-400, 400).map(lambda k: k / 64)


def test_four_rewards_by_hand():
    # the odd one's others do not differ: 1 − 0. Of the rest: b = 1/3, s² = (1/3 − 1/9) · 3/2 = 1/3
    rest = (-1 / 3) / (3**-0.5 + 1e-6)
    found = leave_one_out_advantages([[1.0, 0.0, 0.0, 0.0]])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[1.0, rest, rest, rest]], rtol=1e-14)


@drawn
@given(st.lists(rewards | st.none(), min_size=1, max_size=16))
def test_as_the_formula_in_many_digits(row: list[Reward]):
    np.testing.assert_allclose(
        leave_one_out_advantages([row])[0], literal(row), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("common", [0.1, 1 / 3, 3.3, -6.1, 1000.1])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_one_odd_reward_in_sixteen_is_not_blown_up(common: float, place: int):
    """In single precision and one pass, as the reference computes it, 3.3 gives hundreds."""
    row = [common] * 16
    row[place] = common - 1.0
    found = leave_one_out_advantages([row])[0]
    assert found[place] == pytest.approx(-1.0)
    np.testing.assert_allclose(found, literal(row), rtol=1e-6)
    assert np.abs(found).max() <= 1.0 + 1e-9


def test_rounding_of_the_rewards_themselves_is_no_spread():
    row = [3.3, 3.3 + 4e-7, 3.3 - 4e-7, 3.3, 2.3]
    assert leave_one_out_advantages([row])[0, 4] == pytest.approx(-1.0)
    assert np.abs(leave_one_out_advantages([row[:4]])).max() < 1e-6
    for size in (3, 7, 11, 22):
        for value in (16.667, 0.1, -3.3, 1e6 / 3):
            assert not leave_one_out_advantages([[value] * size]).any()


@pytest.mark.parametrize("unscored", range(6))
def test_an_unscored_rollout_is_as_if_not_there(unscored: int):
    row = [4.0, 2.5, 3.0, 3.25, 5.0]
    whole = leave_one_out_advantages([row])[0]
    gap = np.array([[*row[:unscored], NAN, *row[unscored:]]])
    before = gap.copy()
    found = leave_one_out_advantages(gap)[0]
    assert found[unscored] == 0.0
    np.testing.assert_allclose(np.delete(found, unscored), whole, rtol=1e-14)
    np.testing.assert_array_equal(gap, before)


@drawn
@given(st.lists(st.lists(rewards | st.none(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_groups_do_not_touch(groups: list[list[Reward]]):
    alone = [leave_one_out_advantages([group])[0].tolist() for group in groups]
    assert leave_one_out_advantages(groups).tolist() == alone


@pytest.mark.parametrize("bad", [[1.0, 2.0], 1.0, [[[1.0]]], [[1.0, float("inf")]]])
def test_other_shapes_and_infinite_rewards_are_refused(bad: object):
    with pytest.raises(ValueError, match=r"groups × generations|infinite"):
        leave_one_out_advantages(bad)
