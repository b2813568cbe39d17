"""Pass rates → which prompts each step trains on, before the run begins; pure and torch-free.

    plan = plan_curriculum(
        {"math": {"m-1": 7, "m-2": 0}, "code": {"c-1": 3}}, n=8, steps=600, batch=128,
        ratios={"math": 0.6, "code": 0.4}, mean_start=0.7, mean_end=0.4, sigma=0.15, seed=0,
    )
    plan[0][0]  → Draw(prompt_id="c-1", domain="code", bucket=3, reason="target")

A prompt's bucket is its number of passes out of n; one with n passes is left out. The paper (arXiv
2512.20848, section 3.2.2) fixes the share of each domain in every batch, and in each domain a
Gaussian over pass rates whose mean falls linearly with the step; Llama-Nemotron (arXiv 2505.00949,
section 5.1) fills what a bucket lacks from the largest remaining pools. What both leave open and is
ours: one mean and one sigma for all domains, rounding by largest remainder, drawing without
replacement, a missing prompt at a time from the pool that is largest then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
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
        reason: `target` (its bucket's share of the batch), `leftover` (another bucket had too few;
            this one was the largest remaining pool), `random` (its domain's turn, any bucket);
            while the run goes on `refill` (for a dropped group) and the difficulty pools.
    """

    prompt_id: str
    domain: str
    bucket: int
    reason: Reason


def gaussian_targets(mean: float, *, sigma: float, n: int) -> list[float]:
    """Shares of the buckets 0/n … (n−1)/n under a Gaussian; they sum to 1.

    Args:
        mean, sigma: as pass rates; the shares' own mean is nearer the middle where the Gaussian
            reaches beyond the buckets.

    Raises:
        ValueError: a mean outside 0 … 1, a sigma that is not positive and finite, n < 1.
    """
    if not 0 <= mean <= 1:
        raise ValueError(f"mean {mean} is no pass rate: it must be from 0 to 1")
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma {sigma} must be positive and finite")
    if n < 1:
        raise ValueError(f"n {n}: a pass rate needs at least one rollout")
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
    """Prompts of each domain in every batch, by largest remainder.

    Raises:
        ValueError: a ratio that is negative or not finite, none above 0, an empty batch.
    """
    for domain, ratio in ratios.items():
        if not 0 <= ratio < math.inf:
            raise ValueError(f"ratio {ratio} of domain {domain!r} must be finite and not negative")
    if not any(ratios.values()):
        raise ValueError("no domain has a ratio above 0")
    if batch < 1:
        raise ValueError(f"batch {batch}: a step needs at least one prompt")
    names = sorted(ratios)
    counts = largest_remainder([ratios[name] for name in names], batch)
    return dict(zip(names, counts, strict=True))


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

    Raises:
        ValueError: inputs that no plan can be made of.
    """
    for mean in (mean_start, mean_end):
        gaussian_targets(mean, sigma=sigma, n=n)  # an error even where no step has this mean

    def targets(step: int) -> list[float]:
        mean = mean_at(step, steps=steps, start=mean_start, end=mean_end)
        return gaussian_targets(mean, sigma=sigma, n=n)

    return _plan(pools, targets, n=n, steps=steps, batch=batch, ratios=ratios, seed=seed)


def plan_uniform(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """As `plan_curriculum`, with equal shares for all buckets in every step."""
    equal = [1 / n] * n if n > 0 else []
    return _plan(pools, lambda _: equal, n=n, steps=steps, batch=batch, ratios=ratios, seed=seed)


def plan_random(
    pools: Pools, *, n: int, steps: int, batch: int, ratios: Mapping[str, float], seed: int
) -> list[list[Draw]]:
    """As `plan_curriculum`, whatever the bucket: the paper's ablation."""
    return _plan(pools, lambda _: None, n=n, steps=steps, batch=batch, ratios=ratios, seed=seed)


def _plan(
    pools: Pools,
    targets: Callable[[int], Sequence[float] | None],
    *,
    n: int,
    steps: int,
    batch: int,
    ratios: Mapping[str, float],
    seed: int,
) -> list[list[Draw]]:
    if n < 1 or steps < 1:
        raise ValueError(f"n {n} and steps {steps} must be at least 1")
    counts = domain_counts(ratios, batch=batch)
    if unknown := sorted(set(ratios) - set(pools)):
        raise ValueError(
            f"there is no domain {unknown[0]!r}; domains are {', '.join(sorted(pools))}"
        )
    if without := sorted(set(pools) - set(ratios)):
        raise ValueError(f"domain {without[0]!r} has no ratio; 0 leaves it out")
    domains = [_Domain(name, pools[name], n=n, seed=seed) for name in counts if ratios[name] > 0]
    plan: list[list[Draw]] = []
    for step in range(steps):
        shares = targets(step)
        draws = [draw for one in domains for draw in one.draw(counts[one.name], shares)]
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
        """Begin again; returns, by bucket, what has come in this very batch and waits for the next.

        A batch larger than the domain has to repeat them.
        """
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
