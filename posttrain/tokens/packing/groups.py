"""Groups of sequences that never share a pack, such as the turns of one conversation.

A group's members are spread evenly over the circle of random keys and so dealt far apart; the few
that still met are swapped with sequences of the same length, or moved. Groups are told apart by as
many bits of a label as a row number leaves: very rarely two count as one, which keeps sequences
apart without need and does no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing.fit import Int, Small, Word, sorted_rows

# candidates for a swap; the bound keeps hostile groups from making the search quadratic
_TRIES = 64
# rows among which a partner is searched, a sample of all; bounds memory
_PARTNERS = 1 << 22
# odd, and without a pattern in its bits: products differ in their high bits (Knuth 1973, 6.4)
_SCATTER = np.uint64(0x9E3779B97F4A7C15)


def labels_of(groups: Sequence[int | str] | npt.NDArray[np.integer]) -> Word:
    """Convert labels to integers, (n,), the same for the same label."""
    labels = np.asarray(groups)
    if labels.dtype.kind not in "iu" and len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    return labels.astype(np.uint64, copy=False)


def _runs(keys: Word) -> tuple[Int, Int]:
    """Find runs of equal keys: positions of their firsts, and their lengths."""
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return firsts, np.diff(np.append(firsts, len(keys)))


def spread(keys: Word, labels: Word) -> int:
    """Spread the keys of each group evenly over the circle of keys, in place.

    Member k gets a random key in the first half of the group's k-th share of the circle. Half, so
    that members stay apart; random, so that two groups do not meet in every pack.

    Returns:
        The number of rows of the largest group.
    """
    rows, label_keys, _ = sorted_rows(labels * _SCATTER)
    firsts, counts = _runs(label_keys)
    has_company = np.repeat(counts > 1, counts)
    share = np.repeat(np.uint64(2**64 - 1) // counts.astype(np.uint64), counts)
    member = (np.arange(len(rows)) - np.repeat(firsts, counts)).astype(np.uint64)
    start = np.repeat(keys[rows[firsts]], counts)
    # unsigned overflow takes keys around the circle
    spread_keys = start + member * share + keys[rows] % (share // np.uint64(2))
    keys[rows[has_company]] = spread_keys[has_company]
    return int(counts.max(initial=0))


def keep_apart(pack: Small, packs: int, sizes: Small, capacity: int, labels: Word) -> int:
    """Move sequences, in place, until no two of one label share a pack.

    Args:
        pack: (n,) pack of every sequence; changed.
        packs: number of packs.
        sizes: (n,) tokens of every sequence.
        capacity: tokens that a pack holds.
        labels: (n,) label of every sequence.

    Returns:
        The number of packs afterwards.
    """
    rows, label_keys, bits = sorted_rows(labels * _SCATTER)
    _, counts = _runs(label_keys)
    # group and pack in one integer: members that met have equal ones
    group_and_pack = np.repeat(np.arange(len(counts)), counts) << 32 | pack[rows]
    order = np.argsort(group_and_pack, kind="stable")
    in_order = group_and_pack[order]
    met = rows[order[1:][in_order[1:] == in_order[:-1]]]
    if not len(met):
        return packs
    mover = _Mover(pack, packs, sizes, capacity, labels, (rows, label_keys, bits))
    for row in met.tolist():
        mover.move(row)
    return len(mover.room)


class _Mover:
    """Packs with the room left in each, between which single sequences are moved."""

    def __init__(
        self,
        pack: Small,
        packs: int,
        sizes: Small,
        capacity: int,
        labels: Word,
        by_label: tuple[Int, Word, int],
    ) -> None:
        self.pack = pack
        self.sizes = sizes
        self.capacity = capacity
        self.labels = labels
        self.by_label = by_label
        self.room = np.full(packs, capacity, np.int64)
        np.subtract.at(self.room, pack, sizes)
        step = -(-len(sizes) // _PARTNERS)
        sampled_sizes = sizes[::step]
        order = sorted_rows(sampled_sizes.astype(np.uint64) << np.uint64(32))[0]
        # partners for a swap, shortest first: rows, and their sizes
        self.rows_by_size = order * step
        self.sorted_sizes = sampled_sizes[order]
        # key of a group → how many of its members each pack holds
        self.member_counts: dict[int, Counter[int]] = {}

    def move(self, row: int) -> None:
        """Give the row another pack, by swapping it or where there is room, else a new one."""
        group_packs = self._group_packs(row)
        if group_packs[int(self.pack[row])] == 1:
            return  # the one it met was swapped away
        size = int(self.sizes[row])
        same_size = _equal_range(self.sorted_sizes, size)
        if self._swap(row, self._rows_of_size(same_size, row)):
            return
        roomy = np.flatnonzero(self.room >= size)
        roomy = roomy[~np.isin(roomy, list(group_packs))]
        if len(roomy):
            self._put(row, int(roomy[np.argmin(self.room[roomy])]))
        elif not self._swap(row, self._rows_of_similar_size(same_size)):
            self.room = np.append(self.room, self.capacity)
            self._put(row, len(self.room) - 1)

    def _rows_of_size(self, same_size: slice, row: int) -> Iterator[int]:
        """Candidates of the same length, beginning at another one for every row."""
        count = same_size.stop - same_size.start
        for k in range(min(count, _TRIES)):
            yield int(self.rows_by_size[same_size.start + (row + k) % count])

    def _rows_of_similar_size(self, same_size: slice) -> Iterator[int]:
        """Rows a little longer and a little shorter, nearest first."""
        for k in range(_TRIES):
            if same_size.stop + k < len(self.rows_by_size):
                yield int(self.rows_by_size[same_size.stop + k])
            if same_size.start - 1 - k >= 0:
                yield int(self.rows_by_size[same_size.start - 1 - k])

    def _swap(self, row: int, partners: Iterator[int]) -> bool:
        """Swap a row with the first partner for which both packs suit; False if there is none."""
        pack = int(self.pack[row])
        size = int(self.sizes[row])
        group_packs = self._group_packs(row)
        for partner in partners:
            partner_pack = int(self.pack[partner])
            growth = int(self.sizes[partner]) - size  # of this row's pack
            if growth > self.room[pack] or -growth > self.room[partner_pack]:
                continue
            if partner_pack in group_packs or pack in self._group_packs(partner):
                continue
            self._put(partner, pack)
            self._put(row, partner_pack)
            return True
        return False

    def _put(self, row: int, pack: int) -> None:
        """Move a row to a pack."""
        group_packs = self._group_packs(row)
        previous_pack = int(self.pack[row])
        size = self.sizes[row]
        group_packs[pack] += 1
        group_packs[previous_pack] -= 1
        if not group_packs[previous_pack]:
            del group_packs[previous_pack]
        self.room[previous_pack] += size
        self.room[pack] -= size
        self.pack[row] = pack

    def _group_packs(self, row: int) -> Counter[int]:
        """Count the members of this row's group in each pack that holds some."""
        rows, label_keys, bits = self.by_label
        key = int((self.labels[row : row + 1] * _SCATTER)[0]) >> bits
        counts = self.member_counts.get(key)
        if counts is None:
            members = rows[_equal_range(label_keys, key)]
            counts = Counter(self.pack[members].tolist())
            self.member_counts[key] = counts
        return counts


def _equal_range(ordered: npt.NDArray[np.integer], value: int) -> slice:
    """Find the range of a value in a sorted array."""
    typed_value = ordered.dtype.type(value)
    low = int(np.searchsorted(ordered, typed_value))
    return slice(low, int(np.searchsorted(ordered, typed_value, side="right")))
