"""How often each record of each source is seen: a plan made from counts, before any token is moved.

    plan_mixture([Stock("maths", blocks)], recipe)
    → [SourcePlan("maths", requested=Amount("tokens", 200_000), epochs=2, head=Head(…), …)]

A source is taken a number of whole times, and then a head of it: the records whose keyed hashes are
the smallest, until the amount is reached. Input order changes nothing, memory holds no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from posttrain.config.build_sft import BuildSftConfig, SftSource, Unit
from posttrain.errors import DataError

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
# (n,) records with fields row64, tokens, trained and sequences
Records = npt.NDArray[np.void]
_BITS = 16  # of a key, by which the end of a head is looked for


@dataclass(frozen=True, slots=True)
class Total:
    """What some records add up to."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    sequences: int = 0

    def plus(self, other: Total, times: int = 1) -> Total:
        """Both together, the other one `times`."""
        return Total(*(a + times * b for a, b in zip(self._all, other._all, strict=True)))

    def measure(self, unit: Unit) -> int:
        """In the unit."""
        return self.tokens if unit == "tokens" else self.rows

    @property
    def _all(self) -> tuple[int, int, int, int]:
        return self.rows, self.tokens, self.trained, self.sequences


def total_of(records: Records) -> Total:
    """What records add up to."""
    sums = (int(records[name].sum(dtype=np.int64)) for name in ("tokens", "trained", "sequences"))
    return Total(len(records), *sums)


@dataclass(frozen=True, slots=True)
class Stock:
    """What a source has to give, a block of records at a time.

    `lost` tells why it has nothing, for the message: "1,500 unrecognised".
    """

    name: str
    blocks: Callable[[], Iterable[Records]]
    total: Total
    lost: str = "no rows"

    @classmethod
    def of(cls, name: str, blocks: Callable[[], Iterable[Records]], lost: str = "no rows") -> Stock:
        """With the total counted."""
        total = Total()
        for records in blocks():
            total = total.plus(total_of(records))
        return cls(name, blocks, total, lost)


@dataclass(frozen=True, slots=True)
class Amount:
    """A requested amount; `share` is set when it came from a share of the total."""

    unit: Unit
    value: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The records whose keys, shuffled with `salt`, are below `below`, and `copies` that are at it.

    Records with one key are copies of one row: which of them is taken makes no difference.
    """

    salt: int
    below: int
    copies: int
    total: Total

    def masks(self, blocks: Iterable[Records]) -> Iterator[npt.NDArray[np.bool_]]:
        """Whether each record is in it, for all blocks of the source in order."""
        left = self.copies
        for records in blocks:
            keys = shuffled_keys(records["row64"], self.salt)
            taken = keys < np.uint64(self.below)
            if left:
                copies = np.flatnonzero(keys == np.uint64(self.below))[:left]
                taken[copies] = True
                left -= len(copies)
            yield taken


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What is taken of one source: all of it `epochs` times, and then a head of it."""

    name: str
    requested: Amount | None
    cap: float
    epochs: int
    head: Head | None
    stock: Stock

    @property
    def total(self) -> Total:
        """All takes, repeats counted."""
        total = Total().plus(self.stock.total, self.epochs)
        return total.plus(self.head.total) if self.head else total

    @property
    def distinct(self) -> int:
        """Records taken at least once."""
        if self.epochs:
            return self.stock.total.rows
        return self.head.total.rows if self.head else 0

    def takes(self) -> Iterator[Int]:
        """How often each record is taken, for all blocks of the stock in order."""
        masks = self.head.masks(self.stock.blocks()) if self.head else None
        for records in self.stock.blocks():
            counts = np.full(len(records), self.epochs, np.int64)
            if masks is not None:
                counts += next(masks)
            yield counts


def plan_mixture(stocks: Sequence[Stock], recipe: BuildSftConfig) -> list[SourcePlan]:
    """Decide every source's takes and check them against what was asked for.

    Raises:
        DataError: a source cannot give what the recipe asks of it within the tolerance; the message
            says which, how far off it is, and what to change.
    """
    caps = [s.max_epochs or recipe.mixture.max_epochs for s in recipe.sources]
    total = recipe.mixture.total or _largest_total(stocks, caps, recipe)
    plans: list[SourcePlan] = []
    for source, stock, cap in zip(recipe.sources, stocks, caps, strict=True):
        amount = _requested(source, total, recipe.mixture.unit)
        plans.append(_plan(stock, amount, cap, recipe.seed))
    for plan in plans:
        _check(plan, recipe)
    return plans


