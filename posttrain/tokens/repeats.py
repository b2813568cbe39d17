"""Which of millions of keys occur more than once, with memory that does not grow with them.

    with Repeats(folder) as repeats:
        repeats.add(keys, groups)            # a batch; groups: small integers, e.g. sources
        repeats.found(groups=2)              →  Repeated(later=[0, 17], most=[[], [(3, 812), …]])

Keys wait in files by their highest bits; each file is sorted alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

_FILES = 64
_ROW = np.dtype([("key", "<u8"), ("place", "<i8"), ("group", "<i4")])


@dataclass(frozen=True, slots=True)
class Repeated:
    """What occurs several times.

    `later[g]`: rows of group g whose key an earlier row of the group, or a row of an earlier group,
    has. `most[g]`: the keys of group g that occur most often, as (number of rows in all groups,
    place of its first row in g), places counted over all rows added.
    """

    later: list[int]
    most: list[list[tuple[int, int]]]


class Repeats:
    """Collects keys in a temporary folder below `folder`, which goes when it is left."""

    def __init__(self, folder: Path | None = None) -> None:
        self._held = tempfile.TemporaryDirectory(dir=folder, prefix="keys-")
        self._files: list[BinaryIO] = []
        self._rows = 0

    def __enter__(self) -> Self:
        folder = Path(self._held.name)
        self._files = [(folder / f"{k}").open("w+b") for k in range(_FILES)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()
        self._held.cleanup()

    def add(
        self,
        keys: npt.NDArray[np.uint64],
        groups: npt.NDArray[np.integer],
        *,
        counted: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Add rows; a row's place is how many were added before it.

        Args:
            counted: rows to leave out, but for their places, are False in it.
        """
        rows = np.empty(len(keys), _ROW)
        rows["key"], rows["group"] = keys, groups
        rows["place"] = np.arange(self._rows, self._rows + len(keys))
        self._rows += len(keys)
        rows = rows if counted is None else rows[counted]
        bucket = (rows["key"] >> np.uint64(58)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        cuts = np.searchsorted(bucket[order], np.arange(_FILES + 1))
        for k, file in enumerate(self._files):
            file.write(rows[order[cuts[k] : cuts[k + 1]]].tobytes())

    def found(self, *, groups: int, most: int = 3) -> Repeated:
        """Count the repeats of all rows added so far.

        Args:
            groups: how many there are.
            most: how many of the most repeated keys of each group to name.
        """
        later = np.zeros(groups, np.int64)
        named: list[list[tuple[int, int]]] = [[] for _ in range(groups)]
        for file in self._files:
            file.flush()
            file.seek(0)
            rows = np.frombuffer(file.read(), _ROW)
            rows = rows[np.lexsort((rows["place"], rows["group"], rows["key"]))]
            if not len(rows):
                continue
            first = np.append(True, rows["key"][1:] != rows["key"][:-1])
            later += np.bincount(rows["group"][~first], minlength=groups)
            starts = np.flatnonzero(first)
            counts = np.diff(np.append(starts, len(rows)))
            _name(rows, starts, counts, named, most)
        return Repeated(later.tolist(), named)


def _name(
    rows: npt.NDArray[np.void],
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    named: list[list[tuple[int, int]]],
    most: int,
) -> None:
    """Bring each group's list of the most repeated keys up to date with one file's rows."""
    repeated = counts > 1
    inside = np.repeat(repeated, counts)
    number = np.repeat(counts, counts)[inside]
    key = np.repeat(np.arange(len(starts)), counts)[inside]
    some = rows[inside]
    for group, best in enumerate(named):
        own = np.flatnonzero(some["group"] == group)
        _, once = np.unique(key[own], return_index=True)  # rows of a key are by place in a group
        own = own[once]
        order = own[np.lexsort((some["place"][own], -number[own]))][:most]
        best += zip(number[order].tolist(), some["place"][order].tolist(), strict=True)
        best.sort(key=_most_first)
        del best[most:]


def _most_first(item: Sequence[int]) -> tuple[int, int]:
    return -item[0], item[1]
