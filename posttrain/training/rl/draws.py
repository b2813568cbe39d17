"""Prompts of each step: from a plan, from refills for groups that teach nothing, or from pools by
the latest pass rate in training.

Dynamic sampling (DAPO, arXiv 2503.14476) replaces a group whose rewards are all equal. The choice
of the refill is ours: a prompt of the same domain with the nearest pass rate, which the plan and
`max_epochs` allow to be drawn again. Difficulty pools are prime-rl's; within a pool the prompts
drawn least often come first, and a pool that has too few is filled from the largest of the others.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from posttrain.config.rlvr import RlvrConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from posttrain.runs import atomic_write_text
from posttrain.training.order import rows_drawn
from posttrain.training.plan import check_enough
from posttrain.training.rl.curriculum import (
    Draw,
    Pools,
    Reason,
    domain_counts,
    gaussian_shares,
    largest_remainder,
    plan_shares,
)

DRAWS = "draws.jsonl"
# share of each difficulty pool in a domain's prompts of a step, while it has enough; the pools are
# prime-rl's, the values ours
POOL_SHARES: dict[Reason, float] = {"hard": 0.2, "normal": 0.7, "easy": 0.1}
_HARD_RATE = 0.2
_EASY_RATE = 0.8
# Change of the target pass rate over a run below which it counts as constant
_CONSTANT_TARGET = 0.02
# Difference of drawn and target pass rate that the plan points out
_OFF_TARGET = 0.1


def pool_of(rate: float) -> Reason:
    """Difficulty pool of a prompt with this pass rate in its last group."""
    if rate >= _EASY_RATE:
        return "easy"
    return "hard" if rate <= _HARD_RATE else "normal"


class DomainShares:
    """Draws a fixed number of prompts of each source in every step.

    A source's prompts come in whole permutations one after the other, as in a run without shares.

    Args:
        shares: source → share of a step's prompts; only proportions count.

    Raises:
        ConfigError: a source's share is less than one prompt a step.
    """

    def __init__(
        self, prompts: Sequence[Prompt], shares: Mapping[str, float], *, per_step: int, seed: int
    ) -> None:
        self.counts = domain_counts(shares, batch=per_step)
        self._seed = seed
        self._rows: dict[str, list[int]] = {domain: [] for domain in self.counts}
        for row, prompt in enumerate(prompts):
            self._rows[prompt.source].append(row)
        for domain, count in self.counts.items():
            if not count:
                raise ConfigError(f"shares: domain {domain!r} gets no place in steps of {per_step}")

    def check_enough(self, *, steps: int, max_epochs: int) -> None:
        """Refuse a run of more steps than the prompts of a source allow.

        Raises:
            ConfigError: a source has too few prompts.
        """
        for domain, count in self.counts.items():
            check_enough(
                len(self._rows[domain]),
                name=f"prompts of {domain}",
                batch=count,
                batches=steps,
                max_epochs=max_epochs,
            )

    def draw(self, step: int) -> list[int]:
        """Rows of a step's prompts, counted from 0, in random order."""
        rows: list[int] = []
        for domain, count in self.counts.items():
            domain_rows = self._rows[domain]
            key = int.from_bytes(f"{self._seed}/{domain}".encode(), "big")
            chosen = rows_drawn(count=len(domain_rows), per_step=count, step=step, seed=key)
            rows += [domain_rows[index] for index in chosen]
        # mixed, so that no process has all prompts of a source
        random.Random(f"{self._seed}/shares/{step}").shuffle(rows)
        return rows


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """Outcome of one drawn prompt.

    Attributes:
        position, attempt, dropped: Fields of its `ScoredGroup`.
        passes: Number of rollouts that passed, out of `scored`.
        scored: Number of rollouts that have a reward.
    """

    position: int
    attempt: int
    prompt_id: str
    domain: str
    reason: Reason
    passes: int
    scored: int
    dropped: bool


