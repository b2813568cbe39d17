"""The index in which near-duplicates meet: keys of all records on disk, band by band.

    with NearIndex.build(folder, columns, there) as index:
        index.pairs(edits=0.05)   → (p, 2) rows of records that might be near-duplicates

400 bytes a record on disk, 100 keys of 4 bytes; in memory one band of them at a time, and 20 bytes
a record for its number, two lengths and its place in the order of precedence.

Not all of a large group are compared: what many share is a template, or one text that differs in a
little everywhere. Each is compared with the few that come closest to it in length, and with the
first of the group, to which all copies of one text fall.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import DedupColumns, NearBlock
from data_builders.dedup.equal_keys import GroupedRows, equal_keys
from data_builders.dedup.signature import BANDS
from data_builders.dedup.verify import allowed_edits
from data_builders.keyed import shuffled_keys

LARGE, FEW, FIRST = 16, 4, 2  # a larger group; how many next in length, and how many of its first
_BANDS = "bands"
_SOURCES = 12  # bits for the precedence of the source in a rank
Int = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class NearIndex:
    """`rows[i]` is the record at place i; `lengths` (n, 2); `ranks` (n,) are as the precedence of
    the sources and then the keys of the records; `stride` records fit each band's piece."""

    folder: Path
    rows: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    ranks: Words
    stride: int

    @classmethod
    def build(
        cls, folder: Path, columns: Sequence[DedupColumns], precedence: Int, there: Bool
    ) -> Self:
        """Write the keys of all records that are long enough and still `there`.

        Args:
            precedence: of every source, the smallest first.
            there: over the records of all sources, one after the other.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lengths = np.empty((len(there), 2), np.uint32)
        places, ranks = np.empty(len(there), np.uint32), np.empty(len(there), np.uint64)
        at = 0
        # what is not written of the file takes no room on disk
        with (folder / _BANDS).open("wb") as file:
            for source, first, block in _blocks(columns):
                kept = there[first + block.rows]
                until = at + int(kept.sum())
                for band, column in enumerate(np.ascontiguousarray(block.bands[kept].T)):
                    os.pwrite(file.fileno(), column.data, 4 * (band * len(there) + at))
                lengths[at:until], places[at:until] = block.lengths[kept], first + block.rows[kept]
                ranks[at:until] = _ranks(int(precedence[source]), block.id64[kept])
                at = until
        return cls(folder, places[:at], lengths[:at], ranks[:at], len(there))

    def band(self, number: int) -> npt.NDArray[np.uint32]:
        """The keys of all records in one band, (n,)."""
        offset = 4 * number * self.stride
        return np.fromfile(self.folder / _BANDS, np.uint32, len(self.rows), offset=offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def pairs(self, *, edits: float) -> Int:
        """Records that share a key and are of about one length, each pair once, (p, 2)."""
        found = np.empty(0, np.uint64)
        for band in range(BANDS):
            fresh = [
                _close(g, self.lengths, self.ranks, edits) for g in equal_keys(self.band(band))
            ]
            if fresh:
                found = np.union1d(found, np.concatenate(fresh))
        low, high = found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)
        return np.stack([self.rows[low], self.rows[high]], axis=1).astype(np.int64)


def _folded(lengths: Int, bands: npt.NDArray[np.uint32]) -> Words:
    """One key of all that is known of each record, (n,)."""
    keys = np.zeros(len(bands), np.uint64)
    for column in (*lengths.T, *bands.T):
        keys = shuffled_keys(keys + column.astype(np.uint64), salt=1)
    return keys


def _ranks(precedence: int, id64: Words) -> Words:
    """A number that orders records as precedence and keys do, (n,)."""
    return np.uint64(precedence) << np.uint64(64 - _SOURCES) | id64 >> np.uint64(_SOURCES)


def whole_keys(columns: Sequence[DedupColumns], there: Bool) -> tuple[Int, Words]:
    """Records that can have near-duplicates, and a key of all bands and lengths of each, (n,)."""
    found: list[tuple[Int, Words]] = []
    for _, first, block in _blocks(columns):
        kept = there[first + block.rows]
        keys = _folded(block.lengths[kept], block.bands[kept])
        found.append((first + block.rows[kept], keys))
    empty = np.empty(0, np.int64), np.empty(0, np.uint64)
    rows, keys = zip(empty, *found, strict=True)
    return np.concatenate(rows), np.concatenate(keys)


def _blocks(columns: Sequence[DedupColumns]) -> Iterator[tuple[int, int, NearBlock]]:
    """All blocks, with the source of each and the number of that source's first record."""
    first = 0
    for number, source in enumerate(columns):
        for block in source.near():
            yield number, first, block
        first += len(source)


def _close(
    groups: GroupedRows, lengths: npt.NDArray[np.uint32], ranks: Words, edits: float
) -> Words:
    """Pairs of one group whose lengths differ by no more than the allowed edits.

    Args:
        ranks: of all records; the order of rows is not to say who is next to whom.
    """
    sizes = lengths[groups.rows].astype(np.int64)
    group = groups.group
    own = ranks[groups.rows]
    order = np.lexsort((own, sizes[:, 0], sizes.sum(axis=1), group))
    rows, sizes, group, own = groups.rows[order], sizes[order], group[order], own[order]
    large = (np.bincount(group) > LARGE)[group]
    pairs: list[Words] = []

    def add(one: Int, other: Int) -> None:
        a, b = sizes[one], sizes[other]
        near = (np.abs(a - b) <= allowed_edits(np.maximum(a, b), edits)).all(axis=1)
        low, high = np.minimum(rows[one], rows[other]), np.maximum(rows[one], rows[other])
        pairs.append((low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))[near])

    for step in range(1, LARGE):
        together = group[step:] == group[:-step]
        if step > FEW:
            together &= ~large[step:]
        if not together.any():
            break
        one = np.flatnonzero(together)
        add(one, one + step)
    if large.any():
        for number in range(FIRST):
            add(*_with_first(group, own, large, number))
    return np.concatenate(pairs) if pairs else np.empty(0, np.uint64)


def _with_first(group: Int, ranks: Words, large: Bool, number: int) -> tuple[Int, Int]:
    """Every member of a large group but one, and that one: the group's first, second, ...

    Args:
        group: (n,), ascending.
    """
    by_rank = np.lexsort((ranks, group))
    starts = np.searchsorted(group, group, side="left")
    first = by_rank[starts + number * large]
    one = np.flatnonzero(large & (first != np.arange(len(group))))
    return one, first[one]
