"""The prompts of a step while the run goes on: those planned, refills for groups that teach
nothing, or prompts from pools by the pass rate that training last showed.

    draws = PromptDraws(plan, pools, steps=600, seed=0, max_epochs=1, out=Path("runs/rlvr"))
    draws.draw(3)                         → [Draw("m-7", "math", 5, "target"), …]
    draws.refill([draw, …])               → [Draw("m-9", "math", 5, "refill"), None, …]
    draws.record([DrawnGroup(…), …])      the step's end

What is drawn depends on the pass rates, the recipe and the steps before. These are lines of
`draws.jsonl`, from which a run that goes on takes them; a plan that nothing is put behind needs no
such file.

Dynamic sampling (DAPO, arXiv 2503.14476) replaces a group whose rewards are all equal. A refill is
ours in this: it is of the same domain, has the pass rate nearest to that of the prompt it replaces,
and is no prompt that the plan or `max_epochs` leaves no further turn. Difficulty pools are
prime-rl's; within a pool the prompts drawn least often come first, and what a pool lacks comes from
the largest of the others.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from posttrain.config.rlvr import PoolsConfig
from posttrain.errors import DataError
from posttrain.hashing import digest_of
from posttrain.records import json_text
from posttrain.runs import atomic_write_text
from posttrain.training.rl.curriculum import Draw, Pools, Reason, largest_remainder
from posttrain.training.rl.curriculum_steps import CURRICULUM, CurriculumPlan

DRAWS = "draws.jsonl"
POOLS: tuple[Reason, ...] = ("hard", "normal", "easy")


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """What came of one drawn prompt.

    Attributes:
        position: its place in the step; `attempt` counts from 0 the groups rolled out for it.
        passes: of the `scored` rollouts.
        dropped: all rewards were equal, and dynamic sampling left the group out.
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
    """Draws one step after the other; every process draws the same.

    Args:
        plan: what each step begins with; with `config`, of its draws the domains alone.
        pools: domain → prompt id → passes out of the plan's n.
        config: of the difficulty pools; None: there are none.
        refilled: whether dynamic sampling may ask for refills.
        max_epochs: how often a prompt may come.
        out: the run's directory.
    """

    def __init__(
        self,
        plan: CurriculumPlan,
        pools: Pools,
        *,
        config: PoolsConfig | None = None,
        refilled: bool = False,
        max_epochs: int,
        seed: int,
        out: Path,
    ) -> None:
        self.plan, self.config, self.refilled = plan, config, refilled
        self._pools, self._max_epochs, self._seed, self._out = pools, max_epochs, seed, out
        # ties are broken by a place in a keyed shuffle, one a domain
        self._order: dict[str, int] = {}
        for domain, prompts in sorted(pools.items()):
            names = sorted(prompts)
            random.Random(f"{seed}/refill/{domain}").shuffle(names)
            self._order |= {name: place for place, name in enumerate(names)}
        self._lines: list[str] = []
        self._forget()

    def _forget(self) -> None:
        """As before the first step."""
        n = self.plan.n
        self._next, self._open = 0, False
        self._rates = {name: k / n for own in self._pools.values() for name, k in own.items()}
        self._times: Counter[str] = Counter()
        if self.config is None:
            self._times.update(draw.prompt_id for draws in self.plan.draws for draw in draws)
        self._taken: set[str] = set()

    @property
    def recorded(self) -> bool:
        """Whether later steps depend on what came of earlier ones."""
        return self.refilled or self.config is not None

    def draw(self, step: int) -> list[Draw]:
        """The prompts that a step, from 0, begins with.

        Raises:
            DataError: `draws.jsonl` does not reach to the step.
        """
        planned = list(self.plan.draws[step])
        if not self.recorded:
            return planned
        if self._open or self._next != step:
            self._go_to(step)
        self._open = True
        draws = planned if self.config is None else self._from_pools(planned, self.config)
        self._taken = {draw.prompt_id for draw in draws}
        return draws

    def _go_to(self, step: int) -> None:
        """Take up the record of the steps before this one."""
        file = self._out / DRAWS
        if len(self._lines) < step:
            written = file.read_text("utf-8").splitlines() if file.is_file() else []
            if len(written) < step:
                raise DataError(f"{file} has {len(written)} steps of the {step} before this one")
            self._lines = written
        self._lines = self._lines[:step]
        self._forget()
        for line in self._lines:
            groups = [DrawnGroup(*row) for row in json.loads(line)["groups"]]
            self._times.update(g.prompt_id for g in groups if self.config or g.attempt)
            self._note(groups)
        self._next = step

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
        return Draw(name, domain, round(self._rates[name] * self.plan.n), reason)

    def refill(self, dropped: Sequence[Draw]) -> list[Draw | None]:
        """A further prompt for each of the step's draws that is dropped, None where the domain has
        no more; in order."""
        given: list[Draw | None] = [None] * len(dropped)
        places: dict[tuple[str, float], list[int]] = {}
        for place, draw in enumerate(dropped):
            places.setdefault((draw.domain, self._rates[draw.prompt_id]), []).append(place)
        for (domain, rate), own in sorted(places.items()):
            may_come = (
                name
                for name in self._pools[domain]
                if name not in self._taken and self._times[name] < self._max_epochs
            )

            def distance(name: str, rate: float = rate) -> tuple[float, int, int]:
                return abs(self._rates[name] - rate), *self._least_drawn(name)

            names = heapq.nsmallest(len(own), may_come, key=distance)
            for place, name in zip(own, names, strict=False):
                given[place] = self._as_draw(name, domain, "refill")
            self._taken.update(names)
            self._times.update(names)
        return given

    def record(self, groups: Sequence[DrawnGroup], *, main: bool) -> None:
        """What came of the step that was drawn last, over all processes; the main one writes it."""
        if not self.recorded:
            return
        step = {"step": self._next + 1, "groups": [astuple(group) for group in groups]}
        self._note(groups)
        self._lines.append(json_text(step))
        self._next, self._open = self._next + 1, False
        if not main:
            return
        file = self._out / DRAWS
        # a killed run's lines from here on go
        if not file.is_file() or _lines_of(file) != self._next - 1:
            atomic_write_text(file, "".join(line + "\n" for line in self._lines))
            return
        with file.open("a", encoding="utf-8") as handle:
            handle.write(self._lines[-1] + "\n")
            handle.flush()
            os.fsync(handle.fileno())

    def _note(self, groups: Iterable[DrawnGroup]) -> None:
        """Move prompts between the pools."""
        if self.config is not None:
            self._rates |= {g.prompt_id: g.passes / g.scored for g in groups if g.scored}

    def figures(self, step: int, draws: Sequence[Draw]) -> dict[str, float]:
        """To log of the prompts that the step began with, by domain."""
        if self.config is None:
            return self.plan.figures(step)
        figures: dict[str, float] = {}
        for domain in sorted({draw.domain for draw in draws}):
            own = [draw for draw in draws if draw.domain == domain]
            sizes = Counter(self.config.pool_of(self._rates[n]) for n in self._pools[domain])
            figures[f"domain/{domain}/drawn"] = statistics.fmean(
                draw.bucket / self.plan.n for draw in own
            )
            leftovers = sum(draw.reason == "leftover" for draw in own)
            figures[f"domain/{domain}/leftover"] = leftovers / len(own)
            figures |= {f"domain/{domain}/pool_{pool}": sizes[pool] for pool in POOLS}
        return figures

    @property
    def digest(self) -> str:
        """Of all that decides what is drawn, but what the run itself shows."""
        return digest_of([self.plan.digest, self._pools]) if self.recorded else self.plan.digest

    def files(self) -> dict[str, str]:
        """What a finished run keeps beside `draws.jsonl`: the plan, if prompts come from it."""
        return {CURRICULUM: self.plan.text()} if self.config is None else {}

    def lines(self) -> Iterator[tuple[str, str]]:
        """For the run's plan."""
        if self.config is None:
            yield from self.plan.lines()
            return
        counts = Counter(draw.domain for draw in self.plan.draws[0])
        for domain, own in sorted(self._pools.items()):
            sizes = Counter(self.config.pool_of(self._rates[name]) for name in own)
            listed = ", ".join(f"{pool} {sizes[pool]:,}" for pool in POOLS)
            yield "curriculum", f"{domain}: {counts[domain]} prompts a step from pools, {listed}"

    def stats(self) -> dict[str, Any]:
        """For the manifest, at the run's end."""
        if not self.recorded:
            return self.plan.stats()
        groups = [DrawnGroup(*row) for line in self._lines for row in json.loads(line)["groups"]]
        return {
            "reasons": dict(sorted(Counter(group.reason for group in groups).items())),
            "prompts": dict(sorted(Counter(group.domain for group in groups).items())),
            "different": len({group.prompt_id for group in groups}),
        }


def _lines_of(file: Path) -> int:
    with file.open("rb") as handle:
        return sum(1 for _ in handle)
