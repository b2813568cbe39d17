"""Which records are held out for evaluation: whole conversations, by a keyed hash of their ids.

    held_out = hold_out(sources, usable, recipe)
    held_out.ids         (n,) the conversations that nothing may be trained on, sorted
    held_out.rows[k]     the records of source k that evaluation sees, one a conversation

A conversation chosen in one source is kept out of training in all of them. So is one that would be
trained on in the very tokens of a held-out one: without its trace an answer is often word for word
that of another conversation, and the first turns of a dialogue are those of the next longer one.
Evaluation sees none of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among, key64, shuffled_keys
from data_builders.sft.prepared import PreparedSource
from posttrain.config.build_sft import BuildSftConfig, HeldOutConfig

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What is kept out of training, and what of it evaluation sees."""

    ids: Keys
    rows: tuple[Int, ...]


def hold_out(
    sources: Sequence[PreparedSource], usable: Sequence[Mask], recipe: BuildSftConfig
) -> HeldOut:
    """Choose in every source; of a conversation in several, evaluation sees the first source's.

    Args:
        usable: which records of each source may be used at all.
    """
    salt = key64(recipe.seed, "held_out")
    ids = np.empty(0, np.uint64)
    rows: list[Int] = []
    for own, source, mask in zip(recipe.sources, sources, usable, strict=True):
        records = source.records("id64", "row64")
        places = shuffled_keys(records["id64"], salt)
        last = _last(places[mask], own.held_out or recipe.held_out)
        chosen = mask & ~is_among(records["id64"], ids)
        chosen &= (places <= np.uint64(last)) if last >= 0 else False
        numbers = np.flatnonzero(chosen)
        found = records[numbers]
        # the same row of the same conversation, whatever the order of rows
        order = np.lexsort((found["row64"], found["id64"]))
        unique, first = np.unique(found["id64"][order], return_index=True)
        rows.append(np.sort(numbers[order[first]]))
        ids = np.union1d(ids, unique)
    return HeldOut(_with_leaked(ids, rows, sources, usable), tuple(rows))


def _last(places: Keys, how: HeldOutConfig) -> int:
    """The largest place that is chosen; -1 for none."""
    if how.rate is not None:
        return int(how.rate * 2.0**64) - 1
    assert how.rows is not None
    smallest = np.unique(places)[: how.rows]
    return int(smallest[-1]) if len(smallest) else -1


def _with_leaked(
    ids: Keys, rows: Sequence[Int], sources: Sequence[PreparedSource], usable: Sequence[Mask]
) -> Keys:
    """The ids, and those of conversations that share a sequence with a held-out record."""
    keys = np.empty(0, np.uint64)
    for source, own in zip(sources, rows, strict=True):
        for part in source.parts() if len(own) else ():
            chosen = is_among(part.numbers, own)
            keys = np.union1d(keys, part.sequences["key"][chosen[part.owners]])
    if not len(keys):
        return ids
    for source, mask in zip(sources, usable, strict=True):
        for part in source.parts():
            leaked = np.zeros(len(part.records), np.bool_)
            leaked[part.owners[is_among(part.sequences["key"], keys)]] = True
            leaked &= mask[part.first : part.first + len(leaked)]
            ids = np.union1d(ids, part.records["id64"][leaked])
    return ids
