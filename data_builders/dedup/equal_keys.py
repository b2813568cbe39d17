"""Records that share a key, found with memory that does not grow with their number.

    for group in equal_keys(keys): …   → GroupedRows(rows=[4, 17, 2, 9, 30], starts=[0, 2])

Keys are taken in slices by their leading bits: one slice is sorted at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLICE = 1 << 22  # keys sorted at once
_BLOCK = 1 << 20
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows in groups of at least two that share a key; group g starts at `starts[g]`."""

    rows: Int
    starts: Int

    @property
    def group(self) -> Int:
        """The group of every row, (rows,)."""
        marks = np.zeros(len(self.rows), np.int64)
        marks[self.starts] = 1
        return np.cumsum(marks) - 1


def equal_keys(
    keys: npt.NDArray[np.uint32] | npt.NDArray[np.uint64], *, size: int = SLICE
) -> Iterator[GroupedRows]:
    """Every key that at least two rows have, in slices.

    Args:
        keys: (n,), spread evenly over their range; may be a memory map.
        size: about how many keys are sorted at once.
    """
    slices = 1 << max(0, -(-len(keys) // size) - 1).bit_length()
    shift = keys.dtype.itemsize * 8 - slices.bit_length() + 1
    for number in range(slices):
        rows, values = _slice(keys, number, shift) if slices > 1 else (None, np.asarray(keys))
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        same = ordered[1:] == ordered[:-1]
        first = np.concatenate([[True], ~same])  # of its group
        shared = np.concatenate([same, [False]]) | ~first
        chosen = order[shared] if len(ordered) else order
        if len(chosen):
            starts = np.flatnonzero(first[shared])
            yield GroupedRows(chosen if rows is None else rows[chosen], starts)


def _slice(
    keys: npt.NDArray[np.uint32] | npt.NDArray[np.uint64], number: int, shift: int
) -> tuple[Int, npt.NDArray[np.uint32] | npt.NDArray[np.uint64]]:
    rows: list[Int] = []
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK]
        rows.append(np.flatnonzero(block >> block.dtype.type(shift) == number) + start)
    found = np.concatenate(rows)
    return found, keys[found]
