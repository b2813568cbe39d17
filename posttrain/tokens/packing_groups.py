"""Labels that keep sequences apart: turns of one conversation never share a pack.

    Groups.of(["a", "b", "a"])  →  labels [0, -1, 0]: rows 0 and 2 must not meet, row 1 is alone

Two means. Before the packs are dealt, a group's members are spread evenly over the circle of random
keys, so that they are dealt to packs far apart. Afterwards the few that still met are swapped with
sequences of the same length elsewhere, which costs nothing, or moved to where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing_fit import Int

Small = npt.NDArray[np.int32]
# sequences looked at for a swap; hostile groups so cannot make the search quadratic
_TRIES = 64


@dataclass(frozen=True, slots=True)
class Groups:
    """(n,) labels: rows with the same label of 0 or more are to be kept apart, -1 is alone."""

    labels: Small
    largest: int

    @staticmethod
    def of(groups: Sequence[int | str] | npt.NDArray[np.integer]) -> Groups:
        """Number the groups of two and more."""
        given = np.asarray(groups)
        rows = np.argsort(given, kind="stable")
        given = given[rows]
        firsts = np.flatnonzero(np.concatenate([[True], given[1:] != given[:-1]]))
        counts = np.diff(np.append(firsts, len(rows)))
        several = counts > 1
        names = np.where(several, np.cumsum(several) - 1, -1).astype(np.int32)
        labels = np.empty(len(rows), np.int32)
        labels[rows] = np.repeat(names, counts)
        return Groups(labels, int(counts.max(initial=1)))

    def in_order(self, order: Small) -> Small:
        """(n,) labels of the rows in this order."""
        return self.labels[order]

    def spread(self, keys: npt.NDArray[np.uint64]) -> None:
        """Change the keys of groups, in place: each a random half of its share of the circle.

        Half, so that members stay apart; random, so that two groups do not meet in every pack.
        """
        rows = np.flatnonzero(self.labels >= 0)
        rows = rows[np.argsort(self.labels[rows], kind="stable")]
        labels = self.labels[rows]
        firsts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))[: len(rows)]
        counts = np.diff(np.append(firsts, len(rows)))
        share = np.repeat((np.uint64(2**64 - 1) // counts.astype(np.uint64)), counts)
        turn = (np.arange(len(rows)) - np.repeat(firsts, counts)).astype(np.uint64)
        start = np.repeat(keys[rows[firsts]], counts)
        keys[rows] = start + turn * share + keys[rows] % (share // np.uint64(2))  # on the circle


def keep_apart(pack: Small, packs: int, sizes: Small, capacity: int, labels: Small) -> int:
    """Move sequences, in place, until no two of one label share a pack.

    Args:
        pack: (n,) pack of every sequence; changed.
        packs: how many there are.
        sizes: (n,) tokens of every sequence.
        capacity: tokens a pack holds.
        labels: (n,) labels, -1 for a sequence that may be anywhere.

    Returns:
        How many packs there are now: more only when a sequence found no other place.
    """
    rows = np.flatnonzero(labels >= 0)
    keys = labels[rows].astype(np.uint64) << np.uint64(32) | pack[rows].astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    met = rows[1:][keys[1:] == keys[:-1]]
    if not len(met):
        return packs
    mover = _Mover(pack, packs, sizes, capacity, labels, rows)
    for row in met.tolist():
        mover.move(row)
    return len(mover.room)


class _Mover:
    def __init__(
        self, pack: Small, packs: int, sizes: Small, capacity: int, labels: Small, members: Int
    ) -> None:
        self.pack, self.sizes, self.capacity = pack, sizes, capacity
        self.labels, self.members = labels, members  # members: rows by label
        self.label_of_member = labels[members]
        self.room = np.full(packs, capacity, np.int64)
        np.subtract.at(self.room, pack, sizes)
        self.by_size = np.argsort(sizes, kind="stable")
        self.sorted_sizes = sizes[self.by_size]
        self.held: dict[int, Counter[int]] = {}

    def move(self, row: int) -> None:
        """Give the row another pack, by swapping it or where there is room, else a new one."""
        if self._packs_with(int(self.labels[row]))[int(self.pack[row])] == 1:
            return  # the one it met was swapped away
        size = int(self.sizes[row])
        low, high = np.searchsorted(self.sorted_sizes, [size, size + 1]).tolist()
        if self._swap_with(row, self._some(low, high, row)):
            return
        taken = self._packs_with(int(self.labels[row]))
        open_packs = np.flatnonzero(self.room >= size)
        open_packs = open_packs[~np.isin(open_packs, list(taken))]
        if len(open_packs):
            self._put(row, int(open_packs[np.argmin(self.room[open_packs])]))
            return
        if self._swap_with(row, self._around(low, high)):
            return
        self.room = np.append(self.room, self.capacity)
        self._put(row, len(self.room) - 1)

    def _some(self, low: int, high: int, row: int) -> Iterator[int]:
        """Some rows of the same length, from another place for every row."""
        for k in range(min(high - low, _TRIES)):
            yield int(self.by_size[low + (row + k) % (high - low)])

    def _around(self, low: int, high: int) -> Iterator[int]:
        """Rows a little longer and a little shorter, nearest first."""
        for k in range(_TRIES):
            if high + k < len(self.by_size):
                yield int(self.by_size[high + k])
            if low - 1 - k >= 0:
                yield int(self.by_size[low - 1 - k])

    def _swap_with(self, row: int, others: Iterator[int]) -> bool:
        here, size = int(self.pack[row]), int(self.sizes[row])
        taken = self._packs_with(int(self.labels[row]))
        for other in others:
            there, more = int(self.pack[other]), int(self.sizes[other]) - size
            if there in taken or more > self.room[here] or -more > self.room[there]:
                continue
            label = int(self.labels[other])
            if label < 0 or here not in self._packs_with(label):
                self._put(other, here)
                self._put(row, there)
                return True
        return False

    def _put(self, row: int, pack: int) -> None:
        size, label, before = self.sizes[row], int(self.labels[row]), int(self.pack[row])
        if label >= 0:
            held = self._packs_with(label)
            held[pack] += 1
            held[before] -= 1
            if not held[before]:
                del held[before]
        self.room[before] += size
        self.room[pack] -= size
        self.pack[row] = pack

    def _packs_with(self, label: int) -> Counter[int]:
        held = self.held.get(label)
        if held is None:
            low, high = np.searchsorted(self.label_of_member, [label, label + 1])
            held = Counter(self.pack[self.members[low:high]].tolist())
            self.held[label] = held
        return held
