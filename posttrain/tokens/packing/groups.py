"""Labels that keep sequences apart: turns of one conversation never share a pack.

A group's members are spread evenly over the circle of random keys and so dealt far apart; the few
that still met are swapped with sequences of the same length, or moved. Groups are found by as many
bits of a label as a row number leaves: very rarely two count as one, and are kept apart as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing.fit import Int, Small, Word, sorted_rows

# sequences looked at for a swap; hostile groups so cannot make the search quadratic
_TRIES = 64
# among at most so many rows a partner is looked for
_PARTNERS = 1 << 22


# odd, and without a pattern in its bits: products differ in their high bits (Knuth 1973, 6.4)
_SCATTER = np.uint64(0x9E3779B97F4A7C15)


def labels_of(groups: Sequence[int | str] | npt.NDArray[np.integer]) -> Word:
    """(n,) a word for every row, the same for the same label."""
    given = np.asarray(groups)
    if given.dtype.kind not in "iu" and len(given):
        given = np.unique(given, return_inverse=True)[1]
    return given.astype(np.uint64, copy=False)


def _runs(keys: Word) -> tuple[Int, Int]:
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return firsts, np.diff(np.append(firsts, len(keys)))


def spread(keys: Word, labels: Word) -> int:
    """Change the keys of groups, in place: each a random half of its share of the circle.

    Half, so that members stay apart; random, so that two groups do not meet in every pack. Returns
    how many rows the largest group has.
    """
    rows, words, _ = sorted_rows(labels * _SCATTER)
    firsts, counts = _runs(words)
    several = np.repeat(counts > 1, counts)
    share = np.repeat(np.uint64(2**64 - 1) // counts.astype(np.uint64), counts)
    turn = (np.arange(len(rows)) - np.repeat(firsts, counts)).astype(np.uint64)
    start = np.repeat(keys[rows[firsts]], counts)
    moved = start + turn * share + keys[rows] % (share // np.uint64(2))  # on the circle
    keys[rows[several]] = moved[several]
    return int(counts.max(initial=0))


def keep_apart(pack: Small, packs: int, sizes: Small, capacity: int, labels: Word) -> int:
    """Move sequences, in place, until no two of one label share a pack; returns how many there are.

    Args:
        pack: (n,) pack of every sequence; changed.
        sizes, labels: (n,) their tokens and labels.
    """
    rows, words, bits = sorted_rows(labels * _SCATTER)
    _, counts = _runs(words)
    place = np.repeat(np.arange(len(counts)), counts) << 32 | pack[rows]
    order = np.argsort(place, kind="stable")
    met = rows[order[1:][place[order[1:]] == place[order[:-1]]]]
    if not len(met):
        return packs
    mover = _Mover(pack, packs, sizes, capacity, labels, (rows, words, bits))
    for row in met.tolist():
        mover.move(row)
    return len(mover.room)


class _Mover:
    def __init__(
        self,
        pack: Small,
        packs: int,
        sizes: Small,
        capacity: int,
        labels: Word,
        by_label: tuple[Int, Word, int],
    ) -> None:
        self.pack, self.sizes, self.capacity = pack, sizes, capacity
        self.labels, self.by_label = labels, by_label
        self.room = np.full(packs, capacity, np.int64)
        np.subtract.at(self.room, pack, sizes)
        step = -(-len(sizes) // _PARTNERS)
        some = sizes[::step]
        rows = sorted_rows(some.astype(np.uint64) << np.uint64(32))[0]
        # shortest first: rows, and their sizes
        self.by_size, self.ordered = rows * step, some[rows]
        self.met: dict[int, Counter[int]] = {}

    def move(self, row: int) -> None:
        """Give the row another pack, by swapping it or where there is room, else a new one."""
        taken = self._packs_with(row)
        if taken[int(self.pack[row])] == 1:
            return  # the one it met was swapped away
        size = int(self.sizes[row])
        alike = _span(self.ordered, size)
        if self._swap(row, self._some(alike, row)):
            return
        roomy = np.flatnonzero(self.room >= size)
        roomy = roomy[~np.isin(roomy, list(taken))]
        if len(roomy):
            self._put(row, int(roomy[np.argmin(self.room[roomy])]))
        elif not self._swap(row, self._around(alike)):
            self.room = np.append(self.room, self.capacity)
            self._put(row, len(self.room) - 1)

    def _some(self, places: slice, row: int) -> Iterator[int]:
        """Some rows of the same length, from another place for every row."""
        count = places.stop - places.start
        for k in range(min(count, _TRIES)):
            yield int(self.by_size[places.start + (row + k) % count])

    def _around(self, places: slice) -> Iterator[int]:
        """Rows a little longer and a little shorter, nearest first."""
        for k in range(_TRIES):
            if places.stop + k < len(self.by_size):
                yield int(self.by_size[places.stop + k])
            if places.start - 1 - k >= 0:
                yield int(self.by_size[places.start - 1 - k])

    def _swap(self, row: int, others: Iterator[int]) -> bool:
        here, size, taken = int(self.pack[row]), int(self.sizes[row]), self._packs_with(row)
        for other in others:
            there, more = int(self.pack[other]), int(self.sizes[other]) - size
            if there in taken or more > self.room[here] or -more > self.room[there]:
                continue
            if here not in self._packs_with(other):
                self._put(other, here)
                self._put(row, there)
                return True
        return False

    def _put(self, row: int, pack: int) -> None:
        taken, before, size = self._packs_with(row), int(self.pack[row]), self.sizes[row]
        taken[pack] += 1
        taken[before] -= 1
        if not taken[before]:
            del taken[before]
        self.room[before] += size
        self.room[pack] -= size
        self.pack[row] = pack

    def _packs_with(self, row: int) -> Counter[int]:
        """How often each pack holds a member of this row's group."""
        rows, words, bits = self.by_label
        key = int((self.labels[row : row + 1] * _SCATTER)[0]) >> bits
        met = self.met.get(key)
        if met is None:
            members = rows[_span(words, key)]
            met = self.met[key] = Counter(self.pack[members].tolist())
        return met


def _span(ordered: npt.NDArray[np.integer], value: int) -> slice:
    wanted = ordered.dtype.type(value)
    low = int(np.searchsorted(ordered, wanted))
    return slice(low, int(np.searchsorted(ordered, wanted, side="right")))
