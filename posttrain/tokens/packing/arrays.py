"""Arrays with an entry for every sequence, worked on in blocks: no step makes a second copy.

for block in blocks(2_500_000)    →  slice(0, 1048576), slice(1048576, 2097152), …
histogram([5, 3, 5], longest=8)   →  [5, 3], [2, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Word = npt.NDArray[np.uint64]

BLOCK = 1 << 20


def blocks(count: int) -> Iterator[slice]:
    """Slices that together cover 0 … count - 1."""
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


def histogram(sizes: npt.NDArray[np.integer], longest: int) -> tuple[Int, Int]:
    """Distinct sizes, decreasing, and how often each occurs; `longest` bounds them."""
    counts = np.zeros(longest + 1, np.int64)
    for block in blocks(len(sizes)):
        counts += np.bincount(sizes[block], minlength=longest + 1)
    lengths = np.flatnonzero(counts)[::-1]
    return lengths, counts[lengths]


def rows_where(count: int, holds: Callable[[slice], npt.NDArray[np.bool_]]) -> Small:
    """The rows 0 … count - 1 for which `holds`, asked a block at a time, is true."""
    found = [
        (np.flatnonzero(holds(block)) + block.start).astype(np.int32) for block in blocks(count)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int32)


def gathered(values: npt.NDArray[np.integer], rows: npt.NDArray[np.integer]) -> Small:
    """`values[rows]`; numpy would copy all of `rows` to 64 bits."""
    out = np.empty(len(rows), np.int32)
    for block in blocks(len(rows)):
        out[block] = values[rows[block]]
    return out


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows in the order of a key, 8 bytes each: the key's high bits, and the row in the low ones.

    There are no ties, so any way of sorting gives the same order; rows with equal keys follow each
    other as they stood.
    """

    words: Word
    bits: int

    @staticmethod
    def by(keys: Word) -> SortedRows:
        """Sort in place: the low bits of `keys`, as many as a row number needs, are replaced."""
        bits = (len(keys) - 1).bit_length() if len(keys) else 0
        low = np.uint64((1 << bits) - 1)
        for block in blocks(len(keys)):
            keys[block] &= ~low
            keys[block] |= np.arange(block.start, block.stop, dtype=np.uint64)
        keys.sort()
        return SortedRows(keys, bits)

    @staticmethod
    def by_size(sizes: Small) -> SortedRows:
        """The shortest first; `span` wants a size as `key_of_size` gives it."""
        keys = sizes.astype(np.uint64)
        keys <<= np.uint64(32)
        return SortedRows.by(keys)

    def key_of_size(self, size: int) -> int:
        """The key of rows with this size, after `by_size`."""
        return size << (32 - self.bits)

    def __len__(self) -> int:
        return len(self.words)

    def rows(self, where: slice) -> Int:
        """Rows at these places of the order."""
        return (self.words[where] & np.uint64((1 << self.bits) - 1)).astype(np.int64)

    def keys(self, where: slice) -> Word:
        """What is left of the keys at these places, shifted down."""
        return self.words[where] >> np.uint64(self.bits)

    def span(self, key: int) -> slice:
        """The places of rows with this (shifted) key."""
        first, last = key << self.bits, (key << self.bits) | ((1 << self.bits) - 1)
        low = np.searchsorted(self.words, np.uint64(first))
        return slice(int(low), int(np.searchsorted(self.words, np.uint64(last), side="right")))

    def whole_runs(self) -> Iterator[slice]:
        """Blocks that together cover all places and part no rows with equal keys."""
        start = 0
        while start < len(self):
            stop = min(start + BLOCK, len(self))
            if stop < len(self):
                run = self.span(int(self.keys(slice(stop, stop + 1))[0]))
                stop = run.start if run.start > start else run.stop
            yield slice(start, stop)
            start = stop

    def all_rows(self) -> Small:
        """(n,) rows in order."""
        out = np.empty(len(self), np.int32)
        for block in blocks(len(self)):
            out[block] = self.rows(block)
        return out
