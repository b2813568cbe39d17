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
    """Count sizes of at most `longest`: distinct sizes, decreasing, and how often each occurs."""
    counts = np.bincount(sizes, minlength=longest + 1).astype(np.int64)
    lengths = np.flatnonzero(counts)[::-1]
    return lengths, counts[lengths]


def sorted_rows(keys: Word) -> tuple[Int, Word, int]:
    """Sort rows by their keys, in place of the keys.

    The row's number takes the low bits of its key, so that equal keys keep their order and one sort
    of integers gives both.

    Returns:
        (n,) rows in order, (n,) their keys without the low bits, and the number of low bits.
    """
    bits = (len(keys) - 1).bit_length() if len(keys) else 0
    keys >>= np.uint64(bits)
    keys <<= np.uint64(bits)
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    rows = (keys & np.uint64((1 << bits) - 1)).astype(np.int64)
    return rows, keys >> np.uint64(bits), bits


class Rooms:
    """Runs of packs (first, number) by the room that is left in them."""

    def __init__(self) -> None:
        self._rooms: list[int] = []  # ascending
        self._runs: dict[int, list[tuple[int, int]]] = {}  # room → runs

    def add(self, room: int, first: int, packs: int) -> None:
        """Add a run of packs, each with this much room."""
        if room not in self._runs:
            insort(self._rooms, room)
            self._runs[room] = []
        self._runs[room].append((first, packs))

    def tightest(self, least: int) -> int:
        """Find the smallest room of at least `least` that a pack has, 0 when none has."""
        position = bisect_left(self._rooms, least)
        return self._rooms[position] if position < len(self._rooms) else 0

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
    """Result of `best_fit`: `packs` in all, and (m,) placements in decreasing order of length.

    Placement k puts `each[k]` sequences of one length into each of the packs from `first[k]` on,
    until `ends[k]` sequences are placed, those of earlier placements included.
    """

    packs: int
    first: Int
    each: Int
    ends: Int

    def packs_of(self, start: int, stop: int) -> Int:
        """Packs of the sequences `start` … `stop` - 1, (stop - start,), the longest being 0."""
        first_placement, last_placement = np.searchsorted(
            self.ends, [start, stop - 1], side="right"
        ).tolist()
        ends = np.minimum(self.ends[first_placement : last_placement + 1], stop)
        placements = np.arange(first_placement, last_placement + 1)
        placement = np.repeat(placements, np.diff(ends, prepend=start))
        placement_start = np.where(placement > 0, self.ends[placement - 1], 0)
        rank = np.arange(start, stop) - placement_start
        return self.first[placement] + rank // self.each[placement]


def best_fit(lengths: Int, counts: Int, capacity: int, rooms: Int | None = None) -> Fit:
    """Best fit decreasing: each sequence goes into the fullest pack that has room for it.

    Args:
        lengths: distinct lengths, decreasing, 1 … capacity.
        counts: how often each occurs.
        capacity: tokens that a pack holds.
        rooms: tokens that fit into each existing pack, ascending; no packs when absent.
    """
    open_packs = Rooms()
    pack_count = 0
    if rooms is not None:
        pack_count = len(rooms)
        values, firsts, runs = np.unique(rooms, return_index=True, return_counts=True)
        for room, first, run in zip(values.tolist(), firsts.tolist(), runs.tolist(), strict=True):
            if room:
                open_packs.add(room, first, run)
    placements = array("q")  # first pack, sequences in each, sequences in all; flat
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        remaining = count
        while remaining:
            room = open_packs.tightest(length)
            each = min((room or capacity) // length, remaining)
            if room:
                first, run = open_packs.take(room, remaining // each)
            else:
                first = pack_count
                run = remaining // each
                room = capacity
                pack_count += run
            remaining -= run * each
            if room > each * length:
                open_packs.add(room - each * length, first, run)
            placements.extend((first, each, run * each))
    first, each, count = np.array(placements, np.int64).reshape(-1, 3).T
    return Fit(pack_count, first, each, np.cumsum(count))
