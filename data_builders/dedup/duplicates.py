"""Which records of a build are dropped because another says the same, and which one that is.

    find_duplicates(order_of(columns, names, config), config, scratch)
    → Duplicates(row=[17, 204], reason=["duplicate", "near_duplicate"], kept=[3, 99],
                 similarity=[1.0, 0.981])

Records are taken in the order of precedence, and a record is dropped when it is a copy of one that
was *kept*. Chains do not pull texts together that are far apart: every dropped record is within the
threshold of the kept one it is counted under. The order of rows, parts and workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import DedupColumns, KeyColumn
from data_builders.dedup.equal_keys import equal_keys
from data_builders.dedup.near_index import NearIndex, whole_keys
from data_builders.dedup.near_text import NearText
from data_builders.dedup.verify import similarity
from posttrain.config.deduplication import DeduplicationConfig, NearConfig

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
_NO_ROWS = np.empty(0, np.int64)
REASONS = ("duplicate", "duplicate_prompt", "near_duplicate")


@dataclass(frozen=True, slots=True)
class Order:
    """Who comes first: sources by `precedence` (sources,), then records by their keys.

    Records are numbered over all sources, one after the other; `starts` (sources + 1,).
    """

    columns: Sequence[DedupColumns]
    precedence: Int
    starts: Int

    def ranked(self, rows: Int, group: Int | None = None) -> Int:
        """The order in which the rows come, inside their groups if any: positions (rows,)."""
        keys = (rows, self._keys("rest64", rows), self._keys("id64", rows))
        keys = (*keys, self.precedence[self.source(rows)])
        return np.lexsort(keys if group is None else (*keys, group))

    def source(self, rows: Int) -> Int:
        """The source of every row."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def text(self, row: int) -> NearText:
        """What a row said."""
        source = int(self.source(np.array([row]))[0])
        return self.columns[source].text(row - int(self.starts[source]))

    def keys(self, column: KeyColumn) -> Keys:
        """A column of all records, (records,)."""
        found = np.empty(int(self.starts[-1]), np.uint64)
        for columns, start, end in zip(self.columns, self.starts, self.starts[1:], strict=False):
            found[start:end] = columns.keys(column)
        return found

    def _keys(self, column: KeyColumn, rows: Int) -> Keys:
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        edges = np.searchsorted(ascending, self.starts)
        found = np.empty(len(rows), np.uint64)
        for columns, start, a, b in zip(self.columns, self.starts, edges, edges[1:], strict=False):
            if b > a:
                found[order[a:b]] = columns.keys_at(column, ascending[a:b] - start)
        return found


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped rows, ascending; all (n,). `reason` indexes `REASONS`, `kept` is the row kept.

    `similarity` is 1 for exact copies, NaN where only the prompts are the same.
    """

    row: Int
    reason: npt.NDArray[np.int8]
    kept: Int
    similarity: npt.NDArray[np.float64]


@dataclass
class _Search:
    """What was found so far: `there` (records,) and, search by search, the dropped and the kept."""

    there: npt.NDArray[np.bool_]
    found: list[Duplicates] = field(default_factory=list[Duplicates])

    def add(self, rows: Int, kept: Int, reason: int, similarity: npt.NDArray[np.float64]) -> None:
        self.there[rows] = False
        reasons = np.full(len(rows), reason, np.int8)
        self.found.append(Duplicates(rows, reasons, kept, similarity))


def order_of(
    columns: Sequence[DedupColumns], names: Sequence[str], config: DeduplicationConfig
) -> Order:
    """The order that a recipe asks for, of sources with the given names."""
    named = [name for name in config.precedence if name in names]
    ranks = [*named, *(name for name in names if name not in named)]
    return Order(
        columns=columns,
        precedence=np.array([ranks.index(name) for name in names], np.int64),
        starts=np.cumsum([0, *(len(s) for s in columns)]).astype(np.int64),
    )


def find_duplicates(order: Order, config: DeduplicationConfig, scratch: Path) -> Duplicates:
    """Exact copies, then near-duplicates if asked, then those with the same prompt if asked.

    Prompts come last: the record that stays for a prompt is not dropped any more.

    Args:
        scratch: a folder for the index of near-duplicates; it is removed again.
    """
    count = int(order.starts[-1])
    assert count < 1 << 32, "two rows fit one word"
    search = _Search(np.ones(count, np.bool_))
    _same_key("conversation", order, search, similarity=1.0)
    if config.near is not None:
        _same_text(order, config.near, search)
        with NearIndex.build(scratch, order.columns, order.precedence, search.there) as index:
            pairs = index.pairs(edits=config.near.edits)
        _near(pairs, order, config.near, search)
    if config.prompt:
        _same_key("prompt", order, search, similarity=np.nan)
    return _settled(search.found)


def _same_key(column: KeyColumn, order: Order, search: _Search, *, similarity: float) -> None:
    """Of every group of rows that share a key and are still there, keep the first."""
    reason = ("conversation", "prompt").index(column)
    for groups in equal_keys(order.keys(column)):
        there = search.there[groups.rows]
        rows, group = groups.rows[there], groups.group[there]
        copies, first = _after_the_first(order, rows, group)
        search.add(copies, first, reason, np.full(len(copies), similarity))


def _after_the_first(order: Order, rows: Int, group: Int) -> tuple[Int, Int]:
    """All rows of groups but the first of each, and that first row for each of them."""
    ranked = order.ranked(rows, group)
    rows, group = rows[ranked], group[ranked]
    heads = np.concatenate([[True], group[1:] != group[:-1]])[: len(rows)]
    first = rows[heads][np.cumsum(heads) - 1]
    return rows[~heads], first[~heads]


def _same_text(order: Order, config: NearConfig, search: _Search) -> None:
    """What differs in nothing that near-duplicates are compared by, in groups of any size."""
    rows, keys = whole_keys(order.columns, search.there)
    reason = REASONS.index("near_duplicate")
    for groups in equal_keys(keys):
        copies, first = _after_the_first(order, rows[groups.rows], groups.group)
        same = np.zeros(len(copies), np.bool_)
        for k, (row, kept) in enumerate(zip(copies.tolist(), first.tolist(), strict=True)):
            same[k] = similarity(order.text(row), order.text(kept), config) == 1
        search.add(copies[same], first[same], reason, np.ones(int(same.sum())))


def _near(pairs: Int, order: Order, config: NearConfig, search: _Search) -> None:
    """Compare the pairs in the order of their later record, each with records still kept."""
    involved = np.unique(pairs)
    ranked = order.ranked(involved)
    rank = np.empty(len(involved), np.int64)
    rank[ranked] = np.arange(len(involved))
    ranks = np.sort(rank[np.searchsorted(involved, pairs)], axis=1)
    ranks = ranks[np.lexsort((ranks[:, 0], ranks[:, 1]))]
    dropped: dict[int, tuple[int, float]] = {}
    for first, later in ranks.tolist():
        if first in dropped or later in dropped:
            continue
        one, other = (order.text(int(involved[ranked[k]])) for k in (first, later))
        share = similarity(one, other, config)
        if share is not None:
            dropped[later] = first, share
    rows, kept = np.array(list(dropped), np.int64), np.array([k for k, _ in dropped.values()], int)
    shares = np.array([share for _, share in dropped.values()], np.float64)
    reason = REASONS.index("near_duplicate")
    search.add(involved[ranked[rows]], involved[ranked[kept]], reason, shares)


def _settled(found: Sequence[Duplicates]) -> Duplicates:
    """All in one, each with the record it is counted under.

    A record may have been kept as the first of its copies and then fall to another one: its copies
    fall with it, under its reason. A near-duplicate of a record that then falls for its prompt
    keeps that record's name: what it has in common with a third was not looked at.
    """
    row = np.concatenate([_NO_ROWS, *(part.row for part in found)])
    kept = np.concatenate([_NO_ROWS, *(part.kept for part in found)])
    reason = np.concatenate([np.empty(0, np.int8), *(part.reason for part in found)])
    similarity = np.concatenate([np.empty(0), *(part.similarity for part in found)])
    order = np.argsort(row)
    row, reason, kept, similarity = row[order], reason[order], kept[order], similarity[order]
    while len(row):
        at = np.minimum(np.searchsorted(row, kept), len(row) - 1)
        same_text = (similarity == 1) & (reason[at] == REASONS.index("near_duplicate"))
        fell = (row[at] == kept) & ((reason == REASONS.index("duplicate")) | same_text)
        if not fell.any():
            break
        kept[fell], reason[fell] = kept[at[fell]], reason[at[fell]]
        similarity[fell] = similarity[at[fell]]
    return Duplicates(row, reason, kept, similarity)
