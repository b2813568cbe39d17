"""Packing: every index once, nothing over capacity, well filled, and mixed."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.data_utils import pack_dataset

from posttrain.tokens import pack_lengths
from posttrain.tokens.packing import _PLAIN, _best_fit, _dealt

CASES = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(
        st.just(capacity),
        st.lists(st.tuples(st.integers(1, capacity), st.integers(0, 5)), max_size=80),
        st.integers(1, 100),
        st.integers(0, 3),
    )
)


@given(CASES)
@settings(max_examples=300, deadline=None)
def test_every_index_once_within_capacity_and_groups_apart(case):
    capacity, items, window, seed = case
    lengths, groups = [n for n, _ in items], [g for _, g in items]
    packs = pack_lengths(lengths, capacity, seed=seed, window=window, groups=groups)
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    for pack in packs:
        assert sum(lengths[i] for i in pack) <= capacity
        assert len({groups[i] for i in pack}) == len(pack)
    assert packs == pack_lengths(lengths, capacity, seed=seed, window=window, groups=groups)


@given(CASES)
@settings(max_examples=200, deadline=None)
def test_no_more_packs_than_plain_best_fit_decreasing(case):
    capacity, items, _, seed = case
    lengths = [n for n, _ in items]
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    plain = _best_fit(_dealt(order, lengths, capacity, _PLAIN), lengths, capacity, None)
    assert len(pack_lengths(lengths, capacity, seed=seed)) <= len(plain)


def lognormal(n: int, mean: float, deviation: float, capacity: int) -> list[int]:
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(mean, deviation, n), 20, capacity).astype(int).tolist()


@pytest.mark.parametrize(
    ("lengths", "capacity", "least"),
    [
        (lognormal(3000, 6, 1, 4096), 4096, 0.995),
        (lognormal(3000, 8.5, 1.3, 262_144), 262_144, 0.985),
        (lognormal(3000, 5, 0.4, 1024), 1024, 0.99),
    ],
)
def test_fill_is_high_and_not_below_trl(lengths, capacity, least):
    packs = pack_lengths(lengths, capacity)
    theirs = pack_dataset(
        Dataset.from_dict({"input_ids": [[0] * n for n in lengths]}), capacity, strategy="bfd"
    )
    assert sum(lengths) / (len(packs) * capacity) >= least
    assert len(packs) <= len(theirs)


def within(packs: list[list[int]], values: np.ndarray) -> float:
    """Mean variance inside packs, relative to the variance overall: 1 is a perfect mix."""
    shares = [(len(p), values[p].var()) for p in packs if len(p) > 1]
    return float(np.average([v for _, v in shares], weights=[n for n, _ in shares]) / values.var())


def test_packs_are_mixed_in_length_and_source():
    # three sources, each with a length of its own: decreasing order would never let them meet
    lengths = [100] * 3000 + [200] * 3000 + [50] * 3000
    source = np.repeat([0.0, 1.0, 2.0], 3000)
    packs = pack_lengths(lengths, 4096)
    plain = _best_fit(_dealt(list(range(9000)), lengths, 4096, _PLAIN), lengths, 4096, None)
    assert within(plain, source) < 0.2
    assert within(packs, source) > 0.8
    assert within(packs, np.array(lengths, float)) > 0.8
    long_tail = lognormal(5000, 8.5, 1.3, 262_144)
    assert within(pack_lengths(long_tail, 262_144), np.log(long_tail)) > 0.5


def test_sorted_input_does_not_show_in_the_order_of_packs():
    lengths = sorted(lognormal(4000, 6, 1, 4096))
    packs = pack_lengths(lengths, 4096, window=1000)
    means = np.array([np.mean([lengths[i] for i in pack]) for pack in packs])
    first, second = means[: len(means) // 2].mean(), means[len(means) // 2 :].mean()
    assert first == pytest.approx(second, rel=0.15)


def test_seed_changes_packs_and_only_the_seed():
    lengths = lognormal(300, 6, 1, 4096)
    assert pack_lengths(lengths, 4096, seed=1) == pack_lengths(np.array(lengths), 4096, seed=1)
    assert pack_lengths(lengths, 4096, seed=1) != pack_lengths(lengths, 4096, seed=2)


def test_one_group_gives_one_pack_each_in_reasonable_time():
    # 20,000 searches that each looked at every open pack would take minutes
    packs = pack_lengths([10] * 20_000, 1000, groups=[0] * 20_000)
    assert len(packs) == 20_000


@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        ([5, 9], 8, r"lengths\[1\] is 9"),
        ([5, 0], 8, r"lengths\[1\] is 0"),
        ([-1], 8, r"lengths\[0\] is -1"),
        ([2.5], 8, r"lengths\[0\] is 2.5"),
        ([1], 0, "capacity must be at least 1"),
    ],
)
def test_impossible_lengths_are_named(lengths, capacity, message):
    with pytest.raises(ValueError, match=message):
        pack_lengths(lengths, capacity)


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="2 lengths but 1 groups"):
        pack_lengths([1, 2], 4, groups=[0])
    with pytest.raises(ValueError, match="window must be at least 1"):
        pack_lengths([1, 2], 4, window=0)
    assert pack_lengths([], 4) == []
