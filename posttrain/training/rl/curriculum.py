"""Pass rates → the prompts of every step, before the run begins; pure and torch-free.

    plan = plan_curriculum(
        {"math": {"m-1": 7, "m-2": 0}, "code": {"c-1": 3}}, n=8, steps=600, batch=128,
        ratios={"math": 0.6, "code": 0.4}, mean_start=0.7, mean_end=0.4, sigma=0.15, seed=0,
    )
    plan[0][0]  → Draw(prompt_id="c-1", domain="code", bucket=3, reason="target")

The paper (arXiv 2512.20848, section 3.2.2) fixes the share of each domain in every batch, and in
each domain a Gaussian over pass rates whose mean falls linearly with the step; Llama-Nemotron
(arXiv 2505.00949, section 5.1) fills what a bucket lacks from the largest remaining pools. Ours:
one mean and one sigma for all domains, rounding by largest remainder, drawing without replacement,
a missing prompt at a time from the pool that is largest then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Pools = Mapping[str, Mapping[str, int]]
Reason = Literal["target", "leftover", "random", "refill", "easy", "normal", "hard"]
_DIGITS = 9  # shares that differ by less are rounding errors of equal ones


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

    No prompt comes twice before all of its domain have come once; then a new pass begins.

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
    domains = [_Domain(name, pools[name], n=n, seed=seed) for name in counts if ratios[name] > 0]
    plan: list[list[Draw]] = []
    for step, own in enumerate(shares):
        draws = [draw for one in domains for draw in one.draw(counts[one.name], own)]
        random.Random(f"{seed}/batch/{step}").shuffle(draws)
        plan.append(draws)
    return plan


class _Domain:
    """The prompts of one domain that have not come in this pass, by bucket."""

    def __init__(self, name: str, passes: Mapping[str, int], *, n: int, seed: int) -> None:
        self.name, self._seed, self._pass = name, seed, 0
        self._all: list[list[str]] = [[] for _ in range(n)]
        for prompt_id, count in passes.items():
            if not 0 <= count <= n or count != int(count):
                raise ValueError(f"prompt {prompt_id!r} of {name!r}: {count} passes out of {n}")
            if count < n:
                self._all[int(count)].append(prompt_id)
        self.size = sum(map(len, self._all))
        if not self.size:
            raise ValueError(f"domain {name!r} has a ratio, but no prompt with a pass rate below 1")
        for prompts in self._all:
            prompts.sort()
        self._left: list[list[str]] = [[] for _ in range(n)]

    def draw(self, count: int, shares: Sequence[float] | None) -> list[Draw]:
        """The domain's part of a batch; `shares` of the buckets, None for any."""
        draws: list[Draw] = []
        held: list[list[str]] = [[] for _ in self._left]
        while len(draws) < count:
            if not any(self._left):
                self._left, held = held, [[] for _ in self._left]
            if not any(self._left):
                held = self._new_pass({draw.prompt_id for draw in draws})
            missing = count - len(draws)
            draws += self._random(missing) if shares is None else self._by_target(missing, shares)
        for left, back in zip(self._left, held, strict=True):
            left[:0] = back
        return draws

    def _new_pass(self, drawn: set[str]) -> list[list[str]]:
        """Begin again; returns, by bucket, what has come in this very batch and waits for the next,
        except in a batch larger than the domain, which has to repeat prompts."""
        held: list[list[str]] = [[] for _ in self._all]
        for bucket, prompts in enumerate(self._all):
            order = prompts.copy()
            random.Random(f"{self._seed}/{self.name}/{self._pass}/{bucket}").shuffle(order)
            if len(drawn) < self.size:
                held[bucket] = [name for name in order if name in drawn]
                order = [name for name in order if name not in drawn]
            self._left[bucket] = order
        self._pass += 1
        return held

    def _by_target(self, count: int, shares: Sequence[float]) -> list[Draw]:
        """By bucket, the hardest first where shares are equal; fewer where the pass ends."""
        draws: list[Draw] = []
        for bucket, wanted in enumerate(largest_remainder(shares, count)):
            present = min(wanted, len(self._left[bucket]))
            draws += [self._take(bucket, "target") for _ in range(present)]
        while len(draws) < count and any(self._left):
            largest = max(range(len(self._left)), key=lambda k: len(self._left[k]))
            draws.append(self._take(largest, "leftover"))
        return draws

    def _random(self, count: int) -> list[Draw]:
        """Buckets in proportion to what is left in them."""
        chance = random.Random(f"{self._seed}/{self.name}/{self._pass}/{sum(map(len, self._left))}")
        draws: list[Draw] = []
        while len(draws) < count and any(self._left):
            sizes = [len(left) for left in self._left]
            [bucket] = chance.choices(range(len(sizes)), weights=sizes)
            draws.append(self._take(bucket, "random"))
        return draws

    def _take(self, bucket: int, reason: Reason) -> Draw:
        return Draw(self._left[bucket].pop(), self.name, bucket, reason)
