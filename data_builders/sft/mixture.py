"""Mixture of sources: the number of times that each record of each source is seen.

A source is taken a number of whole times, then the records with the smallest keyed hashes once
more, until the requested amount is reached.
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

MAX_EPOCHS = 4.0  # if a recipe requests an amount without a limit of its own; ours
Int = npt.NDArray[np.int64]
# (n,) records with the fields of `COLUMNS`
Records = npt.NDArray[np.void]
COLUMNS = ("row64", "tokens", "trained", "sequences")


class Total(NamedTuple):
    """Sums over some records."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    sequences: int = 0

    def plus(self, added: Total, times: int = 1) -> Total:
        """Add another total `times` times."""
        return Total(*(value + times * more for value, more in zip(self, added, strict=True)))

    def scaled(self, factor: float) -> Total:
        """Multiply by a factor and round to whole numbers."""
        return Total(*(round(factor * value) for value in self))


def total_of(records: Records) -> Total:
    """Sums over records."""
    sums = [int(records[column].sum(dtype=np.int64)) for column in COLUMNS[1:]]
    return Total(len(records), *sums)


def lost_rows(dropped: Mapping[str, int], held_out: int = 0) -> str:
    """Drop reasons with their counts, most first: "1,500 unrecognised, 12 license, 30 held out"."""
    counts = sorted(dropped.items(), key=lambda item: -item[1])
    counts.append(("held out", held_out))
    parts = [f"{count:,} {reason}" for reason, count in counts if count]
    return ", ".join(parts) or "no rows"


@dataclass(frozen=True, slots=True)
class Available:
    """Records of a source that may be trained on.

    Attributes:
        read: function that returns their `COLUMNS`; None: the total is an estimate, and plans are
            made to a fraction of a record.
        lost: drop reasons with counts, for the message that there are none.
    """

    name: str
    read: Callable[[], Records] | None
    total: Total
    lost: str = "no rows"


@dataclass(frozen=True, slots=True)
class Amount:
    """Requested amount; `share` is set if it came from a share of the total."""

    unit: Unit
    value: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Plan of one source: all of it `epochs` times, and the records in `extra` once more.

    Attributes:
        cap: largest number of times that a record may be seen.
        total: sums over everything that is taken, repeats counted.
        distinct: records that are taken at least once.
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
        """Number of times that each available record is taken, (n,)."""
        times = np.full(self.available.total.rows, self.epochs, np.int64)
        return times if self.extra is None else times + self.extra


def plan_mixture(sources: Sequence[Available], recipe: BuildSftConfig) -> list[SourcePlan]:
    """Decide the amount of each source, and check it against the request.

    Raises:
        DataError: a source cannot give the requested amount within the tolerance; the message names
            the source, its deviation, and the keys to change.
    """
    mixture = recipe.mixture
    caps = _epoch_caps(recipe, MAX_EPOCHS if mixture.total else 1.0)
    total = mixture.total or _largest_total(sources, caps, recipe)
    plans: list[SourcePlan] = []
    for source, available, cap in zip(recipe.sources, sources, caps, strict=True):
        amount = _requested_amount(source, total, mixture.unit)
        plan = _plan_source(available, amount, cap, recipe.seed)
        _check_amount(plan, mixture.tolerance)
        plans.append(plan)
    return plans


def epochs_question(sources: Sequence[Available], recipe: BuildSftConfig) -> str | None:
    """Question for the user if shares divide no total, and nothing limits the repetition.

    None if the recipe decides it, or if every source is taken about once anyway.
    """
    mixture = recipe.mixture
    sharing: list[tuple[str, float, int]] = []  # name, share, available amount
    for source, available in zip(recipe.sources, sources, strict=True):
        if source.share:
            amount = getattr(available.total, mixture.unit)
            sharing.append((source.name, source.share, amount))
    source_caps = [source.max_epochs for source in recipe.sources if source.share]
    has_caps = mixture.max_epochs or all(source_caps)
    if mixture.total or has_caps or not all(amount for *_, amount in sharing):
        return None  # a source without anything to give is a problem of its own
    options: list[str] = []
    for cap in (1.0, MAX_EPOCHS):
        total = _largest_total(sources, _epoch_caps(recipe, cap), recipe) or 0.0
        times = {name: share * total / amount for name, share, amount in sharing}
        if cap == 1 and min(times.values()) >= 1 - mixture.tolerance:
            return None
        repetitions = ", ".join(f"{name} {count:.1f} times" for name, count in times.items())
        options.append(
            f"mixture.max_epochs={cap:g} takes {total:,.0f} {mixture.unit}: {repetitions}"
        )
    return (
        "shares need to know how much they divide, or how often a record may be repeated: set "
        f"mixture.total, or mixture.max_epochs. {'; '.join(options)}"
    )


