"""The planned curriculum: pass rate drawn against target with endless and short pools; its time.

    python benchmarks/curriculum_plan.py

Then 500 prompts in each of 8 buckets, 50 steps of 64: the mean by fifths of the run, and the
prompts that never passed; and the spread of a domain with one or two places a step.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter

from posttrain.training.rl.curriculum import (
    Draw,
    gaussian_targets,
    mean_at,
    plan_curriculum,
    plan_random,
)

N = 16
STEPS = 600
BATCH = 128
RATIOS = {"math": 0.4, "code": 0.3, "instructions": 0.2, "stem": 0.1}
START = 0.7
END = 0.4
SIGMA = 0.15


def pools(per_domain: int, solved_more: float) -> dict[str, dict[str, int]]:
    """Pass rates in the shape of real profiles: many prompts at both ends.

    Args:
        solved_more: first parameter of the Beta distribution of a prompt's rate; the second is 0.5.

    Returns:
        Domain → prompt id → passes out of `N`.
    """
    rng = random.Random(0)
    passes_by_domain: dict[str, dict[str, int]] = {}
    for domain in RATIOS:
        passes: dict[str, int] = {}
        for k in range(per_domain):
            rate = rng.betavariate(solved_more, 0.5)
            passes[f"{domain}-{k}"] = sum(rng.random() < rate for _ in range(N))
        passes_by_domain[domain] = passes
    return passes_by_domain


def report(name: str, plan: list[list[Draw]], seconds: float) -> None:
    """Print how far a plan's pass rates are from their targets, and its draws."""
    deviations: list[float] = []
    for step, draws in enumerate(plan):
        mean = mean_at(step, steps=STEPS, start=START, end=END)
        shares = gaussian_targets(mean, sigma=SIGMA, n=N)
        target = sum(share * k / N for k, share in enumerate(shares))
        deviations.append(statistics.fmean(draw.bucket / N for draw in draws) - target)
    ratios = {tuple(sorted(Counter(d.domain for d in draws).items())) for draws in plan}
    all_draws = list(itertools.chain.from_iterable(plan))
    times = Counter(draw.prompt_id for draw in all_draws)
    leftovers = sum(draw.reason == "leftover" for draw in all_draws) / len(all_draws)
    first_third = statistics.fmean(deviations[: STEPS // 3])
    last_third = statistics.fmean(deviations[-(STEPS // 3) :])
    print(
        f"{name:<24} {seconds:4.1f} s  drawn − target: first third {first_third:+.3f}, "
        f"last {last_third:+.3f}, largest {max(map(abs, deviations)):.3f}  "
        f"leftovers {leftovers:.1%}  a prompt at most {max(times.values())} time(s)  "
        f"same ratios in all batches: {len(ratios) == 1}"
    )


def report_small_plans() -> None:
    """Print the means and spreads of plans with few prompts and few places."""
    means = {"mean_start": START, "mean_end": END, "sigma": SIGMA}
    short = {"m": {f"{k}-{i}": k for k in range(8) for i in range(500)}}
    plan = plan_curriculum(short, n=8, steps=50, batch=64, ratios={"m": 1}, seed=0, **means)
    fifths: list[str] = []
    for start in range(0, 50, 10):
        draws = itertools.chain.from_iterable(plan[start : start + 10])
        fifths.append(f"{statistics.fmean(draw.bucket / 8 for draw in draws):.2f}")
    never_passed = sum(draw.bucket == 0 for draws in plan for draw in draws)
    print(f"500 a bucket, 50 x 64: mean {' → '.join(fifths)}, {never_passed} that never passed")
    shares = gaussian_targets(0.5, sigma=SIGMA, n=8)
    mean = sum(share * k / 8 for k, share in enumerate(shares))
    spread = sum(share * (k / 8 - mean) ** 2 for k, share in enumerate(shares)) ** 0.5
    for batch in (1, 2):
        plan = plan_curriculum(
            short,
            n=8,
            steps=200,
            batch=batch,
            ratios={"m": 1},
            seed=0,
            mean_start=0.5,
            mean_end=0.5,
            sigma=SIGMA,
        )
        deviation = statistics.pstdev(draw.bucket / 8 for draws in plan for draw in draws)
        print(
            f"{batch} place(s) a step: deviation drawn {deviation:.3f}, of the target {spread:.3f}"
        )


def main() -> None:
    shape = {"n": N, "steps": STEPS, "batch": BATCH, "ratios": RATIOS, "seed": 0}
    means = {"mean_start": START, "mean_end": END, "sigma": SIGMA}
    exhausted = pools(10_000, 0.5)
    for name, profile in (
        ("endless, 1,000,000", pools(250_000, 0.5)),
        ("short, 100,000", pools(25_000, 0.5)),
        ("short and hard, 100,000", pools(25_000, 0.1)),
        ("exhausted, 40,000", exhausted),
    ):
        started = time.perf_counter()
        plan = plan_curriculum(profile, **shape, **means)  # pyright: ignore[reportArgumentType]  # keyword groups
        report(name, plan, time.perf_counter() - started)
    report_small_plans()
    started = time.perf_counter()
    plan = plan_random(exhausted, **shape)  # pyright: ignore[reportArgumentType]  # keyword groups
    print(f"random, the same: {time.perf_counter() - started:.1f} s, {len(plan)} steps")


if __name__ == "__main__":
    main()
