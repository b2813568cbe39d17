"""Which keys occur more than once, over all batches of a stream.

    repeats = Repeats()
    repeats.add(keys, groups)            # a batch; groups: small integers, e.g. sources
    repeats.count(groups=2)              →  Repeated(later=[0, 17], most=[[], [(3, 812), …]])

16 bytes a row in memory, and twice that while they are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_ROW = np.dtype([("key", "<u8"), ("place", "<u4"), ("group", "<u4")])


@dataclass(frozen=True, slots=True)
class Repeated:
    """What occurs several times.

    `later[g]`: rows of group g whose key an earlier row of the group, or a row of an earlier group,
    has. `most[g]`: the keys of group g that occur most often, as (number of rows in all groups,
    place of its first row in g), places counted over all rows added.
    """

    later: list[int]
    most: list[list[tuple[int, int]]]


@dataclass
class Repeats:
    """Collects keys."""

    batches: list[npt.NDArray[np.void]] = field(default_factory=list[npt.NDArray[np.void]])
    rows: int = 0

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
        rows["place"] = np.arange(self.rows, self.rows + len(keys))
        self.rows += len(keys)
        self.batches.append(rows if counted is None else rows[counted])

    def count(self, *, groups: int, most: int = 3) -> Repeated:
        """Count the repeats of all rows added so far.

        Args:
            groups: how many there are.
            most: how many of the most repeated keys of each group to name.
        """
        rows = np.concatenate([np.empty(0, _ROW), *self.batches])
        rows = rows[np.lexsort((rows["place"], rows["group"], rows["key"]))]
        first = np.append(True, rows["key"][1:] != rows["key"][:-1])[: len(rows)]
        key = np.cumsum(first) - 1  # numbered, in the order of the rows
        number = np.bincount(key)[key]
        later = np.bincount(rows["group"][~first], minlength=groups)
        named: list[list[tuple[int, int]]] = []
        for group in range(groups):
            own = np.flatnonzero((rows["group"] == group) & (number > 1))
            own = own[np.unique(key[own], return_index=True)[1]]  # the first of each key
            own = own[np.lexsort((rows["place"][own], -number[own]))][:most]
            named.append(list(zip(number[own].tolist(), rows["place"][own].tolist(), strict=True)))
        return Repeated(later.tolist(), named)
