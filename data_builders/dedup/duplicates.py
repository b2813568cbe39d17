"""Find the records of a build that repeat another record.

Records are read by precedence, and one is dropped when it is a copy of a *kept* record, so that
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
NEXT = 8  # neighbours in a band's group that a record is compared with, besides its first
_CACHED_RECORDS = 4096  # records whose n-grams stay in memory


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped rows, ascending; all arrays are (n,).

    Attributes:
        reason: index in `REASONS`.
        kept: row of which the dropped one is a copy.
        similarity: 1 for exact copies, NaN where only the prompts are equal.
    """

    row: Int
    reason: Int
    kept: Int
    similarity: Float


def find_duplicates(
    columns: DedupColumns, sizes: Mapping[str, int], config: DeduplicationConfig
) -> Duplicates:
    """Find exact copies, then near-duplicates and equal prompts where they are configured.

    Prompts come last, so that the record that stays for a prompt is dropped by no later rule.

    Args:
        sizes: number of records of each source, in order.
    """
    assert sum(sizes.values()) == len(columns) < 1 << 32, "two records fit 64 bits"
    source = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    # from here on records are numbered by precedence: of two copies the smaller number stays
    order = _by_precedence(columns, source, list(sizes), config)
    remaining = np.ones(len(order), np.bool_)
    drops: list[tuple[Int, Int, Float]] = []

    def drop(later: Int, first: Int, shares: Float) -> None:
        remaining[later] = False
        drops.append((later, first, shares))

    later, first = _same_key(columns.column("conversation", order), remaining)
    drop(later, first, np.ones(len(later)))
    thresholds = [config.near_threshold(name) for name in sizes]
    by_source = np.array([np.nan if value is None else value for value in thresholds])
    drop(*_near_duplicates(columns, order, by_source[source[order]], remaining))
    later, first = _same_key(columns.column("prompt", order), remaining & config.prompt)
    drop(later, first, np.full(len(later), np.nan))
    return _by_row(drops, order)


def _by_precedence(
    columns: DedupColumns, source: Int, names: list[str], config: DeduplicationConfig
) -> Int:
    """Rows in the order of precedence: named sources, then the others; in each by content keys."""
    ranked = [name for name in config.precedence if name in names]
    ranked += [name for name in names if name not in ranked]
    rank = np.array([ranked.index(name) for name in names], np.int64)[source]
    rows = np.arange(len(source))
    return np.lexsort((columns.column("rest64", rows), columns.column("id64", rows), rank))


def _same_key(keys: npt.NDArray[np.uint64], remaining: npt.NDArray[np.bool_]) -> tuple[Int, Int]:
    """Remaining records that share a key with an earlier one, and the first record of each key."""
    records = np.flatnonzero(remaining)
    records = records[np.argsort(keys[records], kind="stable")]
    is_first = np.ones(len(records), np.bool_)
    is_first[1:] = keys[records[1:]] != keys[records[:-1]]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(records)), 0))
    return records[~is_first], records[first[~is_first]]


def _near_duplicates(
    columns: DedupColumns, order: Int, limits: Float, remaining: npt.NDArray[np.bool_]
) -> tuple[Int, Int, Float]:
    """Near-duplicates among the remaining records, the kept copy of each, and their similarity."""
    sizes = np.stack([columns.column(s, order).astype(np.int64) for s in ("user", "assistant")], 1)
    chosen = np.flatnonzero(remaining & ~np.isnan(limits) & sizes.any(axis=1))
    pairs = np.empty(0, np.uint64)
    for band in range(BANDS) if len(chosen) else ():
        keys = columns.column("bands", order, band)[chosen]
        pairs = np.union1d(pairs, _pairs(keys, chosen, sizes, limits))
    shingles = lru_cache(_CACHED_RECORDS)(lambda rank: columns.shingles(int(order[rank])))
    dropped: dict[int, tuple[int, float]] = {}
    # ascending by the later record of a pair: whether the earlier one stays is then known
    for pair in pairs.tolist():
        later = pair >> 32
        first = pair & 0xFFFFFFFF
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
    """Pairs of records that share a key, as later << 32 | first, if their sizes allow similarity.

    A large group gives not all pairs: each record is paired with the next ones in size, where a
    slightly edited copy is, and with the first of the group, which copies of one text share.
    """
    by_key = np.argsort(keys, kind="stable")
    new = np.ones(len(by_key) + 1, np.bool_)
    new[1:-1] = keys[by_key[1:]] != keys[by_key[:-1]]
    by_key = by_key[~(new[1:] & new[:-1])]  # without groups of one record
    if not len(by_key):
        return np.empty(0, np.uint64)
    rows = chosen[by_key]
    keys = keys[by_key]
    by_size = np.lexsort((rows, sizes[rows].sum(axis=1), keys))
    rows = rows[by_size]
    keys = keys[by_size]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    first = np.minimum.reduceat(rows, starts)
    pairs = [(np.repeat(first, np.diff(np.append(starts, len(rows)))), rows)]
    for step in range(1, min(NEXT, len(rows) - 1) + 1):
        shared = keys[step:] == keys[:-step]
        pairs.append((rows[:-step][shared], rows[step:][shared]))
    a = np.concatenate([pair[0] for pair in pairs])
    b = np.concatenate([pair[1] for pair in pairs])
    # Jaccard similarity is at most the ratio of the sizes
    small = np.minimum(sizes[a], sizes[b])
    large = np.maximum(sizes[a], sizes[b])
    possible = (small >= SIDE * large).all(axis=1) & (a != b)
    limit = np.maximum(limits[a], limits[b])
    possible &= small.sum(axis=1) >= limit * large.sum(axis=1)
    low = np.minimum(a, b)[possible]
    high = np.maximum(a, b)[possible]
    return np.unique(high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64))


def _by_row(drops: list[tuple[Int, Int, Float]], order: Int) -> Duplicates:
    """All drops in order of row.

    The kept one of some exact copies may be dropped by a later rule: its copies then take its
    reason, its similarity and its kept row.
    """
    later = np.concatenate([drop[0] for drop in drops]).astype(np.int64)
    first = np.concatenate([drop[1] for drop in drops]).astype(np.int64)
    similarity = np.concatenate([drop[2] for drop in drops])
    reason = np.repeat(np.arange(len(drops)), [len(drop[0]) for drop in drops])
    by_row = np.argsort(order[later])
    row = order[later][by_row]
    kept = order[first][by_row]
    reason = reason[by_row]
    similarity = similarity[by_row]
    if len(row):
        position = np.minimum(np.searchsorted(row, kept), len(row) - 1)
        copies = (row[position] == kept) & (reason == REASONS.index("duplicate"))
        source = position[copies]
        reason[copies] = reason[source]
        similarity[copies] = similarity[source]
        kept[copies] = kept[source]
    return Duplicates(row, reason, kept, similarity)
