"""How often each record of each source is seen: a source is taken a number of whole times, and then
the records whose keyed hashes are the smallest once more, until the amount is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from posttrain.config.build_sft import BuildSftConfig, SftSource, Unit
from posttrain.errors import DataError

MAX_EPOCHS = 4.0  # of a recipe that says how much it wants, and not how often
Int = npt.NDArray[np.int64]
# (n,) records with the fields of `COLUMNS`
Records = npt.NDArray[np.void]
COLUMNS = ("row64", "tokens", "trained", "sequences")


class Total(NamedTuple):
    """What some records add up to."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    sequences: int = 0

    def plus(self, other: Total, times: int = 1) -> Total:
        """The sum with the other one `times`."""
        return Total(*(a + times * b for a, b in zip(self, other, strict=True)))

    def scaled(self, factor: float) -> Total:
        """So many times as much, in whole numbers."""
        return Total(*(round(factor * value) for value in self))


def total_of(records: Records) -> Total:
    """What records add up to."""
    return Total(len(records), *(int(records[c].sum(dtype=np.int64)) for c in COLUMNS[1:]))


def lost_rows(dropped: Mapping[str, int], held_out: int = 0) -> str:
    """Where rows went, most first: "1,500 unrecognised, 12 license, 30 held out"."""
    most_first = sorted(dropped.items(), key=lambda item: -item[1])
    parts = [f"{count:,} {reason}" for reason, count in (*most_first, ("held out", held_out))]
    return ", ".join(part for part in parts if not part.startswith("0 ")) or "no rows"


@dataclass(frozen=True, slots=True)
class Available:
    """The records of a source that may be trained on; `read` gives their `COLUMNS`.

    Without `read` the total is an estimate, and plans are made to a fraction of a record. `lost`
    says why there are none.
    """

    name: str
    read: Callable[[], Records] | None
    total: Total
    lost: str = "no rows"


@dataclass(frozen=True, slots=True)
class Amount:
    """A requested amount; `share` is set when it came from a share of the total."""

    unit: Unit
    value: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What is taken of one source: all of it `epochs` times, and the records in `extra` once more.

    `total` is of all takes, repeats counted; `distinct` counts records taken at least once.
    """

    name: str
    requested: Amount | None
    cap: float
    epochs: int
    extra: npt.NDArray[np.bool_] | None
    available: Available
    total: Total
    distinct: int

    def times(self) -> Int:
        """How often each available record is taken."""
        times = np.full(self.available.total.rows, self.epochs, np.int64)
        return times if self.extra is None else times + self.extra


def plan_mixture(sources: Sequence[Available], recipe: BuildSftConfig) -> list[SourcePlan]:
    """Decide every source's takes and check them against what was requested.

    Raises:
        DataError: a source cannot give what the recipe asks of it within the tolerance; the message
            says which, how far off it is, and what to change.
    """
    caps = _caps(recipe, MAX_EPOCHS if recipe.mixture.total else 1.0)
    total = recipe.mixture.total or _largest_total(sources, caps, recipe)
    plans: list[SourcePlan] = []
    for source, own, cap in zip(recipe.sources, sources, caps, strict=True):
        plans.append(_plan(own, _requested(source, total, recipe.mixture.unit), cap, recipe.seed))
        _check(plans[-1], recipe.mixture.tolerance)
    return plans


def epochs_question(sources: Sequence[Available], recipe: BuildSftConfig) -> str | None:
    """What to ask the user where shares divide no total, and nothing says how often to repeat.

    None where it is said, or where every source is taken about once anyway.
    """
    sharing = [
        (s.name, s.share, getattr(own.total, recipe.mixture.unit))
        for s, own in zip(recipe.sources, sources, strict=True)
        if s.share
    ]
    mixture = recipe.mixture
    said = (
        mixture.total or mixture.max_epochs or all(s.max_epochs for s in recipe.sources if s.share)
    )
    if said or not all(available for *_, available in sharing):
        return None  # a source without anything to give is a problem of its own
    ways: list[str] = []
    for cap in (1.0, MAX_EPOCHS):
        total = _largest_total(sources, _caps(recipe, cap), recipe) or 0.0
        times = {name: share * total / available for name, share, available in sharing}
        if cap == 1 and min(times.values()) >= 1 - mixture.tolerance:
            return None
        seen = ", ".join(f"{name} {often:.1f} times" for name, often in times.items())
        ways.append(f"mixture.max_epochs={cap:g} takes {total:,.0f} {mixture.unit}: {seen}")
    return (
        "shares need to know how much they divide, or how often a record may be repeated: set "
        f"mixture.total, or mixture.max_epochs. {'; '.join(ways)}"
    )


def _caps(recipe: BuildSftConfig, sharing: float) -> list[float]:
    """How often a source's records may be seen; `sharing` for shares of which nothing is said."""
    given = recipe.mixture.max_epochs
    return [
        source.max_epochs or given or (MAX_EPOCHS if source.share is None else sharing)
        for source in recipe.sources
    ]


