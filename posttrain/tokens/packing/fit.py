"""Best fit on a histogram of lengths: equal lengths are placed together, not one by one.

The steps grow with distinct lengths and rooms, not with sequences. (Krell et al. 2021, arXiv
2107.02027, pack histograms by longest and by shortest pack first; this is best fit decreasing.)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Word = npt.NDArray[np.uint64]


def histogram(sizes: npt.NDArray[np.integer], longest: int) -> tuple[Int, Int]:
    """Distinct sizes, decreasing, and how often each occurs; `longest` bounds them."""
    counts = np.bincount(sizes, minlength=longest + 1).astype(np.int64)
    lengths = np.flatnonzero(counts)[::-1]
    return lengths, counts[lengths]


def sorted_rows(keys: Word) -> tuple[Int, Word, int]:
    """Rows in the order of their keys, (n,), the keys without their low bits, and how many bits.

    The row's number takes the low bits of its key, in place: equal keys keep their order.
    """
    bits = (len(keys) - 1).bit_length() if len(keys) else 0
    keys >>= np.uint64(bits)
    keys <<= np.uint64(bits)
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    rows = (keys & np.uint64((1 << bits) - 1)).astype(np.int64)
    return rows, keys >> np.uint64(bits), bits


class Rooms:
    """Runs of packs (first, number) by the room they have left."""

    def __init__(self) -> None:
        self._rooms: list[int] = []  # ascending
        self._runs: dict[int, list[tuple[int, int]]] = {}

    def add(self, room: int, first: int, packs: int) -> None:
        """Add a run of packs, each with this much room."""
        if room not in self._runs:
            insort(self._rooms, room)
            self._runs[room] = []
        self._runs[room].append((first, packs))

    def tightest(self, least: int) -> int:
        """The smallest room of at least `least` that a pack has, 0 when none has."""
        at = bisect_left(self._rooms, least)
        return self._rooms[at] if at < len(self._rooms) else 0

    def take(self, room: int, most: int) -> tuple[int, int]:
        """Remove one run of packs with exactly this room, or the last `most` packs of it."""
        runs = self._runs[room]
        first, packs = runs.pop()
        if packs > most:
            runs.append((first, packs - most))
            return first + packs - most, most
        if not runs:
            del self._runs[room], self._rooms[bisect_left(self._rooms, room)]
        return first, packs


@dataclass(frozen=True, slots=True)
class Fit:
    """What `best_fit` did: `packs` in all, and (m,) placements in decreasing order of length.

    Placement k puts `each[k]` sequences of one length into each of the packs from `first[k]` on,
    until `ends[k]` sequences are placed, those of earlier placements included.
    """

    packs: int
    first: Int
    each: Int
    ends: Int

    def packs_of(self, start: int, stop: int) -> Int:
        """(stop - start,) packs of the sequences `start` … `stop` - 1, the longest being 0."""
        low, high = np.searchsorted(self.ends, [start, stop - 1], side="right").tolist()
        ends = np.minimum(self.ends[low : high + 1], stop)
        placement = np.repeat(np.arange(low, high + 1), np.diff(ends, prepend=start))
        begin = np.where(placement > 0, self.ends[placement - 1], 0)
        within = np.arange(start, stop) - begin
        return self.first[placement] + within // self.each[placement]


def best_fit(lengths: Int, counts: Int, capacity: int, rooms: Int | None = None) -> Fit:
    """Best fit decreasing: each sequence goes into the fullest pack that has room for it.

    Args:
        lengths: distinct lengths, decreasing, 1 … capacity.
        counts: how often each occurs.
        rooms: tokens that fit into each pack there is already, ascending; none when absent.
    """
    waiting = Rooms()
    opened = 0
    if rooms is not None:
        opened = len(rooms)
        values, first, packs = np.unique(rooms, return_index=True, return_counts=True)
        for value, at, run in zip(values.tolist(), first.tolist(), packs.tolist(), strict=True):
            if value:
                waiting.add(value, at, run)
    placed = array("q")
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            room = waiting.tightest(length)
            each = min((room or capacity) // length, left)
            if room:
                at, run = waiting.take(room, left // each)
            else:
                at, run, room = opened, left // each, capacity
                opened += run
            left -= run * each
            if room > each * length:
                waiting.add(room - each * length, at, run)
            placed.extend((at, each, run * each))
    first, each, count = np.array(placed, np.int64).reshape(-1, 3).T
    return Fit(opened, first, each, np.cumsum(count))