def _epoch_caps(recipe: BuildSftConfig, default: float) -> list[float]:
    """Largest number of times for the records of each source; `default` is for shares."""
    caps: list[float] = []
    for source in recipe.sources:
        fallback = MAX_EPOCHS if source.share is None else default
        caps.append(source.max_epochs or recipe.mixture.max_epochs or fallback)
    return caps


def _largest_total(
    sources: Sequence[Available], caps: Sequence[float], recipe: BuildSftConfig
) -> float | None:
    """Total at which the first source with a share reaches its cap; None without shares."""
    totals: list[float] = []
    for source, available, cap in zip(recipe.sources, sources, caps, strict=True):
        if source.share is None:
            continue
        amount = getattr(available.total, recipe.mixture.unit)
        if amount == 0:
            raise DataError(
                f"source {source.name!r} has share {source.share:g} and nothing to give: none of "
                f"its records was kept for training ({available.lost}). Mend or remove it"
            )
        totals.append(cap * amount / source.share)
    return min(totals, default=None)


def _requested_amount(source: SftSource, total: float | None, unit: Unit) -> Amount | None:
    """Amount that the recipe requests of a source; None: each record once."""
    if source.rows is not None:
        return Amount("rows", source.rows)
    if source.tokens is not None:
        return Amount("tokens", source.tokens)
    if source.share is None:
        return None
    assert total is not None, "a share always has a total to divide"
    return Amount(unit, source.share * total, source.share)


def _plan_source(available: Available, amount: Amount | None, cap: float, seed: int) -> SourcePlan:
    """Take whole epochs, then some records once more; without an amount, each record once."""
    name = available.name
    if amount is None:
        rows = available.total.rows
        return SourcePlan(name, None, cap, 1, None, available, available.total, rows)
    epoch_amount = getattr(available.total, amount.unit)
    planned_amount = min(amount.value, cap * epoch_amount)
    epochs = int(planned_amount // epoch_amount) if epoch_amount else 0
    remainder = planned_amount - epochs * epoch_amount
    total = Total().plus(available.total, epochs)
    distinct = available.total.rows if epochs else 0
    extra = None
    if remainder > 0 and epoch_amount:
        if available.read is None:
            extra_total = available.total.scaled(remainder / epoch_amount)
        else:
            records = available.read()
            salt = key64(seed, "epoch", name, epochs)
            extra = _choose_extra(records, amount.unit, remainder, salt)
            extra_total = total_of(records[extra])
        total = total.plus(extra_total)
        distinct = distinct or extra_total.rows
    return SourcePlan(name, amount, cap, epochs, extra, available, total, distinct)


def _choose_extra(records: Records, unit: Unit, amount: float, salt: int) -> npt.NDArray[np.bool_]:
    """Choose records in the order of their keys until they come closest to an amount, (n,)."""
    # equal keys are copies of one row: which of them is taken makes no difference
    order = np.argsort(shuffled_keys(records["row64"], salt), kind="stable")
    sizes = records["tokens"].astype(np.int64) if unit == "tokens" else np.ones(len(records), int)
    reached = np.cumsum(sizes[order])
    count = int(np.searchsorted(reached, amount))
    before = reached[count - 1] if count else 0
    if count < len(reached) and reached[count] - amount < amount - before:
        count += 1
    extra = np.zeros(len(records), np.bool_)
    extra[order[:count]] = True
    return extra


def _check_amount(plan: SourcePlan, tolerance: float) -> None:
    """Raise DataError if a plan misses its requested amount; the message says what to change."""
    if plan.requested is None:
        return
    unit = plan.requested.unit
    requested = plan.requested.value
    share = plan.requested.share
    realised = getattr(plan.total, unit)
    available = getattr(plan.available.total, unit)
    deviation = abs(realised - requested) / requested
    if deviation <= tolerance:
        return
    if available == 0:
        reason = f"no record of it was kept ({plan.available.lost})"
    elif requested > plan.cap * available:
        largest_amount = plan.cap * available
        alternative = f"or ask for at most {int(largest_amount):,} {unit}"
        if share is not None:
            largest_total = int(largest_amount / share)
            alternative = f"lower its share, or set mixture.total to at most {largest_total:,}"
        reason = (
            f"it has {available:,} {unit} and max_epochs {plan.cap:g}. Raise its max_epochs to "
            f"{requested / available:.2f}, {alternative}"
        )
    else:
        reason = (
            "one record more or less overshoots, the records are too large for the amount. Raise "
            "mixture.tolerance or the amount"
        )
    raise DataError(
        f"source {plan.name!r}: {requested:,.0f} {unit} requested, {realised:,} realised "
        f"({deviation:.1%} off, tolerance {tolerance:.1%}): {reason}"
    )
