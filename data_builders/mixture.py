"""How often each record of each source is seen: a plan made from counts, before any token is moved.

    plan_mixture([Stock("maths", keys, tokens, trained)], recipe)
    → [SourcePlan("maths", requested=Amount("tokens", 200_000), takes=[(0, 17), (0, 4), …], …)]

A take is (epoch, record). Epoch 0 sees every record once in an order of its own, epoch 1 again in
another; the last epoch stops when the amount is reached. Which records that leaves out, and the
order of the rest, follows from keyed hashes: input order changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from posttrain.config.build_sft import BuildSftConfig, SftSource, Unit
from posttrain.errors import DataError

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stock:
    """What a source has to give: per record (n,) a key, its tokens and its trained tokens.

    `lost` tells why it has nothing, for the message: "1,500 unrecognised".
    """

    name: str
    keys: npt.NDArray[np.uint64]
    tokens: Int
    trained: Int
    lost: str = "no rows"

    def measure(self, unit: Unit) -> Int:
        """What one take of each record adds, in the unit."""
        return self.tokens if unit == "tokens" else np.ones_like(self.tokens)


@dataclass(frozen=True, slots=True)
class Amount:
    """A requested amount; `share` is set when it came from a share of the total."""

    unit: Unit
    value: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The takes of one source, in order: `epochs[i]`, `records[i]`."""

    name: str
    requested: Amount | None
    cap: float
    epochs: npt.NDArray[np.int16]
    records: Int
    stock: Stock

    def realised(self, unit: Unit) -> int:
        """What the takes add up to, in the unit."""
        return int(self.stock.measure(unit)[self.records].sum())

    @property
    def trained(self) -> int:
        """Trained tokens of the takes, repeats counted."""
        return int(self.stock.trained[self.records].sum())

    @property
    def distinct(self) -> int:
        """Records taken at least once."""
        return len(np.unique(self.records))


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
        epochs, records = _takes(stock, amount, cap, recipe.seed)
        plans.append(SourcePlan(source.name, amount, cap, epochs, records, stock))
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
        available = int(stock.measure(recipe.mixture.unit).sum())
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


def _takes(
    stock: Stock, amount: Amount | None, cap: float, seed: int
) -> tuple[npt.NDArray[np.int16], Int]:
    """Whole epochs, then the head of one more; without an amount, each record once."""
    epochs: list[npt.NDArray[np.int16]] = [np.empty(0, np.int16)]
    records: list[Int] = [np.empty(0, np.int64)]
    size = len(stock.keys)
    sizes = stock.measure(amount.unit) if amount else np.ones_like(stock.tokens)
    one_epoch = int(sizes.sum())
    left = min(amount.value, cap * one_epoch) if amount else float(size)
    epoch = 0
    while left > 0 and one_epoch > 0:
        order = _epoch_order(stock, epoch, seed)
        reached = np.cumsum(sizes[order])
        count = size if left >= one_epoch else _nearest(reached, left)
        epochs.append(np.full(count, epoch, np.int16))
        records.append(order[:count])
        left -= one_epoch
        epoch += 1
    return np.concatenate(epochs), np.concatenate(records)


def _epoch_order(stock: Stock, epoch: int, seed: int) -> Int:
    salt = key64(seed, "epoch", stock.name, epoch)
    return np.argsort(shuffled_keys(stock.keys, salt), kind="stable").astype(np.int64)


def _nearest(reached: Int, wanted: float) -> int:
    """How many of the first records come closest to the wanted amount."""
    count = int(np.searchsorted(reached, wanted))
    below = reached[count - 1] if count else 0
    over = count < len(reached) and reached[count] - wanted < wanted - below
    return count + 1 if over else count


def _check(plan: SourcePlan, recipe: BuildSftConfig) -> None:
    if plan.requested is None:
        return
    unit, wanted = plan.requested.unit, plan.requested.value
    realised = plan.realised(unit)
    off = abs(realised - wanted) / wanted if wanted else 1.0
    if off <= recipe.mixture.tolerance:
        return
    available = int(plan.stock.measure(unit).sum())
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
