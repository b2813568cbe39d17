"""The prompts of every step: those planned, refills for groups that teach nothing, or prompts from
pools by the pass rate that training last showed.

Dynamic sampling (DAPO, arXiv 2503.14476) replaces a group whose rewards are all equal. Ours is the
choice: of the same domain, with the nearest pass rate, and none that the plan or `max_epochs`
leaves no further turn. Difficulty pools are prime-rl's; within a pool the prompts drawn least often
come first, and what a pool lacks comes from the largest of the others.
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

from posttrain.config.rlvr import PoolsConfig, RlvrConfig
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
POOLS: tuple[Reason, ...] = ("hard", "normal", "easy")
# pass rates: a target that changes by less is flat, a mean that is farther off is pointed out
_FLAT, _OFF_TARGET = 0.02, 0.1


class DomainShares:
    """Prompts in fixed shares of their sources: as many of each in every step.

    A source's prompts come in whole permutations one after the other, as those of a run without
    shares do.

    Args:
        shares: source → share of a step's prompts; only proportions count.

    Raises:
        ConfigError: a source whose share is less than one prompt a step.
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
        """Raises ConfigError where a source has too few prompts for so many steps."""
        for domain, count in self.counts.items():
            check_enough(
                len(self._rows[domain]),
                name=f"prompts of {domain}",
                batch=count,
                batches=steps,
                max_epochs=max_epochs,
            )

    def draw(self, step: int) -> list[int]:
        """Rows of a step's prompts, from 0. Sources are mixed, so that each process has some."""
        rows: list[int] = []
        for domain, count in self.counts.items():
            domain_rows = self._rows[domain]
            key = int.from_bytes(f"{self._seed}/{domain}".encode(), "big")
            chosen = rows_drawn(count=len(domain_rows), per_step=count, step=step, seed=key)
            rows += [domain_rows[place] for place in chosen]
        random.Random(f"{self._seed}/shares/{step}").shuffle(rows)
        return rows


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """What came of one drawn prompt, as in `ScoredGroup`: `passes` of its `scored` rollouts."""

    position: int
    attempt: int
    prompt_id: str
    domain: str
    reason: Reason
    passes: int
    scored: int
    dropped: bool


