"""The plan's promises: exact ratios, few repetitions, the Gaussian's mean and width, order."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.training.rl.curriculum import (
    Draw,
    carried_counts,
    domain_counts,
    fitted_shares,
    gaussian_shares,
    gaussian_targets,
    largest_remainder,
    mean_at,
    plan_curriculum,
    plan_random,
    plan_uniform,
)

Pools = dict[str, dict[str, int]]
GAUSSIAN: dict[str, Any] = {"mean_start": 0.7, "mean_end": 0.3, "sigma": 0.15}
pools_of = st.dictionaries(
    st.sampled_from("abc"),
    st.dictionaries(st.text("xyz", min_size=1, max_size=4), st.integers(0, 4), min_size=1),
    min_size=1,
)


@given(st.floats(0, 1), st.floats(1e-300, 1e300), st.integers(1, 64))
def test_targets_are_shares_that_peak_at_the_mean(mean: float, sigma: float, n: int):
    shares = gaussian_targets(mean, sigma=sigma, n=n)
    assert len(shares) == n
    assert math.isclose(sum(shares), 1)
    nearest = min(abs(k / n - mean) for k in range(n))
    top = max(shares)
    assert all(s == top for k, s in enumerate(shares) if abs(k / n - mean) == nearest)


def test_targets_are_the_gaussian_of_the_formula():
    shares = gaussian_targets(0.5, sigma=0.25, n=4)
    weights = [math.exp(-((k / 4 - 0.5) ** 2) / (2 * 0.25**2)) for k in range(4)]
    assert shares == pytest.approx([w / sum(weights) for w in weights])


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.integers(0, 500))
def test_the_largest_remainder_rounds_by_less_than_one(shares: list[float], total: int):
    counts = largest_remainder(shares, total)
    assert sum(counts) == total
    exact = [s / sum(shares) * total for s in shares]
    assert all(abs(c - e) < 1 + 1e-6 for c, e in zip(counts, exact, strict=True))


def test_equal_remainders_go_to_the_harder_bucket():
    assert largest_remainder(gaussian_targets(0.5, sigma=0.2, n=2), 2)[0] <= 1
    assert largest_remainder([1 / 3, 1 / 3, 1 / 3], 4) == [2, 1, 1]
    # 0.1 + 0.2 and 0.3 differ by rounding alone
    assert largest_remainder([0.3, 0.1 + 0.2, 0.4], 5) == [2, 1, 2]


@settings(max_examples=60, deadline=None)
@given(pools_of, st.integers(1, 7), st.integers(1, 9), st.integers(0, 3), st.sampled_from("gur"))
def test_ratios_are_exact_and_nothing_comes_more_often_than_it_must(
    pools: Pools, steps: int, batch: int, seed: int, kind: str
):
    pools = {d: p for d, p in pools.items() if any(v < 4 for v in p.values())}
    if not pools:
        return
    ratios = {domain: 1.0 + k for k, domain in enumerate(sorted(pools))}
    shape: dict[str, Any] = {"n": 4, "steps": steps, "batch": batch, "ratios": ratios, "seed": seed}
    make = {"g": lambda p: plan_curriculum(p, **shape, **GAUSSIAN),
            "u": lambda p: plan_uniform(p, **shape), "r": lambda p: plan_random(p, **shape)}[kind]  # fmt: skip
    plan = make(pools)
    expected = {d: c for d, c in domain_counts(ratios, batch=batch).items() if c}
    assert [Counter(draw.domain for draw in step) for step in plan] == [expected] * steps
    drawn = {d: Counter(x.prompt_id for step in plan for x in step if x.domain == d) for d in pools}
    for domain, times in drawn.items():
        usable = [name for name, passes in pools[domain].items() if passes < 4]
        total = sum(times.values())
        assert set(times) <= set(usable)
        assert max(times.values(), default=0) <= -(-total // len(usable))
        if kind == "r":
            assert min(times[name] for name in usable) >= total // len(usable)
        for bucket in range(4):  # each once before any comes again, but for what a batch has had
            own = [times[name] for name in usable if pools[domain][name] == bucket]
            assert max(own, default=0) - min(own, default=0) <= 2
        size = expected.get(domain, 0)
        if size <= len(usable):  # then a batch has no reason to hold a prompt twice
            assert all(
                len({x.prompt_id for x in step if x.domain == domain}) == size for step in plan
            )
    for step in plan:
        assert all(pools[x.domain][x.prompt_id] == x.bucket for x in step)
    shuffled = {d: dict(random.Random(1).sample(sorted(p.items()), len(p))) for d, p in
                sorted(pools.items(), reverse=True)}  # fmt: skip
    assert make(shuffled) == plan


def test_with_endless_pools_the_mean_drawn_follows_the_target():
    pools = {"m": {f"{k}-{i}": k for k in range(9) for i in range(4000)}}
    plan = plan_curriculum(pools, n=8, steps=40, batch=128, ratios={"m": 1}, seed=0, **GAUSSIAN)
    for step, draws in enumerate(plan):
        shares = gaussian_targets(mean_at(step, steps=40, start=0.7, end=0.3), sigma=0.15, n=8)
        target = sum(share * k / 8 for k, share in enumerate(shares))
        assert abs(fmean(draw.bucket / 8 for draw in draws) - target) < 0.01
        assert {draw.reason for draw in draws} == {"target"}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_domain_with_few_places_a_step_draws_the_whole_gaussian(batch: int):
    """Rounded step by step, one place is always the bucket next to the mean."""
    pools = {"m": {f"{k}-{i}": k for k in range(8) for i in range(500)}}
    shape: dict[str, Any] = {"n": 8, "steps": 200, "batch": batch, "ratios": {"m": 1}, "seed": 0}
    plan = plan_curriculum(pools, **shape, mean_start=0.5, mean_end=0.5, sigma=0.15)
    shares = gaussian_targets(0.5, sigma=0.15, n=8)
    drawn = Counter(draw.bucket for step in plan for draw in step)
    assert all(abs(drawn[k] - share * 200 * batch) < 1.5 for k, share in enumerate(shares))


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
def test_what_rounding_withholds_is_carried(count: int, steps: int, seed: int):
    rng = random.Random(seed)
    shares = [[rng.random() for _ in range(5)] for _ in range(steps)]
    rows = carried_counts(shares, count)
    assert {sum(row) for row in rows} == {count}
    assert min(map(min, rows)) >= 0
    for bucket in range(5):
        exact = sum(own[bucket] / sum(own) * count for own in shares)
        assert abs(sum(row[bucket] for row in rows) - exact) < 2


def thirds(plan: list[list[Draw]], n: int) -> list[float]:
    size = len(plan) // 3
    parts = (plan[:size], plan[size:-size], plan[-size:])
    return [fmean(draw.bucket / n for step in part for draw in step) for part in parts]


@pytest.mark.parametrize(
    "sizes",
    [
        [500] * 8,  # as many of each: the middle is short
        [0, 85, 48, 30, 35, 42, 73, 101],  # both ends
        [0, 112, 91, 61, 43, 26, 9, 4],  # hardly any that are easy
        [300, 10, 5, 5, 5, 10, 20, 200],
        [4, 9, 26, 43, 61, 91, 112, 60],
    ],
)
def test_with_short_pools_the_mean_falls_and_hopeless_prompts_wait(sizes: list[int]):
    pools = {"m": {f"{k}-{i}": k for k, size in enumerate(sizes) for i in range(size)}}
    batch = max(sum(sizes[1:]) * 3 // 4 // 50, 1)
    shape: dict[str, Any] = {"n": 8, "steps": 50, "batch": batch, "ratios": {"m": 1}, "seed": 0}
    plan = plan_curriculum(pools, **shape, mean_start=0.7, mean_end=0.4, sigma=0.15)
    first, middle, last = thirds(plan, 8)
    assert first - middle > 0.05
    assert middle - last > 0.05
    drawn = [draw for step in plan for draw in step]
    assert len({draw.prompt_id for draw in drawn}) == len(drawn)
    assert sum(draw.bucket == 0 for draw in drawn) <= 0.01 * len(drawn)
    early = [draw for step in plan[:25] for draw in step]
    assert sum(draw.bucket <= 1 for draw in early) <= 0.05 * len(early)


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=8, max_size=8), st.floats(0.1, 0.5))
def test_fitted_shares_keep_to_the_supply_and_their_mean_falls(sizes: list[int], sigma: float):
    supply = [*map(float, sizes)]
    count = sum(sizes) // 12
    if not count:
        return
    shares = gaussian_shares(n=8, steps=10, start=0.8, end=0.2, sigma=sigma)
    fitted = fitted_shares(shares, supply, count)
    means = [sum(share * k for k, share in enumerate(own)) for own in fitted]
    assert all(after <= before + 1e-6 for before, after in pairwise(means))
    for bucket, size in enumerate(supply):
        assert count * sum(own[bucket] for own in fitted) <= size + 0.1 * count


def test_what_a_bucket_lacks_comes_from_the_nearest():
    pools = {"m": {f"{k}-{i}": k for k in range(4) for i in range(50 if k < 2 else 3 * (k == 3))}}
    shape: dict[str, Any] = {"n": 4, "steps": 1, "batch": 10, "ratios": {"m": 1}, "seed": 0}
    [draws] = plan_curriculum(pools, **shape, mean_start=0.75, mean_end=0.75, sigma=0.01)
    assert Counter((d.bucket, d.reason) for d in draws) == {(3, "target"): 3, (1, "leftover"): 7}


@pytest.mark.parametrize("sigma", [0.05, 0.15])
@pytest.mark.parametrize(
    ("sizes", "batch"), [([4, 4, 2], 8), ([3, 3, 2, 2], 8), ([4, 2, 3, 4], 10)]
)
def test_steps_trade_prompts_where_the_last_ones_have_had_all_that_is_left(
    sizes: list[int], batch: int, sigma: float
):
    """Batches nearly as large as the domain: no prompt twice in one, nor more often than it must."""
    n = len(sizes)
    pools = {"m": {f"{k}-{i}": k for k, size in enumerate(sizes) for i in range(size)}}
    shape: dict[str, Any] = {"n": n, "steps": 5, "batch": batch, "ratios": {"m": 1}, "seed": 0}
    plan = plan_curriculum(pools, **shape, mean_start=0.5, mean_end=0.5, sigma=sigma)
    assert [len({draw.prompt_id for draw in step}) for step in plan] == [batch] * 5
    times = Counter(draw.prompt_id for step in plan for draw in step)
    assert max(times.values()) == math.ceil(5 * batch / sum(sizes))


def test_prompts_that_never_passed_come_where_nothing_else_is_left():
    pools = {"m": {f"hard-{i}": 0 for i in range(50)} | {f"easy-{i}": 3 for i in range(3)}}
    shape: dict[str, Any] = {"n": 4, "steps": 1, "batch": 10, "ratios": {"m": 1}, "seed": 0}
    [draws] = plan_curriculum(pools, **shape, mean_start=0.75, mean_end=0.75, sigma=0.01)
    assert Counter((d.bucket, d.reason) for d in draws) == {(3, "target"): 3, (0, "leftover"): 7}


def test_a_domain_is_shuffled_inside_the_batch_and_by_the_seed():
    pools = {d: {f"{d}{i}": 1 for i in range(64)} for d in "ab"}
    plans = [
        plan_curriculum(pools, n=4, steps=2, batch=32, ratios={"a": 1, "b": 1}, seed=s, **GAUSSIAN)
        for s in (0, 0, 1)
    ]
    assert plans[0] == plans[1] != plans[2]
    changes = sum(x.domain != y.domain for x, y in zip(plans[0][0], plans[0][0][1:], strict=False))
    assert changes > 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0}, {"steps": 0}, {"batch": 0}, {"sigma": 0.0}, {"sigma": math.nan},
        {"mean_start": math.nan}, {"mean_end": 1.1}, {"ratios": {"m": 0}}, {"ratios": {"m": -1}},
        {"ratios": {"m": math.nan}}, {"ratios": {"m": 1, "other": 1}}, {"pools": {"m": {"p": 8}}},
        {"pools": {"m": {"p": 9}}}, {"pools": {"m": {"p": 1.5}}},
        {"pools": {"m": {"p": 1}, "other": {"q": 1}}},
    ],
)  # fmt: skip
def test_impossible_inputs_are_refused(wrong: dict[str, Any]):
    good: dict[str, Any] = {
        "pools": {"m": {"p": 1}}, "n": 8, "steps": 1, "batch": 1, "ratios": {"m": 1}, "seed": 0,
        **GAUSSIAN,
    }  # fmt: skip
    assert plan_curriculum(**good)
    with pytest.raises(ValueError, match=r"\w"):
        plan_curriculum(**(good | wrong))
