"""All runs of words of the evaluation items, to be looked up by the millions.

    index = RunIndex.build(items, ngram=8, common=10)
    index.find(words_of("… natalia sold clips to 48 of her friends in april, and then …"))
    → Overlap(item=Item(…, line=7, …), coverage=0.94, passage="natalia sold clips to 48 of …")

An item with fewer words than a run has is found where it is a whole message, not inside of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.items import Item
from data_builders.decontamination.words import Hashes, Words, runs, words_of, words_of_all
from data_builders.dedup.signature import rolling
from data_builders.held_out import is_among

SHORTEST = 5  # words of an item that is compared as a whole: below, "yes" would be contamination
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a text shares with an item: the share of the item's words, the longest passage."""

    item: Item
    coverage: float
    passage: str


@dataclass(frozen=True)
class RunIndex:
    """`hashes` (m,) ascending, each the run at word `position` of item `item`.

    `distinctive` (items,) counts the words of each item that lie in runs which are no template.
    `whole` maps the short items. `present` says of most hashes at once that they are not there.
    """

    items: tuple[Item, ...]
    ngram: int
    hashes: Hashes
    item: Int
    position: Int
    distinctive: Int
    whole: dict[int, int]
    present: npt.NDArray[np.bool_]

    @classmethod
    def build(cls, items: Iterable[Item], *, ngram: int, common: int) -> RunIndex:
        """Index the items; those too short and repeated ones are left out.

        Args:
            common: runs that more items than this have do not count.
        """
        kept, words = _distinct(items)
        short = [k for k, w in enumerate(words) if len(w) < ngram]
        found = [runs(w.hashes, ngram) for w in words]
        counts = [len(h) for h in found]
        hashes = np.concatenate([np.empty(0, np.uint64), *found])
        item = np.repeat(np.arange(len(kept)), counts)
        position = np.concatenate([np.empty(0, np.int64), *(np.arange(c) for c in counts)])
        rare = _rare(hashes, item, common)
        hashes, item, position = hashes[rare], item[rare], position[rare]
        distinctive = _covered(item, position, ngram, len(kept))
        order = np.argsort(hashes, kind="stable")
        present = np.zeros(1 << max(16, min(27, (32 * len(hashes)).bit_length())), np.bool_)
        present[_slot(hashes, present)] = True
        return cls(
            items=kept,
            ngram=ngram,
            hashes=hashes[order],
            item=item[order],
            position=position[order],
            distinctive=distinctive,
            whole={whole_key(words[k]): k for k in reversed(short)},
            present=present,
        )

    def suspects(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which texts might hold an item, (texts,); of the others `find` says `None`."""
        words, starts = words_of_all(texts)
        counts = np.diff(starts)
        found = np.zeros(len(texts), np.bool_)
        hashes = runs(words.hashes, self.ngram)
        hits = np.flatnonzero(self.present[_slot(hashes, self.present)])
        hits = hits[is_among(hashes[hits], self.hashes)]
        owner = np.searchsorted(starts, hits, side="right") - 1
        found[owner[hits + self.ngram <= starts[owner + 1]]] = True
        for count in range(SHORTEST, self.ngram):
            at = np.flatnonzero(counts == count)
            if len(at) and self.whole:
                keys = rolling(words.hashes, count)[starts[at]]
                found[at] = [key in self.whole for key in keys.tolist()]
        return found

    def find(self, words: Words) -> Overlap | None:
        """The item of which most is in a text, if any; the first of equals."""
        if len(words) < self.ngram:
            number = self.whole.get(whole_key(words))
            return None if number is None else Overlap(self.items[number], 1.0, words.text.strip())
        hashes = runs(words.hashes, self.ngram)
        hashes = np.unique(hashes[self.present[_slot(hashes, self.present)]])
        left = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - left
        if not counts.any():
            return None
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(left, counts) + steps
        at = at[np.lexsort((self.position[at], self.item[at]))]
        covered = _covered(self.item[at], self.position[at], self.ngram, len(self.items))
        shares = covered / np.maximum(self.distinctive, 1)
        best = int(np.argmax(shares))
        passage = self._passage(best, self.position[at[self.item[at] == best]])
        return Overlap(self.items[best], float(shares[best]), passage)

    def _passage(self, item: int, positions: Int) -> str:
        """The longest stretch of an item that overlapping runs cover, from ascending positions."""
        breaks = np.flatnonzero(np.diff(positions) > self.ngram)
        firsts = positions[np.append(0, breaks + 1)]
        ends = positions[np.append(breaks, len(positions) - 1)] + self.ngram
        longest = int(np.argmax(ends - firsts))
        words = words_of(self.items[item].text)
        return words.passage(int(firsts[longest]), int(ends[longest] - firsts[longest]))


def _distinct(items: Iterable[Item]) -> tuple[tuple[Item, ...], list[Words]]:
    kept: list[Item] = []
    words: list[Words] = []
    seen: set[tuple[str, int]] = set()
    for item in items:
        found = words_of(item.text)
        key = item.file, whole_key(found)
        if len(found) >= SHORTEST and key not in seen:
            seen.add(key)
            kept.append(item)
            words.append(found)
    return tuple(kept), words


def _rare(hashes: Hashes, item: Int, common: int) -> npt.NDArray[np.bool_]:
    """Where a run stands in at most `common` items."""
    order = np.lexsort((item, hashes))
    ordered, owner = hashes[order], item[order]
    new = np.ones(len(hashes), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    group = np.cumsum(new) - 1
    another = new.copy()
    another[1:] |= owner[1:] != owner[:-1]
    items = np.bincount(group, weights=another).astype(np.int64)
    rare = np.empty(len(hashes), np.bool_)
    rare[order] = items[group] <= common
    return rare


def _covered(item: Int, position: Int, ngram: int, items: int) -> Int:
    """Words of each item that the runs cover, (items,); ascending by item and position."""
    reach = np.full(len(item), ngram, np.int64)
    together = item[1:] == item[:-1]
    reach[:-1][together] = np.minimum(np.diff(position)[together], ngram)
    return np.bincount(item, weights=reach, minlength=items).astype(np.int64)


def whole_key(words: Words) -> int:
    """A hash of all words, 0 for none."""
    return int(rolling(words.hashes, len(words))[0]) if len(words) else 0


def _slot(hashes: Hashes, present: npt.NDArray[np.bool_]) -> Hashes:
    return hashes & np.uint64(len(present) - 1)
