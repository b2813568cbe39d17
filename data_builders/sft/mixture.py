"""How often each record of each source is seen: a plan made from counts, before any token is moved.

    plan_mixture([Available.of("maths", read)], recipe)
    → [SourcePlan("maths", requested=Amount("tokens", 200_000), epochs=2, extra=[True, …], …)]

A source is taken a number of whole times, and then a part of it once more: the records whose keyed
hashes are the smallest, until the amount is reached. Input order changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

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


@dataclass(frozen=True, slots=True)
class Total:
    """What some records add up to."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    sequences: int = 0

    def plus(self, other: Total, times: int = 1) -> Total:
        """The sum with the other one `times`."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Total(*(a + times * b for a, b in pairs))

    def scaled(self, factor: float) -> Total:
        """So many times as much, in whole numbers."""
        return Total(*(round(factor * value) for value in astuple(self)))

    def amount(self, unit: str) -> int:
        """One of its fields."""
        return getattr(self, unit)


def total_of(records: Records) -> Total:
    """What records add up to."""
    return Total(len(records), *(int(records[c].sum(dtype=np.int64)) for c in COLUMNS[1:]))


@dataclass(frozen=True, slots=True)
class Available:
    """The records of a source that may be trained on; `read` gives their `COLUMNS`.

    Without `read` the total is an estimate, and plans are made to a fraction of a record. `lost`
    says why there are none, for the message: "1,500 unrecognised".
    """

    name: str
    read: Callable[[], Records] | None
    total: Total
    lost: str = "no rows"

    @classmethod
    def of(cls, name: str, read: Callable[[], Records], lost: str = "no rows") -> Available:
        """With the total counted."""
        return cls(name, read, total_of(read()), lost)


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
    plans = [
        _plan(own, _requested(source, total, recipe.mixture.unit), cap, recipe.seed)
        for source, own, cap in zip(recipe.sources, sources, caps, strict=True)
    ]
    for plan in plans:
        _check(plan, recipe)
    return plans


def epochs_question(sources: Sequence[Available], recipe: BuildSftConfig) -> str | None:
    """What to ask the user where shares divide no total, and nothing says how often to repeat.

    None where it is said, or where every source is taken about once anyway.
    """
    sharing = [(s, own) for s, own in zip(recipe.sources, sources, strict=True) if s.share]
    mixture, unit = recipe.mixture, recipe.mixture.unit
    if mixture.total or mixture.max_epochs or all(s.max_epochs for s, _ in sharing):
        return None
    if not all(own.total.amount(unit) for _, own in sharing):
        return None  # a source without anything to give is a problem of its own
    ways: list[str] = []
    for cap in (1.0, MAX_EPOCHS):
        total = _largest_total(sources, _caps(recipe, cap), recipe) or 0.0
        times = [(s.share or 0.0) * total / own.total.amount(unit) for s, own in sharing]
        if cap == 1 and min(times) >= 1 - mixture.tolerance:
            return None
        seen = (f"{s.name} {t:.1f} times" for (s, _), t in zip(sharing, times, strict=True))
        ways.append(f"mixture.max_epochs={cap:g} takes {total:,.0f} {unit}: {', '.join(seen)}")
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
        available = own.total.amount(recipe.mixture.unit)
        if available == 0:
            raise DataError(
                f"source {source.name!r} has share {source.share:g} and nothing to give: none of "
                f"its records was kept for training ({own.lost}). Mend or remove it"
            )
        bounds.append(cap * available / source.share)
    return min(bounds) if bounds else None


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
    one = own.total.amount(amount.unit)
    wanted = min(amount.value, cap * one)
    epochs = int(wanted // one) if one else 0
    left = wanted - epochs * one
    total, extra, distinct = Total().plus(own.total, epochs), None, rows if epochs else 0
    if left > 0 and one and own.read is None:
        more = own.total.scaled(left / one)
        total, distinct = total.plus(more), distinct or more.rows
    elif left > 0 and one and own.read is not None:
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


def _check(plan: SourcePlan, recipe: BuildSftConfig) -> None:
    if plan.requested is None:
        return
    unit, wanted = plan.requested.unit, plan.requested.value
    realised = plan.total.amount(unit)
    off = abs(realised - wanted) / wanted if wanted else 1.0
    if off <= recipe.mixture.tolerance:
        return
    available = plan.available.total.amount(unit)
    problem = (
        f"source {plan.name!r}: {wanted:,.0f} {unit} requested, {realised:,} realised "
        f"({off:.1%} off, tolerance {recipe.mixture.tolerance:.1%})"
    )
    if available == 0:
        raise DataError(f"{problem}: no record of it was kept ({plan.available.lost})")
    if wanted > plan.cap * available:
        most, share = plan.cap * available, plan.requested.share
        raise DataError(
            f"{problem}: it has {available:,} {unit} and max_epochs {plan.cap:g}. Raise its "
            f"max_epochs to {wanted / available:.2f}, "
            + (
                f"or ask for at most {int(most):,} {unit}"
                if share is None
                else f"lower its share, or set mixture.total to at most {int(most / share):,}"
            )
        )
    raise DataError(
        f"{problem}: one record more or less overshoots, the records are too large for the amount. "
        "Raise mixture.tolerance or the amount"
    )