class PromptDraws:
    """Draws the prompts of one step after the other; every process draws the same.

    With refills or pools the draws depend on the outcomes of the steps before. These are recorded
    in `draws.jsonl`, a line a step, which a resumed run reads.

    Args:
        pools: domain → prompt id → passes out of n.

    Attributes:
        rounds: Most rounds of rollouts in a step; above 1, dropped groups are replaced.

    Raises:
        ConfigError: no such plan can be made.
    """

    def __init__(self, recipe: RlvrConfig, pools: Pools, *, n: int, steps: int) -> None:
        config = recipe.curriculum
        shares: list[list[float] | None] = [None] * steps
        try:
            if config.order == "gaussian":
                means: dict[str, float] = {"start": config.mean_start, "end": config.mean_end}
                shares = [*gaussian_shares(n=n, steps=steps, **means, sigma=config.sigma)]
            elif config.order == "uniform":
                shares = [[1 / n] * n] * steps
            self._planned = _plan(recipe, pools, shares, n=n)
        except ValueError as error:
            raise ConfigError(f"curriculum: {error}") from error
        self._n = n
        self._draws_from_pools = config.order == "difficulty_pools"
        # mean pass rate that each step aims at; None where there is no target
        self._targets: list[float | None] = []
        for step_shares in shares:
            target: float | None = None
            if step_shares is not None:
                target = sum(share * k / n for k, share in enumerate(step_shares))
            self._targets.append(target)
        dynamic = recipe.dynamic_sampling
        self.rounds = dynamic.max_gen_batches if dynamic else 1
        # true where later draws depend on the outcomes of earlier steps
        self._recorded = self.rounds > 1 or self._draws_from_pools
        self._pools = pools
        self._max_epochs = recipe.max_epochs
        self._seed = recipe.seed
        self._file = Path(recipe.out) / DRAWS
        # ties are broken by the rank in a keyed shuffle of the domain's prompts
        self._tie_rank: dict[str, int] = {}
        for domain, prompts in sorted(pools.items()):
            names = sorted(prompts)
            random.Random(f"{self._seed}/refill/{domain}").shuffle(names)
            self._tie_rank |= {name: rank for rank, name in enumerate(names)}
        self._lines: list[str] = []
        self._reset()

    def _reset(self) -> None:
        """Reset to the state before step 0.

        Later lines in the file were written by an interrupted run, so the next record rewrites it.
        """
        self._next_step = 0
        self._step_drawn = False
        self._rewrite = True
        # latest pass rates: the profile's, until training shows others
        self._rates: dict[str, float] = {}
        for passes in self._pools.values():
            self._rates |= {name: count / self._n for name, count in passes.items()}
        # times that the plan or the pools draw each prompt, refills included
        self._times: Counter[str] = Counter()
        if not self._draws_from_pools:
            for draws in self._planned:
                self._times.update(draw.prompt_id for draw in draws)
        self._in_step: set[str] = set()

    def draw(self, step: int) -> list[Draw]:
        """Prompts of the first round of a step, counted from 0."""
        planned = self._planned[step]
        if not self._recorded:
            return planned
        if self._step_drawn or self._next_step != step:
            # drawn before but not recorded, or a resumed run
            self._restore(step)
        self._step_drawn = True
        draws = self._draw_from_pools(planned) if self._draws_from_pools else planned
        self._in_step = {draw.prompt_id for draw in draws}
        return draws

    def _restore(self, step: int) -> None:
        """Restore the state before a step from the recorded outcomes of the steps before it."""
        if len(self._lines) < step:
            written = self._file.read_text("utf-8").splitlines() if self._file.is_file() else []
            if len(written) < step:
                raise DataError(f"{self._file} has {len(written)} steps of the {step} before this")
            self._lines = written
        self._lines = self._lines[:step]
        self._reset()
        self._next_step = step
        groups = self._recorded_groups()
        # `_reset` has counted the planned draws, so that only refills are added to them
        self._times.update(
            group.prompt_id for group in groups if self._draws_from_pools or group.attempt
        )
        self._update_rates(groups)

    def _recorded_groups(self) -> list[DrawnGroup]:
        """Outcomes of all steps so far."""
        groups: list[DrawnGroup] = []
        for line in self._lines:
            groups += [DrawnGroup(*row) for row in json.loads(line)["groups"]]
        return groups

    def _draw_from_pools(self, planned: Sequence[Draw]) -> list[Draw]:
        """Draw as many prompts of each domain as planned, from the pools of the domain."""
        chosen: dict[str, list[Draw]] = {}
        for domain, count in sorted(Counter(draw.domain for draw in planned).items()):
            # names are popped from the end, where the least drawn are
            pools: dict[Reason, list[str]] = {pool: [] for pool in POOL_SHARES}
            for name in sorted(self._pools[domain], key=self._least_drawn, reverse=True):
                pools[pool_of(self._rates[name])].append(name)
            targets = largest_remainder([*POOL_SHARES.values()], count)
            draws: list[Draw] = []
            for pool, target in zip(POOL_SHARES, targets, strict=True):
                for _ in range(min(target, len(pools[pool]))):
                    draws.append(self._as_draw(pools[pool].pop(), domain, pool))
            while len(draws) < count:
                largest = max(POOL_SHARES, key=lambda pool: len(pools[pool]))
                draws.append(self._as_draw(pools[largest].pop(), domain, "leftover"))
            random.Random(f"{self._seed}/pools/{domain}/{self._next_step}").shuffle(draws)
            chosen[domain] = draws
        step_draws = [chosen[draw.domain].pop() for draw in planned]
        self._times.update(draw.prompt_id for draw in step_draws)
        return step_draws

    def _least_drawn(self, name: str) -> tuple[int, int]:
        return self._times[name], self._tie_rank[name]

    def _as_draw(self, name: str, domain: str, reason: Reason) -> Draw:
        return Draw(name, domain, round(self._rates[name] * self._n), reason)

    def refill(self, dropped: Sequence[Draw]) -> list[Draw | None]:
        """Draw a replacement for each dropped draw of the step, None where the domain has no more.

        Returns the replacements in the order of `dropped`.
        """
        refills: list[Draw | None] = [None] * len(dropped)
        indices_of: dict[tuple[str, float], list[int]] = {}
        for index, draw in enumerate(dropped):
            indices_of.setdefault((draw.domain, self._rates[draw.prompt_id]), []).append(index)
        for (domain, rate), indices in sorted(indices_of.items()):
            candidates = (
                (abs(self._rates[name] - rate), *self._least_drawn(name), name)
                for name in self._pools[domain]
                if name not in self._in_step and self._times[name] < self._max_epochs
            )
            names = [name for *_, name in heapq.nsmallest(len(indices), candidates)]
            # fewer names than indices: the remaining positions stay empty
            for index, name in zip(indices, names, strict=False):
                refills[index] = self._as_draw(name, domain, "refill")
            self._in_step.update(names)
            self._times.update(names)
        return refills

    def record(self, groups: Sequence[DrawnGroup], *, main: bool) -> None:
        """Record the outcomes of the step that was drawn last, of all processes.

        Args:
            main: True in the process that writes them to the file.
        """
        if not self._recorded:
            return
        self._update_rates(groups)
        self._next_step += 1
        self._step_drawn = False
        step = {"step": self._next_step, "groups": [astuple(group) for group in groups]}
        self._lines.append(json_text(step))
        if main and self._rewrite:
            atomic_write_text(self._file, "".join(line + "\n" for line in self._lines))
        elif main:
            with self._file.open("a", encoding="utf-8") as handle:
                handle.write(self._lines[-1] + "\n")
                # on disk before the checkpoint that depends on it
                handle.flush()
                os.fsync(handle.fileno())
        self._rewrite = False

    def _update_rates(self, groups: Sequence[DrawnGroup]) -> None:
        """Set the pass rates that decide the pools to the latest of training."""
        if not self._draws_from_pools:
            return
        for group in groups:
            if group.scored:
                self._rates[group.prompt_id] = group.passes / group.scored

    def figures(self, step: int, draws: Sequence[Draw]) -> dict[str, float]:
        """Metrics of the first round's prompts of a step, by domain."""
        figures: dict[str, float] = {}
        for domain, domain_draws in _by_domain(draws).items():
            figures[f"domain/{domain}/drawn"] = self._mean_rate(domain_draws)
            figures[f"domain/{domain}/leftover"] = _leftover_share(domain_draws)
            target = self._targets[step]
            if target is not None:
                figures[f"domain/{domain}/target"] = target
            if self._draws_from_pools:
                for pool, size in self._pool_sizes(domain).items():
                    figures[f"domain/{domain}/pool_{pool}"] = size
        return figures

    def _mean_rate(self, draws: Sequence[Draw]) -> float:
        return statistics.fmean(draw.bucket / self._n for draw in draws)

    def _pool_sizes(self, domain: str) -> dict[str, int]:
        sizes = Counter(pool_of(self._rates[name]) for name in self._pools[domain])
        return {pool: sizes[pool] for pool in POOL_SHARES}

    @property
    def digest(self) -> str:
        """Digest of the plan, and of the profiled pass rates where draws depend on outcomes."""
        planned = digest_of([[draw.prompt_id for draw in draws] for draws in self._planned])
        return digest_of([planned, self._pools]) if self._recorded else planned

    def write_plan(self) -> None:
        """Write `curriculum.jsonl`, if prompts come from the plan, a line a step:

        {"step": 1, "target": 0.62, "prompts": [["m-7", "math", 5, "target"], …]}
        """
        if self._draws_from_pools:
            return
        lines: list[str] = []
        for step, (target, draws) in enumerate(zip(self._targets, self._planned, strict=True)):
            prompts = [astuple(draw) for draw in draws]
            row = {"step": step + 1, "target": target, "prompts": prompts}
            lines.append(json_text(row) + "\n")
        atomic_write_text(self._file.with_name("curriculum.jsonl"), "".join(lines))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Lines of the run's plan, one a domain."""
        planned = _by_domain([draw for draws in self._planned for draw in draws])
        per_step = _by_domain(self._planned[0])
        for domain, draws in planned.items():
            text = f"{domain}: {len(per_step[domain])} prompts a step "
            if self._draws_from_pools:
                sizes = self._pool_sizes(domain).items()
                text += f"from pools, {', '.join(f'{pool} {size:,}' for pool, size in sizes)}"
            else:
                times = Counter(draw.prompt_id for draw in draws)
                text += (
                    f"of {len(times):,} different, each at most {max(times.values())} time(s); "
                    f"{self._rate_course(domain)}, {_leftover_share(draws):.0%} of them leftovers"
                )
            yield "curriculum", text

    def _rate_course(self, domain: str) -> str:
        """Describe the drawn and the target pass rates of a domain in the course of the steps.

        First and last third; and where the profile lacks prompts for the target.
        """
        third = max(len(self._planned) // 3, 1)
        drawn_rates: list[float] = []
        for steps in (self._planned[:third], self._planned[-third:]):
            drawn_rates.append(
                statistics.fmean(self._mean_rate(_by_domain(draws)[domain]) for draws in steps)
            )
        text = f"pass rate drawn {drawn_rates[0]:.2f} → {drawn_rates[1]:.2f}"
        targets = [target_rates for target_rates in self._targets if target_rates is not None]
        if not targets:
            return text
        target_rates = [statistics.fmean(targets[:third]), statistics.fmean(targets[-third:])]
        text += f" for a target of {target_rates[0]:.2f} → {target_rates[1]:.2f}"
        drawn_fall = drawn_rates[0] - drawn_rates[1]
        target_fall = target_rates[0] - target_rates[1]
        if (
            len(self._planned) > 1
            and abs(target_fall) > _CONSTANT_TARGET
            and drawn_fall * target_fall <= 0
        ):
            change = "fall" if target_fall > 0 else "rise"
            text += f" (it cannot {change}: the profile has too few prompts of other pass rates)"
            return text
        worst = max(drawn_rates[0] - target_rates[0], drawn_rates[1] - target_rates[1], key=abs)
        if abs(worst) > _OFF_TARGET:
            difficulty = "easier" if worst < 0 else "harder"
            text += f" ({worst:+.2f} off: the profile has too few {difficulty} prompts)"
        return text

    def stats(self) -> dict[str, Any]:
        """Counts of the drawn prompts for the manifest, at the end of the run."""
        draws: list[Draw] | list[DrawnGroup]
        if self._recorded:
            draws = self._recorded_groups()
        else:
            draws = [draw for step_draws in self._planned for draw in step_draws]
        return {
            "reasons": dict(sorted(Counter(draw.reason for draw in draws).items())),
            "prompts": dict(sorted(Counter(draw.domain for draw in draws).items())),
            "different": len({draw.prompt_id for draw in draws}),
        }


def _plan(
    recipe: RlvrConfig, pools: Pools, shares: Sequence[list[float] | None], *, n: int
) -> list[list[Draw]]:
    """Plan the prompts of every step. Raises ValueError where the prompts do not suffice."""
    batch = recipe.prompts_per_step
    ratios = {name: domain.ratio for name, domain in recipe.domains.items()}
    for domain, count in domain_counts(ratios, batch=batch).items():
        if not count:
            raise ValueError(f"domain {domain!r} gets no place in batches of {batch}")
        if recipe.curriculum.order == "difficulty_pools" and count > len(pools[domain]):
            raise ValueError(f"domain {domain!r} has fewer than {count} prompts to draw from")
    plan = plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=recipe.seed)
    draw_counts = Counter(draw.prompt_id for draws in plan for draw in draws)
    prompt, times = draw_counts.most_common(1)[0]
    if times > recipe.max_epochs:
        raise ValueError(
            f"prompt {prompt!r} would come {times} times in {len(shares)} steps of {batch}, "
            f"max_epochs is {recipe.max_epochs}: profile more prompts of its domain, train fewer "
            f"steps, give the domain a smaller ratio, or set max_epochs: {times}"
        )
    return plan


def _by_domain(draws: Sequence[Draw]) -> dict[str, list[Draw]]:
    draws_by_domain: dict[str, list[Draw]] = {}
    for domain in sorted({draw.domain for draw in draws}):
        draws_by_domain[domain] = [draw for draw in draws if draw.domain == domain]
    return draws_by_domain


def _leftover_share(draws: Sequence[Draw]) -> float:
    return sum(draw.reason == "leftover" for draw in draws) / len(draws)