def _largest_total(
    stocks: Sequence[Stock], caps: Sequence[float], recipe: BuildSftConfig
) -> float | None:
    """The total at which the first sharing source reaches its cap."""
    bounds: list[float] = []
    for source, stock, cap in zip(recipe.sources, stocks, caps, strict=True):
        if source.share is None:
            continue
        available = stock.total.measure(recipe.mixture.unit)
        if available == 0:
            raise DataError(
                f"source {source.name!r} has share {source.share:g} and nothing to give: none of "
                f"its records was kept for training ({stock.lost}). Mend or remove it"
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


def _plan(stock: Stock, amount: Amount | None, cap: float, seed: int) -> SourcePlan:
    """Whole epochs, then the head of one more; without an amount, each record once."""
    if amount is None:
        return SourcePlan(stock.name, None, cap, 1, None, stock)
    one = stock.total.measure(amount.unit)
    wanted = min(amount.value, cap * one)
    epochs = int(wanted // one) if one else 0
    left = wanted - epochs * one
    head = None
    if left > 0 and one:
        head = _head(stock, amount.unit, left, key64(seed, "epoch", stock.name, epochs))
    return SourcePlan(stock.name, amount, cap, epochs, head, stock)


def _head(stock: Stock, unit: Unit, wanted: float, salt: int) -> Head:
    """The head that comes closest to the wanted amount.

    Sums by the first bits of keys say in which bin the amount is reached; only its records are
    sorted.
    """
    bins = np.zeros(1 << _BITS, np.int64)
    for records in stock.blocks():
        place, sizes = _places(records, salt), _sizes(records, unit)
        # exact: a block's sums are far below 2**53
        bins += np.bincount(place, weights=sizes, minlength=len(bins)).astype(np.int64)
    bin_ = int(np.searchsorted(np.cumsum(bins), wanted))
    total, inside = Total(), list[Records]()
    for records in stock.blocks():
        place = _places(records, salt)
        total = total.plus(total_of(records[place < bin_]))
        inside.append(records[place == bin_])
    rows = np.concatenate(inside)
    keys = shuffled_keys(rows["row64"], salt)
    order = np.argsort(keys, kind="stable")
    reached = total.measure(unit) + np.cumsum(_sizes(rows[order], unit))
    count = _nearest(reached, wanted, below=total.measure(unit))
    total = total.plus(total_of(rows[order[:count]]))
    if not count:
        return Head(salt, bin_ << (64 - _BITS), 0, total)
    last = int(keys[order[count - 1]])
    copies = count - int(np.searchsorted(keys[order], np.uint64(last)))
    return Head(salt, last, copies, total)


def _places(records: Records, salt: int) -> Int:
    return (shuffled_keys(records["row64"], salt) >> np.uint64(64 - _BITS)).astype(np.int64)


def _sizes(records: Records, unit: Unit) -> Int:
    """What one take of each record adds, in the unit."""
    return records["tokens"].astype(np.int64) if unit == "tokens" else np.ones(len(records), int)


def _nearest(reached: Int, wanted: float, *, below: int) -> int:
    """How many of the first records come closest to the wanted amount; `below` is without any."""
    count = int(np.searchsorted(reached, wanted))
    before = reached[count - 1] if count else below
    over = count < len(reached) and reached[count] - wanted < wanted - before
    return count + 1 if over else count


def _check(plan: SourcePlan, recipe: BuildSftConfig) -> None:
    if plan.requested is None:
        return
    unit, wanted = plan.requested.unit, plan.requested.value
    realised = plan.total.measure(unit)
    off = abs(realised - wanted) / wanted if wanted else 1.0
    if off <= recipe.mixture.tolerance:
        return
    available = plan.stock.total.measure(unit)
    problem = (
        f"source {plan.name!r}: {wanted:,.0f} {unit} requested, {realised:,} realised "
        f"({off:.1%} off, tolerance {recipe.mixture.tolerance:.1%})"
    )
    if available == 0:
        raise DataError(f"{problem}: no record of it was kept ({plan.stock.lost})")
    if wanted > plan.cap * available:
        raise DataError(
            f"{problem}: it has {available:,} {unit} and max_epochs {plan.cap:g}. Raise its "
            f"max_epochs to {wanted / available:.2f}, {_smaller(plan, available)}"
        )
    raise DataError(
        f"{problem}: one record more or less overshoots, the records are too large for the amount. "
        "Raise mixture.tolerance or the amount"
    )


def _smaller(plan: SourcePlan, available: int) -> str:
    request = plan.requested
    assert request is not None
    most = plan.cap * available
    if request.share is None:
        return f"or ask for at most {int(most):,} {request.unit}"
    return f"lower its share, or set mixture.total to at most {int(most / request.share):,}"
