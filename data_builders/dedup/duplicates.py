"""Which records of a build are dropped because another says the same, and which one that is.

Records are taken by precedence, and a record is dropped when it is a copy of one that was *kept*:
chains of small differences do not connect distant texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import BANDS, SIDE, DedupColumns, similarity
from posttrain.config.overlap import DeduplicationConfig

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
REASONS = ("duplicate", "near_duplicate", "duplicate_prompt")
NEXT = 8  # records of a band's group that each is compared with, besides the group's first
_CACHED = 4096  # records whose n-grams stay in memory


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped rows, ascending; all (n,). `reason` indexes `REASONS`, `kept` is the row kept.

    `similarity` is 1 for exact copies, NaN where only the prompts are the same.
    """

    row: Int
    reason: Int
    kept: Int
    similarity: Float


def find_duplicates(
    columns: DedupColumns, sizes: Mapping[str, int], config: DeduplicationConfig
) -> Duplicates:
    """Exact copies, then near-duplicates if configured, then equal prompts if configured: what
    stays for a prompt is dropped by nothing later. `sizes`: records of each source, in order.
    """
    assert sum(sizes.values()) == len(columns) < 1 << 32, "two records fit 64 bits"
    source = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    # from here on records are numbered by precedence: of two, the one that stays is the smaller
    order = _by_precedence(columns, source, list(sizes), config)
    left = np.ones(len(order), np.bool_)
    drops: list[tuple[Int, Int, Float]] = []

    def drop(later: Int, first: Int, shares: Float) -> None:
        left[later] = False
        drops.append((later, first, shares))

    later, first = _same_key(columns.column("conversation", order), left)
    drop(later, first, np.ones(len(later)))
    limits = [config.near_threshold(name) for name in sizes]
    limit = np.array([np.nan if one is None else one for one in limits])[source[order]]
    drop(*_near_duplicates(columns, order, limit, left))
    later, first = _same_key(columns.column("prompt", order), left & config.prompt)
    drop(later, first, np.full(len(later), np.nan))
    return _settled(drops, order)


def _by_precedence(
    columns: DedupColumns, source: Int, names: list[str], config: DeduplicationConfig
) -> Int:
    """The rows in the order of precedence: named sources, the others, inside each by their keys."""
    ranked = [name for name in config.precedence if name in names]
    ranked += [name for name in names if name not in ranked]
    rank = np.array([ranked.index(name) for name in names], np.int64)[source]
    rows = np.arange(len(source))
    return np.lexsort((columns.column("rest64", rows), columns.column("id64", rows), rank))


def _same_key(keys: npt.NDArray[np.uint64], left: npt.NDArray[np.bool_]) -> tuple[Int, Int]:
    """Of the records left, those that share a key with an earlier one, and the first of each."""
    at = np.flatnonzero(left)
    at = at[np.argsort(keys[at], kind="stable")]
    new = np.ones(len(at), np.bool_)
    new[1:] = keys[at[1:]] != keys[at[:-1]]
    first = np.maximum.accumulate(np.where(new, np.arange(len(at)), 0))
    return at[~new], at[first[~new]]


def _near_duplicates(
    columns: DedupColumns, order: Int, limits: Float, left: npt.NDArray[np.bool_]
) -> tuple[Int, Int, Float]:
    """Near-duplicates among the records left, the kept one that each is like, and how much."""
    sizes = np.stack([columns.column(s, order).astype(np.int64) for s in ("user", "assistant")], 1)
    chosen = np.flatnonzero(left & ~np.isnan(limits) & sizes.any(axis=1))
    pairs = np.empty(0, np.uint64)
    for band in range(BANDS) if len(chosen) else ():
        keys = columns.column("bands", order, band)[chosen]
        pairs = np.union1d(pairs, _pairs(keys, chosen, sizes, limits))
    shingles = lru_cache(_CACHED)(lambda rank: columns.shingles(int(order[rank])))
    dropped: dict[int, tuple[int, float]] = {}
    # by the later of both, so that what is known of the earlier is settled
    for pair in pairs.tolist():
        later, first = pair >> 32, pair & 0xFFFFFFFF
        if first in dropped or later in dropped:
            continue
        share = similarity(shingles(first), shingles(later))
        if share >= max(limits[first], limits[later]):
            dropped[later] = first, share
    kept = np.array(list(dropped.values())).reshape(-1, 2)
    return np.array(list(dropped), np.int64), kept[:, 0].astype(np.int64), kept[:, 1]


def _pairs(
    keys: npt.NDArray[np.uint32], chosen: Int, sizes: Int, limits: Float
) -> npt.NDArray[np.uint64]:
    """Records that share a key, as later << 32 | first; those whose sizes tell are left out.

    Of a large group not all pairs are looked at: each record meets the next in size, which a
    slightly edited copy is, and the first of the group, under which copies of one text gather.
    """
    by_key = np.argsort(keys, kind="stable")
    new = np.ones(len(by_key) + 1, np.bool_)
    new[1:-1] = keys[by_key[1:]] != keys[by_key[:-1]]
    by_key = by_key[~(new[1:] & new[:-1])]
    if not len(by_key):
        return np.empty(0, np.uint64)
    rows, keys = chosen[by_key], keys[by_key]
    at = np.lexsort((rows, sizes[rows].sum(axis=1), keys))
    rows, keys = rows[at], keys[at]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    first = np.minimum.reduceat(rows, starts)
    pairs = [(np.repeat(first, np.diff(np.append(starts, len(rows)))), rows)]
    for step in range(1, min(NEXT, len(rows) - 1) + 1):
        shared = keys[step:] == keys[:-step]
        pairs.append((rows[:-step][shared], rows[step:][shared]))
    one, other = np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])
    a, b = sizes[one], sizes[other]
    small, large = np.minimum(a, b), np.maximum(a, b)
    possible = (small >= SIDE * large).all(axis=1) & (one != other)
    limit = np.maximum(limits[one], limits[other])
    possible &= small.sum(axis=1) >= limit * large.sum(axis=1)
    low, high = np.minimum(one, other)[possible], np.maximum(one, other)[possible]
    return np.unique(high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64))


def _settled(drops: list[tuple[Int, Int, Float]], order: Int) -> Duplicates:
    """All drops by row, each with the record it is counted under.

    The record kept of some exact copies may fall later: its copies fall with it, under its reason.
    """
    later, first = (np.concatenate([d[k] for d in drops]).astype(np.int64) for k in (0, 1))
    similarity = np.concatenate([d[2] for d in drops])
    reason = np.repeat(np.arange(len(drops)), [len(d[0]) for d in drops])
    by_row = np.argsort(order[later])
    row, kept = order[later][by_row], order[first][by_row]
    reason, similarity = reason[by_row], similarity[by_row]
    if len(row):
        at = np.minimum(np.searchsorted(row, kept), len(row) - 1)
        fell = (row[at] == kept) & (reason == REASONS.index("duplicate"))
        reason[fell], similarity[fell], kept[fell] = (
            reason[at[fell]], similarity[at[fell]], kept[at[fell]]
        )  # fmt: skip
    return Duplicates(row, reason, kept, similarity)
