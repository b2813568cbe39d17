"""The index in which near-duplicates meet: keys of all records on disk, band by band.

    with NearIndex.build(folder, said, there) as index:
        index.pairs(edits=0.05)   → (p, 2) rows of records that might be near-duplicates

400 bytes a record on disk, 100 keys of 4 bytes; in memory one band of them at a time, and 16 bytes
a record for its number, two lengths and a key.
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

from data_builders.dedup.equal_keys import GroupedRows, equal_keys
from data_builders.dedup.said import Said
from data_builders.dedup.signature import BANDS
from data_builders.dedup.verify import allowed_edits
from data_builders.keyed import shuffled_keys

# in a larger group each record is compared with the few that come closest to it in length; what
# many share is a template, and copies made from one also meet in smaller groups
LARGE, FEW = 16, 4
_BANDS = "bands"
Int = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class NearIndex:
    """`rows[i]` is the record at place i; `lengths` (n, 2); `ties` (n,) belong to what was said;
    `stride` records fit each band's piece of the file."""

    folder: Path
    rows: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    ties: npt.NDArray[np.uint32]
    stride: int

    @classmethod
    def build(cls, folder: Path, said: Sequence[Said], there: Bool) -> Self:
        """Write the keys of all records that are long enough and still `there`.

        Args:
            there: over the records of all sources, one after the other.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lengths = np.empty((len(there), 2), np.uint32)
        places, ties = np.empty(len(there), np.uint32), np.empty(len(there), np.uint32)
        at = 0
        # what is not written of the file takes no room on disk
        with (folder / _BANDS).open("wb") as file:
            for first, rows, sizes, keys in _batches(said):
                kept = there[first + rows]
                until = at + int(kept.sum())
                for band, column in enumerate(np.ascontiguousarray(keys[kept].T)):
                    os.pwrite(file.fileno(), column.data, 4 * (band * len(there) + at))
                lengths[at:until], places[at:until] = sizes[kept], first + rows[kept]
                ties[at:until] = _folded(sizes[kept], keys[kept]) >> np.uint64(32)
                at = until
        return cls(folder, places[:at], lengths[:at], ties[:at], len(there))

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
            fresh = [_close(g, self.lengths, self.ties, edits) for g in equal_keys(self.band(band))]
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


def whole_keys(said: Sequence[Said], there: Bool) -> tuple[Int, Words]:
    """Records that can have near-duplicates, and a key of all bands and lengths of each, (n,)."""
    found: list[tuple[Int, Words]] = []
    for first, rows, lengths, bands in _batches(said):
        kept = there[first + rows]
        found.append((first + rows[kept], _folded(lengths[kept], bands[kept])))
    empty = np.empty(0, np.int64), np.empty(0, np.uint64)
    rows, keys = zip(empty, *found, strict=True)
    return np.concatenate(rows), np.concatenate(keys)


def _batches(
    said: Sequence[Said],
) -> Iterator[tuple[int, Int, Int, npt.NDArray[np.uint32]]]:
    first = 0
    for source in said:
        for rows, lengths, keys in source.near():
            yield first, rows, lengths, keys
        first += len(source)


def _close(
    groups: GroupedRows,
    lengths: npt.NDArray[np.uint32],
    ties: npt.NDArray[np.uint32],
    edits: float,
) -> Words:
    """Pairs of one group whose lengths differ by no more than the allowed edits.

    Args:
        ties: of all records; who is next to whom is not for the order of rows to say.
    """
    sizes = lengths[groups.rows].astype(np.int64)
    group = groups.group
    order = np.lexsort((ties[groups.rows], sizes[:, 0], sizes.sum(axis=1), group))
    rows, sizes, group = groups.rows[order], sizes[order], group[order]
    large = (np.bincount(group) > LARGE)[group]
    pairs: list[Words] = []
    for step in range(1, LARGE):
        together = group[step:] == group[:-step]
        if step > FEW:
            together &= ~large[step:]
        if not together.any():
            break
        a, b = sizes[step:], sizes[:-step]
        near = (np.abs(a - b) <= allowed_edits(np.maximum(a, b), edits)).all(axis=1) & together
        one, other = rows[step:][near], rows[:-step][near]
        low, high = np.minimum(one, other), np.maximum(one, other)
        pairs.append(low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64))
    return np.concatenate(pairs) if pairs else np.empty(0, np.uint64)
