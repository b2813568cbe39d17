"""Candidates of all prompts → the pairs of the data set: shares, totals, length matching.

    select(candidates, shares=…)  →  Selection(pairs=[…], dropped={"not_drawn": 812}, limited_by=…)

Every prompt's first pair is taken before any prompt's second one, in the order of a keyed hash.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_builders.pairs.candidates import CandidatePair
from posttrain.errors import DataError
from posttrain.records import Category

Cell = tuple[Category, bool | None]


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs taken, in order of prompt, category and rank; dropped pairs by reason.

    `limited_by` names what kept the total below the requested one, None if nothing did.
    """

    pairs: tuple[CandidatePair, ...]
    dropped: Mapping[str, int]
    limited_by: str | None


def select(
    candidates: Sequence[CandidatePair],
    *,
    shares: Mapping[Category, float],
    thinking_on: float | None,
    total: int | None,
    match_length: bool,
    sampled: str = "",
) -> Selection:
    """Choose the pairs.

    Args:
        candidates: of every prompt.
        shares: category → share of all pairs, summing to 1.
        thinking_on: share of each category's pairs with reasoning on, None for any.
        total: pairs at most, None for as many as the shares allow.
        match_length: as in the recipe.
        sampled: how the completions fared, for the error where there are no pairs.

    Raises:
        DataError: a category or mode that is requested has no pairs at all.
    """
    dropped: Counter[str] = Counter()
    by_cell: dict[Cell, list[CandidatePair]] = defaultdict(list)
    for pair in candidates:
        by_cell[pair.category, None if thinking_on is None else pair.thinking].append(pair)
    wanted = _cells(shares, thinking_on)
    for cell, pairs in by_cell.items():
        pairs.sort(key=lambda p: (p.rank, p.key))
        if match_length:
            by_cell[cell] = _matched(pairs, dropped)
    quotas, limited_by = _quotas(wanted, {c: len(p) for c, p in by_cell.items()}, total, sampled)
    taken: list[CandidatePair] = []
    for cell, pairs in by_cell.items():
        taken += pairs[: quotas.get(cell, 0)]
        dropped["not_drawn"] += len(pairs) - quotas.get(cell, 0)
    taken.sort(key=lambda p: (p.prompt, p.category, p.rank))
    assert len(candidates) == len(taken) + sum(dropped.values())
    return Selection(tuple(taken), +dropped, limited_by)


def _cells(shares: Mapping[Category, float], thinking_on: float | None) -> dict[Cell, float]:
    if thinking_on is None:
        return {(category, None): share for category, share in shares.items()}
    modes = {True: thinking_on, False: 1 - thinking_on}
    return {(c, mode): s * part for c, s in shares.items() for mode, part in modes.items() if part}


def _quotas(
    wanted: Mapping[Cell, float], available: Mapping[Cell, int], total: int | None, sampled: str
) -> tuple[dict[Cell, int], str | None]:
    """Whole numbers of pairs that keep the shares and are there."""
    empty = [cell for cell in wanted if not available.get(cell)]
    if empty:
        raise DataError(
            f"no pairs of {', '.join(map(_name, sorted(empty, key=str)))}"
            f"{f' in {sampled}' if sampled else ''}: leave that out of the recipe, or sample "
            "prompts that give some, with a higher max_tokens if many are truncated"
        )
    limit, cell = min((available[c] / share, c) for c, share in wanted.items())
    reached = total is not None and total <= limit
    size = total if reached and total is not None else math.floor(limit + 1e-9)
    exact = {c: share * size for c, share in wanted.items()}
    quotas = {c: min(math.floor(x), available[c]) for c, x in exact.items()}
    # the largest remainders get what rounding down left over
    for c in sorted(exact, key=lambda c: (quotas[c] - exact[c], str(c))):
        if sum(quotas.values()) < size and quotas[c] < available[c]:
            quotas[c] += 1
    return quotas, None if reached else _name(cell)


def _name(cell: Cell) -> str:
    category, thinking = cell
    return category if thinking is None else f"{category} (reasoning {'on' if thinking else 'off'})"


def _matched(pairs: Sequence[CandidatePair], dropped: Counter[str]) -> list[CandidatePair]:
    """As many pairs with the longer chosen as with the shorter, among those about as different."""
    bins: dict[int, list[list[int]]] = defaultdict(lambda: [[], []])
    kept: set[int] = set()
    for place, pair in enumerate(pairs):
        difference = pair.chosen.length - pair.rejected.length
        if difference == 0:
            kept.add(place)
        else:
            # half an octave a bin: differences of 8–11 tokens match each other, 12–15 likewise
            bins[int(2 * math.log2(abs(difference)))][difference > 0].append(place)
    for shorter, longer in bins.values():
        few = min(len(shorter), len(longer))
        kept.update(shorter[:few], longer[:few])
    dropped["length_unmatched"] += len(pairs) - len(kept)
    return [pair for place, pair in enumerate(pairs) if place in kept]
