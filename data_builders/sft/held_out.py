"""Which records are held out for evaluation: whole conversations, by a keyed hash of their ids.

    withheld = choose(spools, recipe)
    withheld.ids         (n,) the conversations that nothing may be trained on, sorted
    withheld.rows[k]     the records of source k that evaluation sees, one a conversation

A conversation chosen in one source is kept out of training in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from posttrain.config.build_sft import HeldOutConfig

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
# (n,) records with fields id64 and row64, and the number of the first in its source
Numbered = tuple[int, npt.NDArray[np.void], npt.NDArray[np.bool_]]
Blocks = Callable[[], Iterable[Numbered]]


@dataclass(frozen=True, slots=True)
class Withheld:
    """What is kept out of training, and what of it evaluation sees."""

    ids: Keys
    rows: tuple[Int, ...]

    def holds(self, ids: Keys) -> npt.NDArray[np.bool_]:
        """Whether each conversation is kept out of training."""
        return is_among(ids, self.ids)


def choose(sources: Sequence[tuple[Blocks, HeldOutConfig]], seed: int) -> Withheld:
    """Choose in every source; of a conversation in several, evaluation sees the first source's.

    Args:
        sources: the blocks of each, a record of which counts where its mask is true.
    """
    salt = key64(seed, "held_out")
    seen = np.empty(0, np.uint64)
    rows: list[Int] = []
    for blocks, how in sources:
        last = _last(blocks, how, salt)
        found = _chosen(blocks, salt, last, seen)
        # the same row of the same conversation, whatever the order of rows
        found = found[np.lexsort((found["row64"], found["id64"]))]
        _, first = np.unique(found["id64"], return_index=True)
        rows.append(np.sort(found["number"][first]))
        seen = np.union1d(seen, found["id64"])
    return Withheld(seen, tuple(rows))


def _last(blocks: Blocks, how: HeldOutConfig, salt: int) -> int:
    """The largest place that is chosen; -1 for none."""
    if how.rate is not None:
        return int(how.rate * 2.0**64) - 1
    assert how.rows is not None
    smallest = np.empty(0, np.uint64)
    for _, records, mask in blocks():
        places = shuffled_keys(records["id64"][mask], salt)
        smallest = np.unique(np.concatenate([smallest, places]))[: how.rows]
    return int(smallest[-1]) if len(smallest) else -1


_FOUND = np.dtype([("id64", "<u8"), ("row64", "<u8"), ("number", "<i8")])


def _chosen(blocks: Blocks, salt: int, last: int, seen: Keys) -> npt.NDArray[np.void]:
    """The records at places up to the last, of conversations not seen in an earlier source."""
    parts = [np.empty(0, _FOUND)]
    if last < 0:
        return parts[0]
    for start, records, mask in blocks():
        places = shuffled_keys(records["id64"], salt)
        rows = np.flatnonzero(mask & (places <= np.uint64(last)))
        rows = rows[~is_among(records["id64"][rows], seen)]
        found = np.empty(len(rows), _FOUND)
        found["id64"], found["row64"] = records["id64"][rows], records["row64"][rows]
        found["number"] = start + rows
        parts.append(found)
    return np.concatenate(parts)


def is_among(values: npt.NDArray[np.generic], ordered: npt.NDArray[np.generic]) -> Any:
    """Whether each value is one of the sorted ones."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def numbered(blocks: Iterable[npt.NDArray[np.void]]) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
    """Blocks with the number of their first record."""
    start = 0
    for block in blocks:
        yield start, block
        start += len(block)
