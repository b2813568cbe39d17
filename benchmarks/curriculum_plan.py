"""The planned curriculum: pass rate drawn against target with endless and short pools; its time.
Then 500 prompts in each of 8 buckets, 50 steps of 64: the mean by fifths of the run, and the
prompts that never passed; and the spread of a domain with one or two places a step.

python benchmarks/curriculum_plan.py
"""

from __future__ import annotations

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

N, STEPS, BATCH = 16, 600, 128
RATIOS = {"math": 0.4, "code": 0.3, "instructions": 0.2, "stem": 0.1}
START, END, SIGMA = 0.7, 0.4, 0.15


def pools(per_domain: int, solved_more: float) -> dict[str, dict[str, int]]:
    """Pass rates in the shape of real profiles: many prompts at both ends.

    Args:
        solved_more: parameters (this, 0.5) of the Beta distribution that a prompt's rate is of.
    """
    rng = random.Random(0)
    return {
        domain: {
            f"{domain}-{k}": sum(rng.random() < rate for _ in range(N))
            for k in range(per_domain)
            for rate in [rng.betavariate(solved_more, 0.5)]
        }
        for domain in RATIOS
    }


def report(name: str, plan: list[list[Draw]], seconds: float) -> None:
    apart: list[float] = []
    for step, draws in enumerate(plan):
        mean = mean_at(step, steps=STEPS, start=START, end=END)
        shares = gaussian_targets(mean, sigma=SIGMA, n=N)
        target = sum(share * k / N for k, share in enumerate(shares))
        apart.append(statistics.fmean(draw.bucket / N for draw in draws) - target)
    ratios = {tuple(sorted(Counter(d.domain for d in draws).items())) for draws in plan}
    times = Counter(draw.prompt_id for draws in plan for draw in draws)
    reasons = Counter(draw.reason for draws in plan for draw in draws)
    first, last = statistics.fmean(apart[:200]), statistics.fmean(apart[-200:])
    leftovers = reasons["leftover"] / sum(reasons.values())
    print(
        f"{name:<24} {seconds:4.1f} s  drawn − target: first third {first:+.3f}, last {last:+.3f}, "
        f"largest {max(map(abs, apart)):.3f}  leftovers {leftovers:.1%}  a prompt at most "
        f"{max(times.values())} time(s)  same ratios in all batches: {len(ratios) == 1}"
    )


def small() -> None:
    means = {"mean_start": START, "mean_end": END, "sigma": SIGMA}
    short = {"m": {f"{k}-{i}": k for k in range(8) for i in range(500)}}
    plan = plan_curriculum(short, n=8, steps=50, batch=64, ratios={"m": 1}, seed=0, **means)
    fifths = [
        f"{statistics.fmean(draw.bucket / 8 for draws in plan[at : at + 10] for draw in draws):.2f}"
        for at in range(0, 50, 10)
    ]
    hopeless = sum(draw.bucket == 0 for draws in plan for draw in draws)
    print(f"500 a bucket, 50 x 64: mean {' → '.join(fifths)}, {hopeless} that never passed")
    shares = gaussian_targets(0.5, sigma=SIGMA, n=8)
    mean = sum(share * k / 8 for k, share in enumerate(shares))
    spread = sum(share * (k / 8 - mean) ** 2 for k, share in enumerate(shares)) ** 0.5
    for batch in (1, 2):
        plan = plan_curriculum(
            short, n=8, steps=200, batch=batch, ratios={"m": 1}, seed=0,
            mean_start=0.5, mean_end=0.5, sigma=SIGMA,
        )  # fmt: skip
        drawn = statistics.pstdev(draw.bucket / 8 for draws in plan for draw in draws)
        print(f"{batch} place(s) a step: deviation drawn {drawn:.3f}, of the target {spread:.3f}")


def main() -> None:
    shape = {"n": N, "steps": STEPS, "batch": BATCH, "ratios": RATIOS, "seed": 0}
    means = {"mean_start": START, "mean_end": END, "sigma": SIGMA}
    for name, made in (
        ("endless, 1,000,000", pools(250_000, 0.5)),
        ("short, 100,000", pools(25_000, 0.5)),
        ("short and hard, 100,000", pools(25_000, 0.1)),
        ("exhausted, 40,000", pools(10_000, 0.5)),
    ):
        started = time.perf_counter()
        plan = plan_curriculum(made, **shape, **means)  # pyright: ignore[reportArgumentType]  # keyword groups
        report(name, plan, time.perf_counter() - started)
    small()
    started = time.perf_counter()
    plan = plan_random(made, **shape)  # pyright: ignore[reportArgumentType]  # keyword groups
    print(f"random, the same: {time.perf_counter() - started:.1f} s, {len(plan)} steps")


if __name__ == "__main__":
    main()
