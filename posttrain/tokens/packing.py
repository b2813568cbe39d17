"""Packing of sequences by their lengths: full packs whose contents look like the whole data.

    pack_lengths([5, 3, 4, 2], 8)  →  Packs(positions=[3, 2, 1, 0], offsets=[0, 2, 4])

Sequences arrive in random order, and a window shows the next thousand. A pack takes the oldest of
them while they fit, then the longest that still fits, until none does. So most of a pack is drawn
at random, and the last few sequences close its hole. Best-fit decreasing over all sequences fills
hardly better, and sorts packs by length and, often, by source.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]

_INT32_MAX = (1 << 31) - 1
# sequences that a pack chooses from; more fill no better, and run out of short ones
_WINDOW = 1024
# sequences turned into Python integers at a time; bounds memory
_CHUNK = 1 << 16
# bits of a key that are the rank in the order of arrival; the bits above are the length
_RANK_BITS = (1 << 32) - 1
# label of a sequence whose group has no other member
_ALONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Packs:
    """Packs as two arrays: pack k holds `positions[offsets[k] : offsets[k + 1]]`, in that order.

    Attributes:
        positions: (n,) indices of sequences.
        offsets: (packs + 1,) offsets into `positions`.
    """

    positions: Small
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> Small:
        """Positions of one pack, a view."""
        if not 0 <= pack < len(self):
            raise IndexError(f"pack {pack} of {len(self)}")
        return self.positions[self.offsets[pack] : self.offsets[pack + 1]]

    def __iter__(self) -> Iterator[Small]:
        return (self[k] for k in range(len(self)))

    def fills(self, lengths: npt.NDArray[np.integer]) -> Int:
        """Count the tokens of each pack, (packs,), from the (n,) lengths of all sequences."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.add.reduceat(lengths[self.positions], self.offsets[:-1], dtype=np.int64)


