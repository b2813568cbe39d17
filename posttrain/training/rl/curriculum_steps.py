"""The curriculum of a run: a recipe and pass rates → planned steps, their file, what they show.

plan = make_plan(recipe.curriculum, pools, n=8, steps=600, batch=128, ratios={…}, max_epochs=1,
                 seed=0)
plan.draws[0]    → [Draw("m-7", "math", 5, "target"), …]
plan.figures(0)  → {"domain/math/target": 0.62, …}
plan.text()      → curriculum.jsonl, a line a step:
{"step": 1, "target": 0.62, "prompts": [["m-7", "math", 5, "target"], …]}
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.config.rlvr import CurriculumConfig
from posttrain.errors import ConfigError
from posttrain.hashing import digest_of
from posttrain.records import json_text
from posttrain.training.rl.curriculum import (
    Draw,
    Pools,
    domain_counts,
    gaussian_targets,
    mean_at,
    plan_curriculum,
    plan_random,
    plan_uniform,
)

CURRICULUM = "curriculum.jsonl"


@dataclass(frozen=True, slots=True)
class CurriculumPlan:
    """The draws of every step.

    Attributes:
        n: rollouts that pass rates are out of.
        targets: of every step, the mean pass rate aimed at; None where there is no target.
    """

    draws: Sequence[Sequence[Draw]]
    n: int
    targets: Sequence[float | None]

    def figures(self, step: int) -> dict[str, float]:
        """By domain: the pass rate aimed at, that of the prompts drawn, the share of leftovers."""
        figures: dict[str, float] = {}
        for domain, own in _by_domain(self.draws[step]).items():
            figures[f"domain/{domain}/drawn"] = statistics.fmean(d.bucket / self.n for d in own)
            leftovers = sum(draw.reason == "leftover" for draw in own)
            figures[f"domain/{domain}/leftover"] = leftovers / len(own)
            if (target := self.targets[step]) is not None:
                figures[f"domain/{domain}/target"] = target
        return figures

    def text(self) -> str:
        """The lines of `curriculum.jsonl`."""
        rows = (
            {
                "step": step + 1,
                "target": self.targets[step],
                "prompts": [[d.prompt_id, d.domain, d.bucket, d.reason] for d in draws],
            }
            for step, draws in enumerate(self.draws)
        )
        return "".join(json_text(row) + "\n" for row in rows)

    @property
    def digest(self) -> str:
        """Of what is drawn in which order."""
        return digest_of([[draw.prompt_id for draw in draws] for draws in self.draws])

    def lines(self) -> Iterator[tuple[str, str]]:
        """A line a domain for the run's plan."""
        drawn = [draw for draws in self.draws for draw in draws]
        for domain, own in sorted(_by_domain(drawn).items()):
            first, last = (
                statistics.fmean(d.bucket / self.n for d in _by_domain(self.draws[k])[domain])
                for k in (0, -1)
            )
            leftovers = sum(draw.reason == "leftover" for draw in own) / len(own)
            times = Counter(draw.prompt_id for draw in own)
            yield (
                "curriculum",
                f"{domain}: {len(own) // len(self.draws)} prompts a step of {len(times):,} "
                f"different, each at most {max(times.values())} time(s); pass rate drawn "
                f"{first:.2f} → {last:.2f}, {leftovers:.0%} of them leftovers",
            )

    def stats(self) -> dict[str, Any]:
        """For the manifest."""
        drawn = [draw for draws in self.draws for draw in draws]
        return {
            "reasons": dict(sorted(Counter(draw.reason for draw in drawn).items())),
            "prompts": dict(sorted(Counter(draw.domain for draw in drawn).items())),
            "different": len({draw.prompt_id for draw in drawn}),
        }


def _by_domain(draws: Sequence[Draw]) -> dict[str, list[Draw]]:
    names = sorted({draw.domain for draw in draws})
    return {name: [draw for draw in draws if draw.domain == name] for name in names}


def make_plan(
    config: CurriculumConfig,
    pools: Pools,
    *,
    n: int,
    steps: int,
    batch: int,
    ratios: Mapping[str, float],
    max_epochs: int,
    seed: int,
) -> CurriculumPlan:
    """The plan of a recipe.

    Args:
        pools, n, ratios: as of `plan_curriculum`.
        max_epochs: how often a prompt may come.

    Raises:
        ConfigError: no such plan can be made, a domain has no place in a batch, or a prompt would
            come too often.
    """
    shape: dict[str, Any] = {"n": n, "steps": steps, "batch": batch, "ratios": ratios, "seed": seed}
    means: dict[str, Any] = {"mean_start": config.mean_start, "mean_end": config.mean_end}
    try:
        counts = domain_counts(ratios, batch=batch)
        if without := [domain for domain, count in counts.items() if not count]:
            raise ValueError(f"domain {without[0]!r} gets no place in batches of {batch}")
        if config.order == "gaussian":
            draws = plan_curriculum(pools, **shape, **means, sigma=config.sigma)
        else:
            draws = (plan_uniform if config.order == "uniform" else plan_random)(pools, **shape)
        for domain, count in counts.items():
            if config.order == "difficulty_pools" and count > len(pools[domain]):
                raise ValueError(f"domain {domain!r} has fewer than {count} prompts to draw from")
    except ValueError as error:
        raise ConfigError(f"curriculum: {error}") from error
    prompt, times = Counter(d.prompt_id for step in draws for d in step).most_common(1)[0]
    if times > max_epochs:
        raise ConfigError(
            f"prompt {prompt!r} would come {times} times in {steps} steps of {batch}, max_epochs "
            f"is {max_epochs}: profile more prompts of its domain, train fewer steps, give the "
            f"domain a smaller ratio, or set max_epochs: {times}"
        )
    return CurriculumPlan(draws, n, [_target(config, step, steps, n) for step in range(steps)])


def _target(config: CurriculumConfig, step: int, steps: int, n: int) -> float | None:
    """The mean of a step's target shares."""
    if config.order in ("random", "difficulty_pools"):
        return None
    shares = [1 / n] * n
    if config.order == "gaussian":
        mean = mean_at(step, steps=steps, start=config.mean_start, end=config.mean_end)
        shares = gaussian_targets(mean, sigma=config.sigma, n=n)
    return sum(share * k / n for k, share in enumerate(shares))
