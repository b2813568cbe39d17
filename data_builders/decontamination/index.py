"""All runs of words of the evaluation items, to be looked up by the millions.

A run that more than `common` items have is a template; an item's own words are those in none. With
fewer own words than a run has, an item is found by all its words, with its options or as a message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.items import Item
from data_builders.dedup.words import Hashes, Words, runs, words_of, words_of_all
from data_builders.keyed import is_among

SHORTEST = 5  # words of an item that is compared as a whole: below, "yes" would be contamination
LABEL, HEADING = 2, 8  # words beside each option, and between a question and its options
Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a text shares with an item: the share of its own words, the longest passage.

    `form` is "without its template" of an item that has other words too, which stand in many
    items, "with its options" of one that was found by them, or empty.
    """

    item: Item
    coverage: float
    passage: str
    form: str


@dataclass(frozen=True, slots=True)
class _Text:
    """The words of an item and of those of its options that have any."""

    item: Item
    words: Words
    options: tuple[Hashes, ...]

    @property
    def size(self) -> int:
        return len(self.words) + sum(map(len, self.options))

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for texts with the same words."""
        return tuple(_whole_key(hashes) for hashes in (self.words.hashes, *self.options))


class RunIndex:
    """An index of items but those too short; runs in more texts than `common` do not count.

    Attributes:
        texts: distinct ones; `number` (items given,) is the text of each item, -1 if too short.
        hashes: (m,) ascending, each the run at word `position` of text `owner`.
        before: (words of all texts + 1,) own words before each word; `own` (texts,) those of each
            text, whose words begin at `first`.
        whole: a hash of all words → the text that is found as a whole message.
        anchors: a hash of the last words → the texts that are found with their options.
        lookups: lengths of runs to look for and their hashes, ascending; `present` has the slots
            that these take.
    """

    def __init__(self, items: Iterable[Item], *, ngram: int, common: int) -> None:
        self.texts, self.number = _distinct(list(items), ngram, common)
        self.ngram = ngram
        texts, grams = self.texts, [runs(text.words.hashes, ngram) for text in self.texts]
        counts = [len(h) for h in grams]
        hashes = np.concatenate([np.empty(0, np.uint64), *grams])
        owner = np.repeat(np.arange(len(texts)), counts)
        position = np.concatenate([np.empty(0, np.int64), *(np.arange(c) for c in counts)])
        self.first = np.cumsum([0, *(len(text.words) for text in texts)])
        distinct, having = np.unique(
            np.concatenate([np.empty(0, np.uint64), *map(np.unique, grams)]), return_counts=True
        )
        rare = having[np.searchsorted(distinct, hashes)] <= common
        template = (self.first[owner] + position)[~rare]
        self.before = _own_before(template, ngram, int(self.first[-1]))
        self.own = np.diff(self.before[self.first])
        inside = self.own >= ngram
        rare &= inside[owner]
        order = np.flatnonzero(rare)[np.argsort(hashes[rare], kind="stable")]
        self.hashes, self.owner, self.position = hashes[order], owner[order], position[order]
        rest = np.flatnonzero(~inside).tolist()
        self.anchors: dict[int, list[int]] = defaultdict(list)
        lengths: dict[int, set[int]] = defaultdict(set)
        for k in rest:
            if texts[k].options and texts[k].size >= ngram:
                last = texts[k].words.hashes[1 - ngram :]
                self.anchors[_whole_key(last)].append(k)
                lengths[len(last)].add(_whole_key(last))
        self.lookups = [(ngram, self.hashes)]
        self.lookups += [(n, np.array(sorted(k), np.uint64)) for n, k in sorted(lengths.items())]
        self.present = np.zeros(1 << max(16, min(27, (32 * len(order)).bit_length())), np.bool_)
        for _, wanted in self.lookups:
            self.present[_slot(wanted, self.present)] = True
        keys = [_whole_key(text.words.hashes) for text in texts]
        times = Counter(keys)  # a stem that many questions share is a template too
        self.whole = {
            keys[k]: k
            for k in reversed(rest)
            if len(texts[k].words) >= SHORTEST and times[keys[k]] <= common
        }
        self.whole_lengths = np.unique([len(texts[k].words) for k in self.whole.values()])

    def suspects(self, texts: Sequence[str]) -> Mask:
        """Which messages might hold an item, (texts,); of the others `find` says `None`."""
        words, starts = words_of_all(texts)
        suspect = np.zeros(len(texts), np.bool_)
        for n, keys in self.lookups:
            hashes = runs(words.hashes, n)
            hits = self._hits(hashes, keys)
            owner = np.searchsorted(starts, hits, side="right") - 1
            suspect[owner[hits + n <= starts[owner + 1]]] = True
        counts = np.diff(starts)
        for n in np.intersect1d(counts, self.whole_lengths).tolist():
            at = np.flatnonzero(counts == n)
            keys = [_whole_key(words.hashes[start : start + n]) for start in starts[at].tolist()]
            suspect[at] |= np.array([key in self.whole for key in keys])
        return suspect

    def find(self, words: Words) -> Overlap | None:
        """The item of which most is in a message, if any; the first of equals.

        Less than `ngram` own words of an item are no find.
        """
        if is_among(np.array([len(words)]), self.whole_lengths)[0]:
            number = self.whole.get(_whole_key(words.hashes))
            if number is not None:
                return self._overlap(number, 1.0, words.text.strip())
        for n, keys in self.lookups[1:]:
            hashes = runs(words.hashes, n)
            for at in self._hits(hashes, keys).tolist():
                for number in self.anchors[int(hashes[at])]:
                    size = self._with_options(self.texts[number], words.hashes, at + n)
                    if size:
                        text = self.texts[number]
                        passage = words.passage(at + n - len(text.words), size)
                        return Overlap(text.item, 1.0, passage, "with its options")
        at = self._shared(words)
        covered = self._covered(self.owner[at], self.position[at])
        shares = np.where(covered >= self.ngram, covered / np.maximum(self.own, 1), 0.0)
        if not shares.any():
            return None
        best = int(np.argmax(shares))
        passage = self._passage(best, self.position[at[self.owner[at] == best]])
        return self._overlap(best, float(shares[best]), passage)

    def _overlap(self, number: int, coverage: float, passage: str) -> Overlap:
        template = self.own[number] < len(self.texts[number].words)
        form = "without its template" if template else ""
        return Overlap(self.texts[number].item, coverage, passage, form)

    def _hits(self, hashes: Hashes, keys: Hashes) -> Int:
        """Where one of the keys stands among the hashes, ascending."""
        hits = np.flatnonzero(self.present[_slot(hashes, self.present)])
        return hits[is_among(hashes[hits], keys)]

    def _with_options(self, text: _Text, hashes: Hashes, end: int) -> int:
        """The words from a text that ends before `end` to the end of its options, 0 if they are not
        there: in any order, but each in a place of its own and not far from one another."""
        start = end - len(text.words)
        if start < 0 or not np.array_equal(hashes[start:end], text.words.hashes):
            return 0
        reach = text.size - len(text.words) + LABEL * len(text.options) + HEADING
        after = hashes[end : end + reach]
        free = np.ones(len(after), np.bool_)
        for option in sorted(text.options, key=len, reverse=True):
            if len(option) > len(after):
                return 0
            view = np.lib.stride_tricks.sliding_window_view
            there = (view(after, len(option)) == option) & view(free, len(option))
            places = np.flatnonzero(there.all(axis=1))
            if not len(places):
                return 0
            free[places[0] : places[0] + len(option)] = False
        return len(text.words) + int(np.flatnonzero(~free)[-1]) + 1

    def _shared(self, words: Words) -> Int:
        """Where in the index the runs of a text stand, by owner and position."""
        hashes = runs(words.hashes, self.ngram)
        hashes = np.unique(hashes[self._hits(hashes, self.hashes)])
        left = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - left
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(left, counts) + steps
        return at[np.lexsort((self.position[at], self.owner[at]))]

    def _covered(self, owner: Int, position: Int) -> Int:
        """Own words of each text that the runs cover, (texts,); ascending by owner and position."""
        reach = np.full(len(owner), self.ngram, np.int64)
        same = owner[1:] == owner[:-1]
        reach[:-1][same] = np.minimum(np.diff(position)[same], self.ngram)
        begin = self.first[owner] + position
        own = self.before[begin + reach] - self.before[begin]
        return np.bincount(owner, weights=own, minlength=len(self.texts)).astype(np.int64)

    def _passage(self, number: int, positions: Int) -> str:
        """The longest stretch of a text that overlapping runs cover, from ascending positions."""
        breaks = np.flatnonzero(np.diff(positions) > self.ngram)
        firsts = positions[np.append(0, breaks + 1)]
        ends = positions[np.append(breaks, len(positions) - 1)] + self.ngram
        longest = int(np.argmax(ends - firsts))
        words = self.texts[number].words
        return words.passage(int(firsts[longest]), int(ends[longest] - firsts[longest]))


def _distinct(items: Sequence[Item], ngram: int, common: int) -> tuple[tuple[_Text, ...], Int]:
    """Items with other words than all before them, and of each item given its number or -1."""
    times = Counter(text for text, _ in {(item.text, item.options) for item in items})
    texts: list[_Text] = []
    numbers: list[int] = []
    seen: dict[tuple[int, ...], int] = {}
    for item in items:
        options = tuple(words_of(option).hashes for option in item.options)
        text = _Text(item, words_of(item.text), tuple(o for o in options if len(o)))
        # a letter or a subject that many items have is no question, and stands in every text
        asks = text.options and text.size >= ngram and times[item.text] <= common
        long = len(text.words) >= SHORTEST or asks
        if not len(text.words) or not long:
            numbers.append(-1)
            continue
        number = seen.setdefault(text.key, len(texts))
        if number == len(texts):
            texts.append(text)
        numbers.append(number)
    return tuple(texts), np.array(numbers, np.int64)


def _own_before(template: Int, ngram: int, words: int) -> Int:
    """How many words before each lie in none of the runs that begin at `template`, (words + 1,)."""
    edges = np.zeros(words + 1, np.int64)
    edges[template] += 1
    edges[template + ngram] -= 1
    return np.cumsum(np.append(0, np.cumsum(edges[:-1]) == 0))


def _whole_key(hashes: Hashes) -> int:
    """A hash of all words, which are one at least."""
    return int(runs(hashes, len(hashes))[0])


def _slot(hashes: Hashes, present: Mask) -> Hashes:
    return hashes & np.uint64(len(present) - 1)
