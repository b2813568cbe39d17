"""Packing: every index once, nothing over capacity, well filled, and mixed."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.data_utils import pack_dataset

from posttrain.tokens import Packs, pack_lengths

CASES = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(
        st.just(capacity),
        st.lists(st.tuples(st.integers(1, capacity), st.integers(0, 5)), max_size=80),
        st.integers(0, 3),
    )
)


def as_lists(packs: Packs) -> list[list[int]]:
    return [pack.tolist() for pack in packs]


@given(CASES)
@settings(max_examples=150, deadline=None)
def test_every_index_once_within_capacity_and_groups_apart(case):
    capacity, items, seed = case
    lengths, groups = [n for n, _ in items], [g for _, g in items]
    apart = as_lists(pack_lengths(lengths, capacity, seed=seed, groups=groups))
    free = as_lists(pack_lengths(lengths, capacity, seed=seed))
    for packs in (apart, free):
        assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
        assert all(0 < sum(lengths[i] for i in pack) <= capacity for pack in packs)
    assert all(len({groups[i] for i in pack}) == len(pack) for pack in apart)
    assert apart == as_lists(pack_lengths(lengths, capacity, seed=seed, groups=groups))


def lognormal(n: int, mean: float, deviation: float, capacity: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(mean, deviation, n), 20, capacity).astype(int)


SHAPES = {
    "log-normal": (lognormal(3000, 6, 1, 4096), 4096),
    "long tail": (lognormal(1000, 8.5, 1.3, 262_144), 262_144),
    "two humps": (np.repeat([90, 130, 180, 1600, 2900], [700, 700, 600, 500, 500]), 8192),
    "all equal": (np.full(3000, 130), 1024),
    "above half": (np.arange(513, 600), 1024),
    "a few": (np.array([700, 300, 300, 10]), 1024),
    "one": (np.array([1024]), 1024),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_fill_is_that_of_best_fit_decreasing(shape):
    lengths, capacity = SHAPES[shape]
    packs = pack_lengths(lengths, capacity)
    rows = Dataset.from_dict({"input_ids": [np.zeros(n, np.int8) for n in lengths]})
    # all rows in one batch: TRL at its best
    theirs = pack_dataset(rows, capacity, strategy="bfd", map_kwargs={"batch_size": None})
    assert packs.fills(lengths).sum() == lengths.sum()
    assert packs.fills(lengths).max() <= capacity
    # two far lengths are the worst case known: the short ones run out before the long ones
    share_more = 0.03 if shape == "two humps" else 0.0
    assert len(packs) <= len(theirs) * (1 + share_more)


def within(packs: Packs, values: np.ndarray) -> float:
    """Mean variance inside packs, relative to the variance overall: 1 is a perfect mix."""
    shares = [(len(p), values[p].var()) for p in packs if len(p) > 1]
    return float(np.average([v for _, v in shares], weights=[n for n, _ in shares]) / values.var())


def test_packs_are_mixed_in_length_and_source():
    # three sources, each with a length of its own: decreasing order would never let them meet
    lengths = np.repeat([100, 200, 50], 3000)
    source = np.repeat([0.0, 1.0, 2.0], 3000)
    packs = pack_lengths(lengths, 4096)
    assert within(packs, source) > 0.9
    assert within(packs, lengths) > 0.9
    for mean, capacity, least in ((8.5, 262_144, 0.85), (6, 4096, 0.7)):
        tail = lognormal(5000, mean, 1.2, capacity)
        assert within(pack_lengths(tail, capacity), np.log(tail)) > least


def test_seed_changes_packs_and_only_the_seed():
    lengths = lognormal(300, 6, 1, 4096)
    first = as_lists(pack_lengths(lengths, 4096, seed=1))
    assert first == as_lists(pack_lengths(lengths.tolist(), 4096, seed=1))
    assert first == as_lists(pack_lengths(lengths.astype(np.int32), 4096, seed=1))
    assert first != as_lists(pack_lengths(lengths, 4096, seed=2))


def test_packs_are_the_same_on_every_machine():
    lengths = [17, 3, 9, 28, 5, 5, 12, 30, 2, 8, 21, 14]
    expected = [[0], [10], [7], [3], [11, 5, 9, 1], [2, 4, 6, 8]]
    groups = ["a", "b", "a", "c", "d", "d", "b", "e", "f", "g", "h", "a"]
    assert as_lists(pack_lengths(lengths, 32, seed=2**64 - 1, groups=groups)) == expected


@pytest.mark.parametrize("size", [2, 8, 40])
def test_turns_are_kept_apart_at_the_price_of_few_packs(size):
    lengths, groups = lognormal(4000, 6, 1, 8192), np.arange(4000) // size
    packs = pack_lengths(lengths, 8192, groups=groups)
    assert all(len(set(groups[pack].tolist())) == len(pack) for pack in packs)
    assert len(packs) <= len(pack_lengths(lengths, 8192)) + 1
    assert within(packs, np.log(lengths)) > 0.7


@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        ([5, 9], 8, r"lengths\[1\] is 9"),
        ([-1], 8, r"lengths\[0\] is -1"),
        ([2.5], 8, r"lengths\[0\] is 2.5"),
        ([True], 8, r"lengths\[0\] is True"),
        ([3, 2**70], 8, r"lengths\[1\] is 1180591620717411303424"),
        (np.array([1.0]), 8, r"lengths\[0\] is np.float64\(1.0\)"),
        ([1], 0, "capacity must be 1"),
    ],
)
def test_impossible_lengths_are_named(lengths, capacity, message):
    with pytest.raises(ValueError, match=message):
        pack_lengths(lengths, capacity)
