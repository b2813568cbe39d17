"""Conversations that would be trained on in the very tokens of one that is held out.

    withheld = with_twins(withheld, [(spool.blocks, usable), …])

Without its trace an answer is often word for word that of another conversation, and the first turns
of a dialogue are those of the next longer one: ids of conversations differ, sequences do not. Such
conversations are withheld too, and evaluation sees none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from data_builders.sft.held_out import Withheld, is_among
from data_builders.sft.prepared import Block

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
# a source's blocks, and which of a number of records from the first on may be used at all
Source = tuple[Callable[[], Iterable[Block]], Callable[[int, int], Mask]]


def with_twins(withheld: Withheld, sources: Sequence[Source]) -> Withheld:
    """The same records for evaluation, and further ids that nothing may be trained on.

    Held in memory are the keys of the held-out sequences, 8 bytes each, and of the found ids.
    """
    seen = np.empty(0, np.uint64)
    for (blocks, _), rows in zip(sources, withheld.rows, strict=True):
        if len(rows):
            seen = np.union1d(seen, _keys(blocks(), rows))
    if not len(seen):
        return withheld
    found = [withheld.ids]
    for blocks, usable in sources:
        for block in blocks():
            same = is_among(block.sequences["key"], seen)
            twins = np.zeros(len(block.records), np.bool_)
            twins[_owners(block)[same]] = True
            twins &= usable(block.row, len(twins))
            found.append(block.records["id64"][twins])
    return replace(withheld, ids=np.unique(np.concatenate(found)))


def _keys(blocks: Iterable[Block], rows: npt.NDArray[np.int64]) -> Keys:
    """Of the sequences of some records, given by their sorted numbers."""
    found = [np.empty(0, np.uint64)]
    for block in blocks:
        chosen = is_among(np.arange(block.row, block.row + len(block.records)), rows)
        found.append(block.sequences["key"][chosen[_owners(block)]])
    return np.unique(np.concatenate(found))


def _owners(block: Block) -> npt.NDArray[np.int64]:
    """The record in the block of each sequence."""
    counts = block.records["sequences"].astype(np.int64)
    return np.repeat(np.arange(len(counts)), counts)
