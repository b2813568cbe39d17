"""Sequence lengths → packs: full packs whose contents still look like the whole data.

    pack_lengths([5, 3, 4, 2], 8)  →  Packs(positions=[1, 0, 3, 2], offsets=[0, 2, 4])

Best-fit decreasing fills packs almost perfectly, and sorts them: one pack gets two long sequences,
another two hundred short ones of the same length and, often, of the same source. A training batch
then no longer resembles the mixture. So most sequences are dealt to random packs and only a reserve
fills holes by best fit (`deal`). How large the reserve is, is tried from the best mixed on:
the first that costs no pack beyond plain best-fit decreasing is taken. Both work on the histogram
of lengths (`fit`): the search grows with distinct lengths; what grows with sequences is a
few sorts and sums of arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing.deal import Dealing, deal
from posttrain.tokens.packing.fit import Int, Small, Word, best_fit, histogram, sorted_rows
from posttrain.tokens.packing.groups import keep_apart, labels_of, spread

_MOST = (1 << 31) - 1
# one pack in so many may be added to keep labels apart before another dealing is tried
_TOLERATED = 10_000
# from the best mixed to plain best-fit decreasing; measured in docs/data.md
_DEALINGS = (
    Dealing(reserve=0.03, limit=0.03),
    Dealing(reserve=0.06, limit=0.06),
    Dealing(reserve=0.12, limit=0.12),
    Dealing(reserve=0.12, limit=0.25, shortest=0.02),
    Dealing(reserve=0.25, limit=0.25, shortest=0.02),
    Dealing(reserve=0.03, limit=0.03, long=0.33),
    Dealing(reserve=0.25, limit=0.25),
    Dealing(reserve=0.25, limit=1.0, shortest=0.02),
    Dealing(reserve=0.06, limit=0.25, shortest=0.05, long=0.25),
    Dealing(reserve=0.25, limit=1.0, shortest=0.02, long=0.33),
    Dealing(reserve=0.5, limit=0.5),
    Dealing(reserve=0.0, limit=0.0, long=0.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Packs:
    """Packs as two arrays: pack k holds `positions[offsets[k] : offsets[k + 1]]`, in that order."""

    positions: Small
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> Small:
        """The positions of one pack, a view."""
        if not 0 <= pack < len(self):
            raise IndexError(f"pack {pack} of {len(self)}")
        return self.positions[self.offsets[pack] : self.offsets[pack + 1]]

    def __iter__(self) -> Iterator[Small]:
        return (self[k] for k in range(len(self)))

    def fills(self, lengths: npt.NDArray[np.integer]) -> Int:
        """(packs,) tokens in each, given (n,) tokens of every sequence."""
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
        capacity: tokens a pack holds.
        seed: of what shares a pack, and of the order of packs and in packs; 0 … 2**64 - 1.
        groups: one label a sequence; sequences of the same label never share a pack (the turns of
            a conversation, the repeats of a record).

    Returns:
        Packs of indices into `lengths`; every index is in exactly one. Same input, same packs.
        There are no more packs than best-fit decreasing needs for all sequences together, unless
        labels need more.

    Raises:
        ValueError: a length is not in 1 … capacity (the index is named), or an argument cannot be
            used.
    """
    given = _checked(lengths, capacity)
    if groups is not None and len(groups) != len(given):
        raise ValueError(f"{len(given)} lengths but {len(groups)} groups")
    if not len(given):
        return Packs(np.empty(0, np.int32), np.zeros(1, np.int64))
    random = np.random.PCG64(seed)  # its raw words are the same in every version of numpy
    keys = random.random_raw(len(given))
    labels = None if groups is None else labels_of(groups)
    largest = 1 if labels is None else spread(keys, labels)
    order = sorted_rows(keys)[0]
    apart = labels[order] if labels is not None and largest > 1 else None
    pack, packs = _dealt(given[order].astype(np.int32), capacity, largest, apart)
    return _shuffled(pack, packs, order, random)


def _checked(
    lengths: Sequence[int] | npt.NDArray[np.integer], capacity: int
) -> npt.NDArray[np.integer]:
    if not 1 <= capacity <= _MOST:
        raise ValueError(f"capacity must be 1 … {_MOST}, found {capacity}")
    sizes = np.asarray(lengths)
    if len(sizes) > _MOST:
        raise ValueError(f"{len(sizes)} sequences; at most {_MOST} can be packed together")
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


def _dealt(sizes: Small, capacity: int, least: int, labels: Word | None) -> tuple[Small, int]:
    """Pack of every sequence by the best mixed dealing that needs no more packs than best fit.

    Where labels force more on every dealing, the one with fewest packs.
    """
    target = max(least, best_fit(*histogram(sizes, capacity), capacity).packs)
    found: tuple[Small, int] | None = None
    for how in _DEALINGS:
        pack, packs = deal(sizes, capacity, target, how)
        if packs > target:
            continue
        if labels is not None:
            packs = keep_apart(pack, packs, sizes, capacity, labels)
        if found is None or packs < found[1]:
            found = pack, packs
        if packs <= target + target // _TOLERATED:
            break
    assert found is not None, "the last dealing is best fit itself"
    return found


def _shuffled(pack: Small, packs: int, order: Int, random: np.random.PCG64) -> Packs:
    """Packs in random order, without those that stayed empty, each in random order."""
    place = np.argsort(random.random_raw(packs), kind="stable")
    rank = np.empty(packs, np.uint64)
    rank[place] = np.arange(packs, dtype=np.uint64)
    keys = random.random_raw(len(pack))
    bits = np.uint64((packs - 1).bit_length())
    if bits:
        keys >>= bits
        keys |= rank[pack] << (np.uint64(64) - bits)
    counts = np.bincount(pack, minlength=packs)[place]
    offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return Packs(order[sorted_rows(keys)[0]].astype(np.int32), offsets)
