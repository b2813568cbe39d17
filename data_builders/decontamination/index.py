"""All runs of words of the evaluation items, to be looked up by the millions.

    index = RunIndex.build(items, ngram=8, common=10)
    index.find(words_of("… natalia sold clips to 48 of her friends in april, and then …"))
    → Overlap(item=Item(…, line=7, …), coverage=0.94, passage="natalia sold clips to 48 of …")

A run that more than `common` items have is a template; an item's own words are those in none. An
item with fewer own words than a run has is found where it is a whole message, not inside of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.items import Item
from data_builders.dedup.words import Hashes, Words, runs, words_of, words_of_all
from data_builders.keyed import is_among

SHORTEST = 5  # words of an item that is compared as a whole: below, "yes" would be contamination
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a text shares with an item: the share of its own words, the longest passage.

    `template` says that the item has other words too, which stand in many items.
    """

    item: Item
    coverage: float
    passage: str
    template: bool


@dataclass(frozen=True)
class RunIndex:
    """`hashes` (m,) ascending, each the run at word `position` of item `item`.

    `items` are distinct texts, of equal ones the first; `number` (texts given,) tells which item
    each text is, -1 where it is too short. `before` (words of all items + 1,) counts the own words
    before each word, `first` (items + 1,) is where each item's words begin. `whole` maps the items
    that are found as whole messages. `present` says of most hashes at once that they are not there.
    """

    items: tuple[Item, ...]
    number: Int
    ngram: int
    hashes: Hashes
    item: Int
    position: Int
    before: Int
    first: Int
    whole: dict[int, int]
    whole_lengths: Int
    present: npt.NDArray[np.bool_]

    @classmethod
    def build(cls, items: Iterable[Item], *, ngram: int, common: int) -> RunIndex:
        """Index the items, but those too short.

        Args:
            common: runs that more distinct items than this have do not count.
        """
        kept, words, number = _distinct(items)
        found = [runs(w.hashes, ngram) for w in words]
        counts = [len(h) for h in found]
        hashes = np.concatenate([np.empty(0, np.uint64), *found])
        item = np.repeat(np.arange(len(kept)), counts)
        position = np.concatenate([np.empty(0, np.int64), *(np.arange(c) for c in counts)])
        first = np.cumsum([0, *(len(w) for w in words)])
        rare = _rare(hashes, item, common)
        before = _own_before((first[item] + position)[~rare], ngram, int(first[-1]))
        inside = np.diff(before[first]) >= ngram
        rare &= inside[item]
        hashes, item, position = hashes[rare], item[rare], position[rare]
        order = np.argsort(hashes, kind="stable")
        present = np.zeros(1 << max(16, min(27, (32 * len(hashes)).bit_length())), np.bool_)
        present[_slot(hashes, present)] = True
        whole = np.flatnonzero(~inside)
        return cls(
            items=kept,
            number=number,
            ngram=ngram,
            hashes=hashes[order],
            item=item[order],
            position=position[order],
            before=before,
            first=first,
            whole={whole_key(words[k]): k for k in whole.tolist()},
            whole_lengths=np.unique(np.diff(first)[whole]),
            present=present,
        )

    @property
    def own(self) -> Int:
        """Words of each item that lie in no template, (items,)."""
        return np.diff(self.before[self.first])

    @property
    def lengths(self) -> Int:
        """Words of each item, (items,)."""
        return np.diff(self.first)

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
        for count in np.intersect1d(counts, self.whole_lengths).tolist():
            at = np.flatnonzero(counts == count)
            those = words.hashes[starts[at][:, None] + np.arange(count)]
            keys = runs(those.ravel(), count)[::count]
            found[at] |= np.array([key in self.whole for key in keys.tolist()])
        return found

    def find(self, words: Words) -> Overlap | None:
        """The item of which most is in a text, if any; the first of equals.

        Less than `ngram` own words of an item are no find.
        """
        if is_among(np.array([len(words)]), self.whole_lengths)[0]:
            number = self.whole.get(whole_key(words))
            if number is not None:
                template = bool(self.own[number] < self.lengths[number])
                return Overlap(self.items[number], 1.0, words.text.strip(), template)
        at = self._shared(words)
        if not len(at):
            return None
        covered = self._covered(self.item[at], self.position[at])
        own = self.own
        shares = np.where(covered >= self.ngram, covered / np.maximum(own, 1), 0.0)
        best = int(np.argmax(shares))
        if not shares[best]:
            return None
        passage = self._passage(best, self.position[at[self.item[at] == best]])
        template = bool(own[best] < self.lengths[best])
        return Overlap(self.items[best], float(shares[best]), passage, template)

    def _shared(self, words: Words) -> Int:
        """Where in the index the runs of a text stand, by item and position."""
        hashes = runs(words.hashes, self.ngram)
        hashes = np.unique(hashes[self.present[_slot(hashes, self.present)]])
        left = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - left
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(left, counts) + steps
        return at[np.lexsort((self.position[at], self.item[at]))]

    def _covered(self, item: Int, position: Int) -> Int:
        """Own words of each item that the runs cover, (items,); ascending by item and position."""
        reach = np.full(len(item), self.ngram, np.int64)
        together = item[1:] == item[:-1]
        reach[:-1][together] = np.minimum(np.diff(position)[together], self.ngram)
        begin = self.first[item] + position
        own = self.before[begin + reach] - self.before[begin]
        return np.bincount(item, weights=own, minlength=len(self.items)).astype(np.int64)

    def _passage(self, item: int, positions: Int) -> str:
        """The longest stretch of an item that overlapping runs cover, from ascending positions."""
        breaks = np.flatnonzero(np.diff(positions) > self.ngram)
        firsts = positions[np.append(0, breaks + 1)]
        ends = positions[np.append(breaks, len(positions) - 1)] + self.ngram
        longest = int(np.argmax(ends - firsts))
        words = words_of(self.items[item].text)
        return words.passage(int(firsts[longest]), int(ends[longest] - firsts[longest]))


def _distinct(items: Iterable[Item]) -> tuple[tuple[Item, ...], list[Words], Int]:
    """Items with other words than all before them, their words, and of each text given its item."""
    kept: list[Item] = []
    words: list[Words] = []
    numbers: list[int] = []
    seen: dict[int, int] = {}
    for item in items:
        found = words_of(item.text)
        if len(found) < SHORTEST:
            numbers.append(-1)
            continue
        number = seen.setdefault(whole_key(found), len(kept))
        if number == len(kept):
            kept.append(item)
            words.append(found)
        numbers.append(number)
    return tuple(kept), words, np.array(numbers, np.int64)


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


def _own_before(template: Int, ngram: int, words: int) -> Int:
    """How many words before each lie in none of the runs that begin at `template`, (words + 1,)."""
    edges = np.zeros(words + 1, np.int64)
    edges[template] += 1
    edges[template + ngram] -= 1
    return np.cumsum(np.append(0, np.cumsum(edges[:-1]) == 0))


def whole_key(words: Words) -> int:
    """A hash of all words, 0 for none."""
    return int(runs(words.hashes, len(words))[0]) if len(words) else 0


def _slot(hashes: Hashes, present: npt.NDArray[np.bool_]) -> Hashes:
    return hashes & np.uint64(len(present) - 1)