def pack_lengths(
    lengths: Sequence[int] | npt.NDArray[np.integer],
    capacity: int,
    *,
    seed: int = 0,
    groups: Sequence[int | str] | npt.NDArray[np.integer] | None = None,
) -> Packs:
    """Assign every sequence to one pack of at most `capacity` tokens.

    Args:
        lengths: (n,) tokens of each sequence, 1 … capacity.
        capacity: tokens that a pack holds.
        seed: seed of the contents and the order of packs; 0 … 2**64 - 1.
        groups: a label for each sequence; sequences of the same label never share a pack (the
            turns of a conversation, the repeats of a record).

    Returns:
        Packs of indices into `lengths`, every index in exactly one. Same input, same packs.

    Raises:
        ValueError: a length is not in 1 … capacity (the index is named), or an argument cannot be
            used.
    """
    sizes = _checked(lengths, capacity)
    if groups is not None and len(groups) != len(sizes):
        raise ValueError(f"{len(sizes)} lengths but {len(groups)} groups")
    if not len(sizes):
        return Packs(np.empty(0, np.int32), np.zeros(1, np.int64))
    # whose raw words are the same in every version of numpy
    random = np.random.PCG64(seed)
    arrival = _random_order(len(sizes), random)
    labels = None if groups is None else _labels(groups)
    packs = _fill(_arrivals(sizes, labels, arrival), capacity, len(sizes))
    # the last packs are made of the window's remainder, so that packs are put in random order
    order = _random_order(len(packs), random)
    counts = np.diff(packs.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    moves = np.repeat(packs.offsets[:-1][order] - offsets[:-1], counts)
    positions = packs.positions[np.arange(len(sizes)) + moves]
    return Packs(arrival[positions].astype(np.int32), offsets)


def _checked(
    lengths: Sequence[int] | npt.NDArray[np.integer], capacity: int
) -> npt.NDArray[np.integer]:
    """Convert lengths to an array. Raises ValueError where a length or the capacity is wrong."""
    if not 1 <= capacity <= _INT32_MAX:
        raise ValueError(f"capacity must be 1 … {_INT32_MAX}, found {capacity}")
    sizes = np.asarray(lengths)
    if len(sizes) > _INT32_MAX:
        raise ValueError(f"{len(sizes)} sequences; at most {_INT32_MAX} can be packed together")
    if len(sizes) and sizes.dtype.kind not in "iu":
        for index, size in enumerate(lengths):
            if type(size) is not int or not 1 <= size <= capacity:
                raise ValueError(
                    f"lengths[{index}] is {size!r}; it must be an integer 1 … {capacity}"
                )
    wrong = np.flatnonzero((sizes < 1) | (sizes > capacity))
    if len(wrong):
        index = int(wrong[0])
        raise ValueError(f"lengths[{index}] is {sizes[index]}; it must be 1 … {capacity}")
    return sizes


def _random_order(count: int, random: np.random.PCG64) -> Int:
    """Indices 0 … count - 1 in random order, (count,)."""
    return np.argsort(random.random_raw(count), kind="stable")


def _labels(groups: Sequence[int | str] | npt.NDArray[np.integer]) -> Int:
    """Number the groups, (n,); sequences alone in their group share the label `_ALONE`."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.where(counts[group] > 1, group, _ALONE)


def _arrivals(
    sizes: npt.NDArray[np.integer], labels: Int | None, arrival: Int
) -> Iterator[tuple[int, int]]:
    """Yield the key and the label of every sequence in the order of arrival.

    A key is length << 32 | rank in the order of arrival.
    """
    for start in range(0, len(arrival), _CHUNK):
        rows = arrival[start : start + _CHUNK]
        keys = (sizes[rows].astype(np.int64) << 32) + np.arange(start, start + len(rows))
        chunk_labels = np.full(len(rows), _ALONE) if labels is None else labels[rows]
        yield from zip(keys.tolist(), chunk_labels.tolist(), strict=True)


def _fill(arrivals: Iterator[tuple[int, int]], capacity: int, count: int) -> Packs:
    """Fill one pack after the other from a window over the arrivals.

    Args:
        arrivals: keys and labels, from `_arrivals`.
        capacity: tokens that a pack holds.
        count: number of arrivals.

    Returns:
        Packs of ranks in the order of arrival.
    """
    window = _Window(arrivals)
    positions = np.empty(count, np.int32)
    offsets = [0]
    count_packed = 0
    while window.labels:
        for key in window.take_pack(capacity):
            positions[count_packed] = key & _RANK_BITS
            count_packed += 1
        offsets.append(count_packed)
    return Packs(positions, np.array(offsets))


class _Window:
    """Window of sequences that the next pack chooses from: the first that no pack has taken."""

    def __init__(self, arrivals: Iterator[tuple[int, int]]) -> None:
        self._arrivals = arrivals
        # key → label
        self.labels: dict[int, int] = {}
        self._by_length: list[int] = []
        # a key that was taken by its length stays here until it is the oldest
        self._by_age: deque[int] = deque()
        for _ in range(_WINDOW):
            self._let_in()

    def take_pack(self, capacity: int) -> Iterator[int]:
        """Take the keys of one pack: the oldest while they fit, then the longest that fit."""
        room = capacity
        pack_labels: set[int] = set()
        for choose in (self._oldest, self._longest):
            while True:
                key = choose(room, pack_labels)
                if key is None:
                    break
                room -= key >> 32
                label = self.labels.pop(key)
                if label != _ALONE:
                    pack_labels.add(label)
                del self._by_length[bisect_left(self._by_length, key)]
                self._let_in()
                yield key

    def _let_in(self) -> None:
        """Let the next arrival into the window, if there is one."""
        for key, label in itertools.islice(self._arrivals, 1):
            self.labels[key] = label
            insort(self._by_length, key)
            self._by_age.append(key)

    def _oldest(self, room: int, pack_labels: set[int]) -> int | None:
        """Find the oldest key whose group is not in the pack; None if it does not fit."""
        skipped_keys: list[int] = []
        oldest = None
        while self._by_age:
            key = self._by_age[0]
            if key in self.labels and self.labels[key] not in pack_labels:
                oldest = key
                break
            self._by_age.popleft()
            if key in self.labels:
                skipped_keys.append(key)
        self._by_age.extendleft(reversed(skipped_keys))
        return oldest if oldest is not None and oldest >> 32 <= room else None

    def _longest(self, room: int, pack_labels: set[int]) -> int | None:
        """Find the longest key that fits and whose group is not in the pack."""
        end = bisect_left(self._by_length, (room + 1) << 32)
        for key in reversed(self._by_length[:end]):
            if self.labels[key] not in pack_labels:
                return key
        return None