class PromptDraws:
    """Draws one step after the other; every process draws the same. With refills or pools that
    depends on the steps before: they are lines of `draws.jsonl`, which a run that goes on reads.

    Args:
        pools: domain → prompt id → passes out of n.

    Attributes:
        rounds: of rollouts in a step; above 1 a group that teaches nothing is replaced.

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
        self._n, self._config = n, config.pools_config
        # of every step, the mean pass rate aimed at; None where there is no target
        self._targets = [
            None if own is None else sum(s * k / n for k, s in enumerate(own)) for own in shares
        ]
        dynamic = recipe.dynamic_sampling
        self.rounds = dynamic.max_gen_batches if dynamic else 1
        # whether later steps depend on what came of earlier ones
        self._recorded = self.rounds > 1 or self._config is not None
        self._pools, self._max_epochs, self._seed = pools, recipe.max_epochs, recipe.seed
        self._file = Path(recipe.out) / DRAWS
        # ties are broken by a place in a keyed shuffle, one a domain
        self._order: dict[str, int] = {}
        for domain, prompts in sorted(pools.items()):
            names = sorted(prompts)
            random.Random(f"{self._seed}/refill/{domain}").shuffle(names)
            self._order |= {name: place for place, name in enumerate(names)}
        self._lines: list[str] = []
        self._forget()

    def _forget(self) -> None:
        """Reset to the state before step 0. Later lines in the file are an interrupted run's."""
        self._next, self._open, self._whole = 0, False, True
        rates = ((name, k / self._n) for own in self._pools.values() for name, k in own.items())
        self._rates = dict(rates)
        self._times: Counter[str] = Counter()
        if self._config is None:
            self._times.update(draw.prompt_id for draws in self._planned for draw in draws)
        self._taken: set[str] = set()

    def draw(self, step: int) -> list[Draw]:
        """The prompts that a step, from 0, begins with."""
        planned = self._planned[step]
        if not self._recorded:
            return planned
        if self._open or self._next != step:
            self._go_to(step)
        self._open = True
        draws = planned if self._config is None else self._from_pools(planned, self._config)
        self._taken = {draw.prompt_id for draw in draws}
        return draws

    def _go_to(self, step: int) -> None:
        """Take up the record of the steps before this one."""
        if len(self._lines) < step:
            written = self._file.read_text("utf-8").splitlines() if self._file.is_file() else []
            if len(written) < step:
                raise DataError(f"{self._file} has {len(written)} steps of the {step} before this")
            self._lines = written
        self._lines = self._lines[:step]
        self._forget()
        self._next = step
        groups = self._groups()
        self._times.update(g.prompt_id for g in groups if self._config or g.attempt)
        self._note(groups)

    def _groups(self) -> list[DrawnGroup]:
        """Of all steps so far."""
        return [DrawnGroup(*row) for line in self._lines for row in json.loads(line)["groups"]]

    def _from_pools(self, planned: Sequence[Draw], config: PoolsConfig) -> list[Draw]:
        """Prompts of the planned domains, each domain's from its pools."""
        chosen: dict[str, list[Draw]] = {}
        for domain, count in sorted(Counter(draw.domain for draw in planned).items()):
            left: dict[Reason, list[str]] = {pool: [] for pool in POOLS}
            for name in sorted(self._pools[domain], key=self._least_drawn, reverse=True):
                left[config.pool_of(self._rates[name])].append(name)
            shares = (config.hard_fraction, config.normal_fraction, config.easy_fraction)
            own: list[Draw] = []
            for pool, wanted in zip(POOLS, largest_remainder(shares, count), strict=True):
                own += [self._as_draw(left[pool].pop(), domain, pool) for _ in left[pool][:wanted]]
            while len(own) < count:
                largest = max(POOLS, key=lambda pool: len(left[pool]))
                own.append(self._as_draw(left[largest].pop(), domain, "leftover"))
            chosen[domain] = own
            random.Random(f"{self._seed}/pools/{domain}/{self._next}").shuffle(own)
        draws = [chosen[draw.domain].pop() for draw in planned]
        self._times.update(draw.prompt_id for draw in draws)
        return draws

    def _least_drawn(self, name: str) -> tuple[int, int]:
        return self._times[name], self._order[name]

    def _as_draw(self, name: str, domain: str, reason: Reason) -> Draw:
        return Draw(name, domain, round(self._rates[name] * self._n), reason)

    def refill(self, dropped: Sequence[Draw]) -> list[Draw | None]:
        """A further prompt for each of the step's draws that is dropped, None where the domain has
        no more; in order."""
        given: list[Draw | None] = [None] * len(dropped)
        places: dict[tuple[str, float], list[int]] = {}
        for place, draw in enumerate(dropped):
            places.setdefault((draw.domain, self._rates[draw.prompt_id]), []).append(place)
        for (domain, rate), own in sorted(places.items()):
            may_come = (
                (abs(self._rates[name] - rate), *self._least_drawn(name), name)
                for name in self._pools[domain]
                if name not in self._taken and self._times[name] < self._max_epochs
            )
            names = [name for *_, name in heapq.nsmallest(len(own), may_come)]
            for place, name in zip(own, names, strict=False):
                given[place] = self._as_draw(name, domain, "refill")
            self._taken.update(names)
            self._times.update(names)
        return given

    def record(self, groups: Sequence[DrawnGroup], *, main: bool) -> None:
        """What came of the step that was drawn last, over all processes; the main one writes it."""
        if not self._recorded:
            return
        self._note(groups)
        self._next, self._open = self._next + 1, False
        step = {"step": self._next, "groups": [astuple(group) for group in groups]}
        self._lines.append(json_text(step))
        if main and self._whole:
            atomic_write_text(self._file, "".join(line + "\n" for line in self._lines))
        elif main:
            with self._file.open("a", encoding="utf-8") as handle:
                handle.write(self._lines[-1] + "\n")
                handle.flush()
                os.fsync(handle.fileno())
        self._whole = False

    def _note(self, groups: Sequence[DrawnGroup]) -> None:
        """Move prompts between the pools."""
        if self._config is not None:
            self._rates |= {g.prompt_id: g.passes / g.scored for g in groups if g.scored}

    def figures(self, step: int, draws: Sequence[Draw]) -> dict[str, float]:
        """To log of the prompts that a step began with, by domain."""
        figures: dict[str, float] = {}
        for domain, own in _by_domain(draws).items():
            figures[f"domain/{domain}/drawn"] = self._rate(own)
            figures[f"domain/{domain}/leftover"] = _leftovers(own)
            if (target := self._targets[step]) is not None:
                figures[f"domain/{domain}/target"] = target
            if self._config is not None:
                sizes = self._sizes(domain, self._config)
                figures |= {f"domain/{domain}/pool_{pool}": n for pool, n in sizes.items()}
        return figures

    def _rate(self, draws: Sequence[Draw]) -> float:
        return statistics.fmean(draw.bucket / self._n for draw in draws)

    def _sizes(self, domain: str, config: PoolsConfig) -> dict[str, int]:
        sizes = Counter(config.pool_of(self._rates[name]) for name in self._pools[domain])
        return {pool: sizes[pool] for pool in POOLS}

    @property
    def digest(self) -> str:
        """Of all that decides what is drawn, but what the run itself shows."""
        planned = digest_of([[draw.prompt_id for draw in draws] for draws in self._planned])
        return digest_of([planned, self._pools]) if self._recorded else planned

    def write_plan(self) -> None:
        """Write `curriculum.jsonl`, if prompts come from the plan, a line a step:

        {"step": 1, "target": 0.62, "prompts": [["m-7", "math", 5, "target"], …]}
        """
        if self._config is not None:
            return
        rows = (
            {"step": k + 1, "target": self._targets[k], "prompts": [astuple(one) for one in draws]}
            for k, draws in enumerate(self._planned)
        )
        text = "".join(json_text(row) + "\n" for row in rows)
        atomic_write_text(self._file.with_name("curriculum.jsonl"), text)

    def lines(self) -> Iterator[tuple[str, str]]:
        """A line a domain for the run's plan."""
        drawn = _by_domain([draw for draws in self._planned for draw in draws])
        begin = _by_domain(self._planned[0])
        for domain, own in drawn.items():
            text = f"{domain}: {len(begin[domain])} prompts a step "
            if self._config is not None:
                sizes = self._sizes(domain, self._config).items()
                text += f"from pools, {', '.join(f'{pool} {size:,}' for pool, size in sizes)}"
            else:
                times = Counter(draw.prompt_id for draw in own)
                text += (
                    f"of {len(times):,} different, each at most {max(times.values())} time(s); "
                    f"{self._course(domain)}, {_leftovers(own):.0%} of them leftovers"
                )
            yield "curriculum", text

    def _course(self, domain: str) -> str:
        """Pass rates drawn in the first and the last third of the steps, beside those aimed at, and
        where the profile's prompts do not allow them."""
        third = max(len(self._planned) // 3, 1)
        drawn = [
            statistics.fmean(self._rate(_by_domain(draws)[domain]) for draws in part)
            for part in (self._planned[:third], self._planned[-third:])
        ]
        text = f"pass rate drawn {drawn[0]:.2f} → {drawn[1]:.2f}"
        targets = [target for target in self._targets if target is not None]
        if not targets:
            return text
        aimed_at = [statistics.fmean(targets[:third]), statistics.fmean(targets[-third:])]
        text += f" for a target of {aimed_at[0]:.2f} → {aimed_at[1]:.2f}"
        fall, aim = drawn[0] - drawn[1], aimed_at[0] - aimed_at[1]
        if len(self._planned) > 1 and abs(aim) > _FLAT and fall * aim <= 0:
            change = "fall" if aim > 0 else "rise"
            text += f" (it cannot {change}: the profile has too few prompts of other pass rates)"
            return text
        off = [mean - target for mean, target in zip(drawn, aimed_at, strict=True)]
        worst = max(off, key=abs)
        if abs(worst) > _OFF_TARGET:
            kind = "easier" if worst < 0 else "harder"
            text += f" ({worst:+.2f} off: the profile has too few {kind} prompts)"
        return text

    def stats(self) -> dict[str, Any]:
        """For the manifest, at the run's end."""
        drawn: Sequence[Draw | DrawnGroup] = [draw for draws in self._planned for draw in draws]
        if self._recorded:
            drawn = self._groups()
        return {
            "reasons": dict(sorted(Counter(one.reason for one in drawn).items())),
            "prompts": dict(sorted(Counter(one.domain for one in drawn).items())),
            "different": len({one.prompt_id for one in drawn}),
        }


def _plan(
    recipe: RlvrConfig, pools: Pools, shares: Sequence[list[float] | None], *, n: int
) -> list[list[Draw]]:
    batch = recipe.prompts_per_step
    ratios = {name: domain.ratio for name, domain in recipe.domains.items()}
    for domain, count in domain_counts(ratios, batch=batch).items():
        if not count:
            raise ValueError(f"domain {domain!r} gets no place in batches of {batch}")
        if recipe.curriculum.pools_config and count > len(pools[domain]):
            raise ValueError(f"domain {domain!r} has fewer than {count} prompts to draw from")
    plan = plan_shares(pools, shares, n=n, batch=batch, ratios=ratios, seed=recipe.seed)
    prompt, times = Counter(d.prompt_id for step in plan for d in step).most_common(1)[0]
    if times > recipe.max_epochs:
        raise ValueError(
            f"prompt {prompt!r} would come {times} times in {len(shares)} steps of {batch}, "
            f"max_epochs is {recipe.max_epochs}: profile more prompts of its domain, train fewer "
            f"steps, give the domain a smaller ratio, or set max_epochs: {times}"
        )
    return plan


def _by_domain(draws: Sequence[Draw]) -> dict[str, list[Draw]]:
    names = sorted({draw.domain for draw in draws})
    return {name: [draw for draw in draws if draw.domain == name] for name in names}


def _leftovers(draws: Sequence[Draw]) -> float:
    return sum(draw.reason == "leftover" for draw in draws) / len(draws)