def _largest_total(
    sources: Sequence[Available], caps: Sequence[float], recipe: BuildSftConfig
) -> float | None:
    """The total at which the first sharing source reaches its cap."""
    bounds: list[float] = []
    for source, own, cap in zip(recipe.sources, sources, caps, strict=True):
        if source.share is None:
            continue
        available = getattr(own.total, recipe.mixture.unit)
        if available == 0:
            raise DataError(
                f"source {source.name!r} has share {source.share:g} and nothing to give: none of "
                f"its records was kept for training ({own.lost}). Mend or remove it"
            )
        bounds.append(cap * available / source.share)
    return min(bounds, default=None)


def _requested(source: SftSource, total: float | None, unit: Unit) -> Amount | None:
    if source.rows is not None:
        return Amount("rows", source.rows)
    if source.tokens is not None:
        return Amount("tokens", source.tokens)
    if source.share is None:
        return None
    assert total is not None, "a share always has a total to divide"
    return Amount(unit, source.share * total, source.share)


def _plan(own: Available, amount: Amount | None, cap: float, seed: int) -> SourcePlan:
    """Whole epochs, then some records once more; without an amount, each record once."""
    rows = own.total.rows
    if amount is None:
        return SourcePlan(own.name, None, cap, 1, None, own, own.total, rows)
    one = getattr(own.total, amount.unit)
    wanted = min(amount.value, cap * one)
    epochs = int(wanted // one) if one else 0
    left = wanted - epochs * one
    total, extra, distinct = Total().plus(own.total, epochs), None, rows if epochs else 0
    if left > 0 and one:
        if own.read is None:
            more = own.total.scaled(left / one)
        else:
            records = own.read()
            extra = _extra(records, amount.unit, left, key64(seed, "epoch", own.name, epochs))
            more = total_of(records[extra])
        total, distinct = total.plus(more), distinct or more.rows
    return SourcePlan(own.name, amount, cap, epochs, extra, own, total, distinct)


def _extra(records: Records, unit: Unit, wanted: float, salt: int) -> npt.NDArray[np.bool_]:
    """Of the records in the order of their keys, the first that come closest to the amount."""
    # equal keys are copies of one row: which of them is taken makes no difference
    order = np.argsort(shuffled_keys(records["row64"], salt), kind="stable")
    sizes = records["tokens"].astype(np.int64) if unit == "tokens" else np.ones(len(records), int)
    reached = np.cumsum(sizes[order])
    count = int(np.searchsorted(reached, wanted))
    before = reached[count - 1] if count else 0
    if count < len(reached) and reached[count] - wanted < wanted - before:
        count += 1
    extra = np.zeros(len(records), np.bool_)
    extra[order[:count]] = True
    return extra


def _check(plan: SourcePlan, tolerance: float) -> None:
    if plan.requested is None:
        return
    unit, wanted, share = plan.requested.unit, plan.requested.value, plan.requested.share
    realised, available = (getattr(t, unit) for t in (plan.total, plan.available.total))
    off = abs(realised - wanted) / wanted
    if off <= tolerance:
        return
    if available == 0:
        why = f"no record of it was kept ({plan.available.lost})"
    elif wanted > plan.cap * available:
        most = plan.cap * available
        less = f"or ask for at most {int(most):,} {unit}"
        if share is not None:
            less = f"lower its share, or set mixture.total to at most {int(most / share):,}"
        why = (
            f"it has {available:,} {unit} and max_epochs {plan.cap:g}. Raise its max_epochs to "
            f"{wanted / available:.2f}, {less}"
        )
    else:
        why = (
            "one record more or less overshoots, the records are too large for the amount. Raise "
            "mixture.tolerance or the amount"
        )
    raise DataError(
        f"source {plan.name!r}: {wanted:,.0f} {unit} requested, {realised:,} realised "
        f"({off:.1%} off, tolerance {tolerance:.1%}): {why}"
    )
