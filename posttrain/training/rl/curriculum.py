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
to the next step; a bucket with too few prompts gives every step the same part of what it wants, and
what is then missing comes from the bucket nearest to the step's mean (theirs: from the largest
pool, which is often the one of hopeless prompts).
"""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Pools = Mapping[str, Mapping[str, int]]
Reason = Literal["target", "leftover", "random", "refill", "easy", "normal", "hard"]
_DIGITS = 9  # shares that differ by less are rounding errors of equal ones
# of proportional fitting: the weight of a bucket that the target leaves out, rounds, and the change
# of a factor that ends it
_REACH, _ROUNDS, _CLOSE = 1e-100, 2000, 1e-9


@dataclass(frozen=True, slots=True)
class Draw:
    """One prompt of a batch.

    Attributes:
        bucket: its passes out of n when it was profiled.
        reason: `target` (its bucket's share of the batch), `leftover` (another bucket had too few),
            `random` (any bucket), `refill` (for a dropped group), or its difficulty pool.
    """

    prompt_id: str
    domain: str
    bucket: int
    reason: Reason


def gaussian_targets(mean: float, *, sigma: float, n: int) -> list[float]:
    """Shares of the buckets 0/n … (n−1)/n under a Gaussian over pass rates; they sum to 1.

    Their own mean is nearer the middle where the Gaussian reaches beyond the buckets.
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
    """The Gaussian's mean in a step, from 0; linear, `start` in the first and `end` in the last."""
    mean = start + (end - start) * step / max(steps - 1, 1)
    return min(max(mean, min(start, end)), max(start, end))  # rounding must not leave 0 … 1


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to the shares; equal remainders favour the earlier share."""
    whole = math.fsum(shares)
    exact = [round(share / whole * total, _DIGITS) for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(
        range(len(exact)), key=lambda k: (-round(exact[k] - counts[k], _DIGITS), k)
    )
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def domain_counts(ratios: Mapping[str, float], *, batch: int) -> dict[str, int]:
    """Prompts of each domain in every batch, by largest remainder."""
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
    """The `gaussian_targets` of every step."""
    for mean in (start, end):
        gaussian_targets(mean, sigma=sigma, n=n)  # an error even where no step has this mean
    means = (mean_at(step, steps=steps, start=start, end=end) for step in range(steps))
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
    """The prompts of every step, in a random order inside each; the same for any order of input.

    No prompt comes more often than it must in a domain of so many prompts, nor a second time before
    all of its bucket have come once.

    Args:
        pools: domain → prompt id → passes out of n.
        ratios: of the prompts of every batch, by domain; only their proportions count.
        mean_start, mean_end: pass rates, of the first and the last step's Gaussian.
    """
    shares = gaussian_shares(n=n, steps=steps, start=mean_start, end=mean_end, sigma=sigma)
    return plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=seed)


def plan_uniform(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """As `plan_curriculum`, with equal shares for all buckets in every step."""
    shares = [[1 / n] * n] * steps
    return plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=seed)


def plan_random(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """As `plan_curriculum`, whatever the bucket: the paper's ablation."""
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
    """As `plan_curriculum`, by each step's shares of the buckets; None: whatever the bucket."""
    if not shares:
        raise ValueError("a plan needs at least one step")
    counts = domain_counts(ratios, batch=batch)
    if unlike := sorted(set(ratios) ^ set(pools)):
        raise ValueError(
            f"domain {unlike[0]!r} has only one of ratio and prompts; a ratio of 0 leaves it out"
        )
    steps = len(shares)
    drawn: list[list[Draw]] = [[] for _ in shares]
    for name, count in counts.items():
        if ratios[name] > 0:
            domain = _Domain(name, pools[name], n=n, seed=seed)
            for step, draws in enumerate(domain.draw(count, shares)):
                drawn[step] += draws
    for step in range(steps):
        random.Random(f"{seed}/batch/{step}").shuffle(drawn[step])
    return drawn


class _Domain:
    """The prompts of one domain with a pass rate below 1, by bucket."""

    def __init__(self, name: str, passes: Mapping[str, int], *, n: int, seed: int) -> None:
        self.name, self._seed = name, seed
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
        """The domain's part of every batch, by each step's shares of the buckets; None: any."""
        targets = [own for own in shares if own is not None]
        if len(targets) < len(shares):
            return self._any(count, steps=len(shares))
        turns = [
            _Turns(prompts, f"{self._seed}/{self.name}/{bucket}")
            for bucket, prompts in enumerate(self._buckets)
        ]
        plan: list[list[Draw]] = []
        for parts in self._allocated(count, targets):
            taken: set[str] = set()
            draws: list[Draw] = []
            for bucket, (aimed_at, leftover) in enumerate(parts):
                for number in range(aimed_at + leftover):
                    reason: Reason = "target" if number < aimed_at else "leftover"
                    draws.append(Draw(turns[bucket].take(taken), self.name, bucket, reason))
            plan.append(draws)
        return plan

    def _any(self, count: int, *, steps: int) -> list[list[Draw]]:
        """Whatever the bucket, each prompt once before any comes again."""
        names = [name for bucket in self._buckets for name in bucket]
        turns = _Turns(names, f"{self._seed}/{self.name}/any")
        plan: list[list[Draw]] = []
        for _ in range(steps):
            taken: set[str] = set()
            drawn = [turns.take(taken) for _ in range(count)]
            plan.append([Draw(x, self.name, int(self._passes[x]), "random") for x in drawn])
        return plan

    def _allocated(
        self, count: int, shares: Sequence[Sequence[float]]
    ) -> list[list[tuple[int, int]]]:
        """By step and bucket, prompts that the step aims at, and those that it takes because others
        are missing."""
        steps, n = len(shares), len(self._sizes)
        # how often a prompt has to come at most: in the whole run, and in one batch
        times = -(-steps * count // self._size)
        times_in_batch = -(-count // self._size)
        supply = [size * times for size in self._sizes]
        most = [size * times_in_batch for size in self._sizes]
        exact = carried_counts(shares, count)
        fitted = exact
        if any(map(operator.gt, map(sum, zip(*exact, strict=True)), supply)):
            fitted = carried_counts(fitted_shares(shares, supply, count), count)
        taken = [[0] * n for _ in shares]
        for step, bucket in itertools.product(range(steps), range(n)):
            number = min(fitted[step][bucket], most[bucket], supply[bucket])
            taken[step][bucket] = number
            supply[bucket] -= number
        missing = [count - sum(row) for row in taken]
        for step, bucket in self._nearest(shares) if any(missing) else ():
            number = min(missing[step], supply[bucket], most[bucket] - taken[step][bucket])
            taken[step][bucket] += number
            missing[step] -= number
            supply[bucket] -= number
        _exchange(missing, taken, most, supply)
        return [
            [(min(aim, number), max(number - aim, 0)) for aim, number in zip(*rows, strict=True)]
            for rows in zip(exact, taken, strict=True)
        ]

    def _nearest(self, shares: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
        """Every step and bucket, the bucket nearest to its step's mean first; prompts that never
        passed come last, and of equal distances the easier one first."""
        pairs: list[tuple[bool, float, int, float, int, int]] = []
        for step, own in enumerate(shares):
            n = len(own)
            mean = math.fsum(share * k / n for k, share in enumerate(own))
            tie = random.Random(f"{self._seed}/{self.name}/leftover/{step}").random()
            for bucket in range(n):
                distance = round(abs(bucket / n - mean), _DIGITS)
                pairs.append((bucket == 0, distance, -bucket, tie, step, bucket))
        return [(step, bucket) for *_, step, bucket in sorted(pairs)]


def _exchange(
    missing: list[int], taken: list[list[int]], most: Sequence[int], supply: list[int]
) -> None:
    """Fill steps that have all they may of every bucket with prompts left: another step takes one
    of those, and gives up one that this step may still have."""
    for step in [step for step, number in enumerate(missing) if number]:
        while missing[step]:
            other, bucket, given_up = _trade(step, taken, most, supply)
            taken[other][given_up] -= 1
            taken[other][bucket] += 1
            taken[step][given_up] += 1
            supply[bucket] -= 1
            missing[step] -= 1


def _trade(
    step: int, taken: Sequence[Sequence[int]], most: Sequence[int], supply: Sequence[int]
) -> tuple[int, int, int]:
    """A step, the bucket that it takes a further prompt of, and the one that it gives up."""
    may_have = [k for k in range(len(most)) if taken[step][k] < most[k]]
    for bucket in (k for k in range(len(most)) if supply[k]):
        for other, row in enumerate(taken):
            if other != step and row[bucket] < most[bucket]:
                for given_up in may_have:
                    if row[given_up]:
                        return other, bucket, given_up
    raise AssertionError("the supply is enough for all steps")


def carried_counts(shares: Sequence[Sequence[float]], count: int) -> list[list[int]]:
    """Whole numbers by step, `count` in all of each, whose sums over the steps so far stay within
    about one of the shares' sums: what rounding withholds is owed to the next step."""
    owed = [0.0] * len(shares[0])
    rows: list[list[int]] = []
    for own in shares:
        whole = math.fsum(own)
        exact = [
            round(o + share / whole * count, _DIGITS) for o, share in zip(owed, own, strict=True)
        ]
        row = [max(math.floor(value), 0) for value in exact]
        for _ in range(sum(row) - count):  # others are in debt
            row[min((k for k in range(len(row)) if row[k]), key=lambda k: exact[k] - row[k])] -= 1
        for _ in range(count - sum(row)):
            row[max(range(len(row)), key=lambda k: (exact[k] - row[k], -k))] += 1
        owed = [value - number for value, number in zip(exact, row, strict=True)]
        rows.append(row)
    return rows


def fitted_shares(
    shares: Sequence[Sequence[float]], supply: Sequence[float], count: int
) -> list[list[float]]:
    """The shares of every step that are nearest to these (in relative entropy) among those that
    `supply` is enough for, over all steps: each bucket has one factor, at most 1, for all steps.

    Such shares of Gaussians whose mean falls have a mean that falls, whatever the supply: each step
    is the same distribution over pass rates but for a factor exp(pass rate · mean / sigma²).
    Iterative proportional fitting, with supplies as upper bounds.
    """
    whole = np.asarray(shares, dtype=np.float64)
    whole = whole / whole.sum(axis=1, keepdims=True)
    rates = np.arange(whole.shape[1]) / whole.shape[1]
    distances = np.abs(rates - (whole @ rates)[:, None])
    # no bucket is out of reach, and far from a narrow Gaussian the nearest is the likeliest
    kernel = whole + _REACH * np.exp(-distances * whole.shape[1])
    bounds = np.asarray(supply, dtype=np.float64)
    # prompts that never passed teach nothing: more than the target has only where nothing else is
    bounds[0] = min(
        bounds[0], max(count * whole[:, 0].sum(), count * len(whole) - bounds[1:].sum())
    )
    factors = (bounds > 0).astype(np.float64)
    for _ in range(_ROUNDS):
        rows = count / (kernel @ factors)
        updated = np.minimum(1.0, bounds / (rows @ kernel))
        done = np.abs(updated - factors).max() <= _CLOSE * factors.max()
        factors = updated / updated.max()
        if done:
            break
    fitted = kernel * factors
    return (fitted / fitted.sum(axis=1, keepdims=True)).tolist()


class _Turns:
    """Prompts in a keyed order: each comes once, then all again in another order."""

    def __init__(self, names: Sequence[str], key: str) -> None:
        self._names, self._key, self._round = names, key, 0
        self._left: list[str] = []

    def take(self, taken: set[str]) -> str:
        """The next prompt that is not `taken`, to which it is added. Only where all are, in a batch
        larger than the domain, a prompt comes twice."""
        free = self._last_free(taken)
        if free is None:
            order = list(self._names)
            random.Random(f"{self._key}/{self._round}").shuffle(order)
            self._round += 1
            # what is left of the round before, and has come in this very batch, waits at its end
            self._left = [*order, *self._left]
            free = self._last_free(taken)
        name = self._left.pop(len(self._left) - 1 if free is None else free)
        taken.add(name)
        return name

    def _last_free(self, taken: set[str]) -> int | None:
        places = range(len(self._left) - 1, -1, -1)
        return next((place for place in places if self._left[place] not in taken), None)
