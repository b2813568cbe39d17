"""Pass rates → the prompts of every step, before the run begins; pure and torch-free.

    plan = plan_curriculum(
        {"math": {"m-1": 7, "m-2": 0}, "code": {"c-1": 3}}, n=8, steps=600, batch=128,
        ratios={"math": 0.6, "code": 0.4}, mean_start=0.7, mean_end=0.4, sigma=0.15, seed=0,
    )
    plan[0][0]  → Draw(prompt_id="c-1", domain="code", bucket=3, reason="target")

The paper (arXiv 2512.20848, section 3.2.2) fixes the share of each domain in every batch, and in
each domain a Gaussian over pass rates whose mean falls linearly with the step; Llama-Nemotron
(arXiv 2505.00949, section 5.1) allocates by the prompts that each pass rate has. Ours: one mean and
one sigma for all domains; domains rounded by largest remainder, buckets with the remainder carried
to the next step; a bucket with too few prompts fills the same part of every step's target, and the
prompts that are then missing come from the bucket nearest to the step's mean (theirs: from the
largest pool, which is often the one of hopeless prompts).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Pools = Mapping[str, Mapping[str, int]]
Reason = Literal["target", "leftover", "random", "refill", "easy", "normal", "hard"]
_DIGITS = 9  # shares that differ only in later digits are equal but for rounding errors
# Proportional fitting: weight of a bucket that the target leaves out, so that it can be reached
_FLOOR_WEIGHT = 1e-100
# Proportional fitting: most rounds, and relative change of the factors at which it has converged
_ROUNDS = 2000
_CONVERGED = 1e-9


@dataclass(frozen=True, slots=True)
class Draw:
    """One prompt of a batch.

    Attributes:
        bucket: Number of passes out of n when the prompt was profiled.
        reason: `target` (its bucket's share of the batch), `leftover` (another bucket had too few),
            `random` (any bucket), `refill` (for a dropped group), or its difficulty pool.
    """

    prompt_id: str
    domain: str
    bucket: int
    reason: Reason


def gaussian_targets(mean: float, *, sigma: float, n: int) -> list[float]:
    """Shares of the buckets 0/n … (n−1)/n under a Gaussian over pass rates; they sum to 1.

    Where the Gaussian reaches beyond the buckets, the mean of the shares is nearer to the middle.
    """
    if not (0 <= mean <= 1 and 0 < sigma < math.inf and n >= 1):
        raise ValueError(
            f"no Gaussian over pass rates out of {n} (at least 1) has the mean {mean} (0 to 1) "
            f"and the sigma {sigma} (positive and finite)"
        )
    distances = [abs(k / n - mean) for k in range(n)]
    nearest = min(distances)
    # relative to the nearest bucket: a narrow Gaussian between two buckets does not vanish
    weights = [
        1.0 if d == nearest else math.exp(-(d - nearest) / sigma * ((d + nearest) / sigma) / 2)
        for d in distances
    ]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def mean_at(step: int, *, steps: int, start: float, end: float) -> float:
    """Mean of the Gaussian in a step, from 0; linear from `start` to `end` in the last step."""
    mean = start + (end - start) * step / max(steps - 1, 1)
    return min(max(mean, min(start, end)), max(start, end))  # rounding must not leave 0 … 1


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Split `total` into integers in proportion to the shares.

    Equal remainders favour the earlier share.
    """
    share_sum = math.fsum(shares)
    exact = [round(share / share_sum * total, _DIGITS) for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(
        range(len(exact)), key=lambda k: (-round(exact[k] - counts[k], _DIGITS), k)
    )
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def domain_counts(ratios: Mapping[str, float], *, batch: int) -> dict[str, int]:
    """Number of prompts of each domain in every batch, by largest remainder."""
    if batch < 1 or not any(ratios.values()) or not all(0 <= r < math.inf for r in ratios.values()):
        raise ValueError(
            f"{batch} prompts (at least 1) cannot be shared by the ratios {dict(ratios)} (finite, "
            "not negative, one above 0)"
        )
    names = sorted(ratios)
    counts = largest_remainder([ratios[name] for name in names], batch)
    return dict(zip(names, counts, strict=True))


def gaussian_shares(
    *, n: int, steps: int, start: float, end: float, sigma: float
) -> list[list[float]]:
    """Shares of the buckets in every step, by `gaussian_targets`."""
    for mean in (start, end):
        # refused even where no step has this mean
        gaussian_targets(mean, sigma=sigma, n=n)
    means = [mean_at(step, steps=steps, start=start, end=end) for step in range(steps)]
    return [gaussian_targets(mean, sigma=sigma, n=n) for mean in means]


def plan_curriculum(
    pools: Pools,
    *,
    n: int,
    steps: int,
    batch: int,
    ratios: Mapping[str, float],
    mean_start: float,
    mean_end: float,
    sigma: float,
    seed: int,
) -> list[list[Draw]]:
    """Plan the prompts of every step, in a random order inside each step.

    The plan does not depend on the order of `pools`. No prompt comes more often than the size of
    its domain demands, nor a second time before all of its bucket have come once.

    Args:
        pools: domain → prompt id → passes out of n.
        ratios: domain → share of the prompts of every batch; only proportions count.
        mean_start, mean_end: mean pass rate of the Gaussian in the first and in the last step.
    """
    shares = gaussian_shares(n=n, steps=steps, start=mean_start, end=mean_end, sigma=sigma)
    return plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=seed)


def plan_uniform(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """Plan the prompts of every step with equal shares for all buckets; see `plan_curriculum`."""
    shares = [[1 / n] * n] * steps
    return plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=seed)


def plan_random(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """Plan the prompts of every step regardless of their buckets: the paper's ablation."""
    return plan_shares(pools, [None] * steps, n=n, batch=batch, ratios=ratios, seed=seed)


def plan_shares(
    pools: Pools,
    shares: Sequence[Sequence[float] | None],
    *,
    n: int,
    batch: int,
    ratios: Mapping[str, float],
    seed: int,
) -> list[list[Draw]]:
    """Plan the prompts of every step by the shares of the buckets in each; see `plan_curriculum`.

    Args:
        shares: shares of the buckets 0/n … (n−1)/n in each step; None draws from any bucket.
    """
    if not shares:
        raise ValueError("a plan needs at least one step")
    counts = domain_counts(ratios, batch=batch)
    unpaired = sorted(set(ratios) ^ set(pools))
    if unpaired:
        raise ValueError(
            f"domain {unpaired[0]!r} has only one of ratio and prompts; a ratio of 0 leaves it out"
        )
    plan: list[list[Draw]] = [[] for _ in shares]
    for name, count in counts.items():
        if ratios[name] > 0:
            domain = _Domain(name, pools[name], n=n, seed=seed)
            for step, draws in enumerate(domain.draw(count, shares)):
                plan[step] += draws
    for step, draws in enumerate(plan):
        random.Random(f"{seed}/batch/{step}").shuffle(draws)
    return plan


class _Domain:
    """Prompts of one domain with a pass rate below 1, by bucket."""

    def __init__(self, name: str, passes: Mapping[str, int], *, n: int, seed: int) -> None:
        self.name = name
        self._seed = seed
        self._buckets: list[list[str]] = [[] for _ in range(n)]
        for prompt_id, count in sorted(passes.items()):
            if not 0 <= count <= n or count != int(count):
                raise ValueError(f"prompt {prompt_id!r} of {name!r}: {count} passes out of {n}")
            if count < n:
                self._buckets[int(count)].append(prompt_id)
        self._passes = passes
        self._sizes = [len(bucket) for bucket in self._buckets]
        self._size = sum(self._sizes)
        if not self._size:
            raise ValueError(f"domain {name!r} has a ratio, but no prompt with a pass rate below 1")

    def draw(self, count: int, shares: Sequence[Sequence[float] | None]) -> list[list[Draw]]:
        """Draw the domain's prompts of every step, `count` each.

        Args:
            shares: shares of the buckets in each step; None draws from any bucket.
        """
        targets = [step_shares for step_shares in shares if step_shares is not None]
        if len(targets) < len(shares):
            return self._draw_from_any_bucket(count, steps=len(shares))
        orders = [
            _KeyedOrder(prompts, f"{self._seed}/{self.name}/{bucket}")
            for bucket, prompts in enumerate(self._buckets)
        ]
        plan: list[list[Draw]] = []
        for bucket_counts in self._allocate(count, targets):
            in_step: set[str] = set()
            draws: list[Draw] = []
            for bucket, (from_target, leftover) in enumerate(bucket_counts):
                for number in range(from_target + leftover):
                    reason: Reason = "target" if number < from_target else "leftover"
                    draws.append(Draw(orders[bucket].take(in_step), self.name, bucket, reason))
            plan.append(draws)
        return plan

    def _draw_from_any_bucket(self, count: int, *, steps: int) -> list[list[Draw]]:
        """Draw every prompt of the domain once before any comes again."""
        names = [name for bucket in self._buckets for name in bucket]
        order = _KeyedOrder(names, f"{self._seed}/{self.name}/any")
        plan: list[list[Draw]] = []
        for _ in range(steps):
            in_step: set[str] = set()
            draws: list[Draw] = []
            for _ in range(count):
                name = order.take(in_step)
                draws.append(Draw(name, self.name, int(self._passes[name]), "random"))
            plan.append(draws)
        return plan

    def _allocate(
        self, count: int, shares: Sequence[Sequence[float]]
    ) -> list[list[tuple[int, int]]]:
        """Allocate the prompts of each step to buckets. Returns (on target, leftovers) of each.

        Leftovers replace prompts of buckets that have too few for the step's target.
        """
        n = len(self._sizes)
        # the most often that any prompt must come, in the whole run and in one batch
        times = -(-len(shares) * count // self._size)
        times_in_batch = -(-count // self._size)
        supply = [size * times for size in self._sizes]
        most_in_batch = [size * times_in_batch for size in self._sizes]
        targets = carried_counts(shares, count)
        fitted = targets
        demand = [sum(bucket_targets) for bucket_targets in zip(*targets, strict=True)]
        if any(demanded > size for demanded, size in zip(demand, supply, strict=True)):
            fitted = carried_counts(fitted_shares(shares, supply, count), count)
        allocated = [[0] * n for _ in shares]
        for step, step_counts in enumerate(allocated):
            for bucket in range(n):
                number = min(fitted[step][bucket], most_in_batch[bucket], supply[bucket])
                step_counts[bucket] = number
                supply[bucket] -= number
        missing = [count - sum(step_counts) for step_counts in allocated]
        if any(missing):
            for step, bucket in self._nearest_buckets(shares):
                room = most_in_batch[bucket] - allocated[step][bucket]
                number = min(missing[step], supply[bucket], room)
                allocated[step][bucket] += number
                missing[step] -= number
                supply[bucket] -= number
        _fill_by_exchange(missing, allocated, most_in_batch, supply)
        counts: list[list[tuple[int, int]]] = []
        for step_targets, step_counts in zip(targets, allocated, strict=True):
            counts.append(
                [
                    (min(target, number), max(number - target, 0))
                    for target, number in zip(step_targets, step_counts, strict=True)
                ]
            )
        return counts

    def _nearest_buckets(self, shares: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
        """Pairs of step and bucket, by the bucket's distance from the mean of its step.

        Prompts that never passed come last; of equally distant buckets the easier one comes first.
        """
        ranked: list[tuple[bool, float, int, float, int, int]] = []
        for step, step_shares in enumerate(shares):
            n = len(step_shares)
            mean = math.fsum(share * k / n for k, share in enumerate(step_shares))
            # drawn, so that early steps do not get all of a scarce bucket
            tie = random.Random(f"{self._seed}/{self.name}/leftover/{step}").random()
            for bucket in range(n):
                distance = round(abs(bucket / n - mean), _DIGITS)
                ranked.append((bucket == 0, distance, -bucket, tie, step, bucket))
        return [(step, bucket) for *_, step, bucket in sorted(ranked)]


def _fill_by_exchange(
    missing: list[int], allocated: list[list[int]], most_in_batch: Sequence[int], supply: list[int]
) -> None:
    """Fill the steps that may not have more of any bucket with supply, by exchange.

    A second step takes a prompt of such a bucket and gives up one that the first may still have.
    """
    for step in range(len(missing)):
        while missing[step]:
            partner, bucket, released_bucket = _find_exchange(
                step, allocated, most_in_batch, supply
            )
            allocated[partner][released_bucket] -= 1
            allocated[partner][bucket] += 1
            allocated[step][released_bucket] += 1
            supply[bucket] -= 1
            missing[step] -= 1


def _find_exchange(
    step: int,
    allocated: Sequence[Sequence[int]],
    most_in_batch: Sequence[int],
    supply: Sequence[int],
) -> tuple[int, int, int]:
    """Find a step to exchange with, the bucket that it takes from and the one that it gives up."""
    buckets = range(len(most_in_batch))
    open_buckets = [bucket for bucket in buckets if allocated[step][bucket] < most_in_batch[bucket]]
    for bucket in buckets:
        if not supply[bucket]:
            continue
        for partner, step_counts in enumerate(allocated):
            if partner == step or step_counts[bucket] >= most_in_batch[bucket]:
                continue
            for released_bucket in open_buckets:
                if step_counts[released_bucket]:
                    return partner, bucket, released_bucket
    raise AssertionError("the supply is enough for all steps")


def carried_counts(shares: Sequence[Sequence[float]], count: int) -> list[list[int]]:
    """Round the shares of each step to integers that sum to `count`.

    The difference that rounding leaves is carried to the next step, so that the sums over the steps
    so far stay within about one of the exact sums.
    """
    carried = [0.0] * len(shares[0])
    rows: list[list[int]] = []
    for step_shares in shares:
        share_sum = math.fsum(step_shares)
        exact = [
            round(carry + share / share_sum * count, _DIGITS)
            for carry, share in zip(carried, step_shares, strict=True)
        ]
        row = [max(math.floor(value), 0) for value in exact]
        buckets = range(len(row))
        # too many where a negative value has been raised to 0
        for _ in range(sum(row) - count):
            smallest = min((k for k in buckets if row[k]), key=lambda k: exact[k] - row[k])
            row[smallest] -= 1
        for _ in range(count - sum(row)):
            largest = max(buckets, key=lambda k: (exact[k] - row[k], -k))
            row[largest] += 1
        carried = [value - number for value, number in zip(exact, row, strict=True)]
        rows.append(row)
    return rows


def fitted_shares(
    shares: Sequence[Sequence[float]], supply: Sequence[float], count: int
) -> list[list[float]]:
    """Fit the shares of all steps to the supply of each bucket.

    They change as little as possible in relative entropy: a bucket has one factor, at most 1, for
    all steps.

    Where the shares are Gaussians whose mean falls, the fitted ones too have a mean that falls,
    whatever the supply: each step is the same distribution over pass rates but for a factor
    exp(pass rate · mean / sigma²). Iterative proportional fitting, with supplies as upper bounds.

    Args:
        supply: most prompts of each bucket, over all steps.
        count: prompts of each step.
    """
    shares_S_B = np.asarray(shares, dtype=np.float64)  # steps, buckets
    shares_S_B = shares_S_B / shares_S_B.sum(axis=1, keepdims=True)
    steps, buckets = shares_S_B.shape
    rates_B = np.arange(buckets) / buckets
    distances_S_B = np.abs(rates_B - (shares_S_B @ rates_B)[:, None])
    # no bucket is out of reach, and far from a narrow Gaussian the nearest is the likeliest
    kernel_S_B = shares_S_B + _FLOOR_WEIGHT * np.exp(-distances_S_B * buckets)
    bounds_B = np.asarray(supply, dtype=np.float64)
    # prompts that never passed teach nothing: beyond the target only where no others are left
    target_0 = count * shares_S_B[:, 0].sum()
    without_0 = count * steps - bounds_B[1:].sum()
    bounds_B[0] = min(bounds_B[0], max(target_0, without_0))
    factors_B = (bounds_B > 0).astype(np.float64)
    for _ in range(_ROUNDS):
        scale_S = count / (kernel_S_B @ factors_B)
        updated_B = np.minimum(1.0, bounds_B / (scale_S @ kernel_S_B))
        change = np.abs(updated_B - factors_B).max()
        converged = change <= _CONVERGED * factors_B.max()
        factors_B = updated_B / updated_B.max()
        if converged:
            break
    fitted_S_B = kernel_S_B * factors_B
    return (fitted_S_B / fitted_S_B.sum(axis=1, keepdims=True)).tolist()


class _KeyedOrder:
    """Endless order of prompts: each comes once, then all again in another keyed order."""

    def __init__(self, names: Sequence[str], key: str) -> None:
        self._names = names
        self._key = key
        self._round = 0
        # taken from the end
        self._queue: list[str] = []

    def take(self, in_step: set[str]) -> str:
        """Take the next prompt that is not in this step yet, and add it to `in_step`.

        Only a step larger than the number of prompts has one twice.
        """
        index = self._next_index(in_step)
        if index is None:
            order = list(self._names)
            random.Random(f"{self._key}/{self._round}").shuffle(order)
            self._round += 1
            # prompts of the former round that are in this very step wait until the new one's end
            self._queue = [*order, *self._queue]
            index = self._next_index(in_step)
        name = self._queue.pop(len(self._queue) - 1 if index is None else index)
        in_step.add(name)
        return name

    def _next_index(self, in_step: set[str]) -> int | None:
        """Index in the queue of the next prompt that is not in this step; None without one."""
        for index in range(len(self._queue) - 1, -1, -1):
            if self._queue[index] not in in_step:
                return index
        return None
