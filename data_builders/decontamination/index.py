"""Index of all runs of words of the evaluation items, made for millions of lookups.

A run that more than `common` items have belongs to a template; an item's own words are those in no
template. An item with fewer own words than a run has is found by all its words: as a whole message,
or followed by its options.
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

SHORTEST = 5  # words of an item compared as a whole: with fewer, "yes" would be contamination
LABEL = 2  # words beside each option
HEADING = 8  # words between a question and its options
Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Overlap of a text with an item.

    Attributes:
        coverage: share of the item's own words that the text holds.
        passage: longest passage in common.
        form: "without its template" for an item with words of a template besides its own, "with its
            options" for one that was found by its options, or empty.
    """

    item: Item
    coverage: float
    passage: str
    form: str


@dataclass(frozen=True, slots=True)
class _Text:
    """Words of an item and of its options, without options that have none."""

    item: Item
    words: Words
    options: tuple[Hashes, ...]

    @property
    def size(self) -> int:
        return len(self.words) + sum(map(len, self.options))

    @property
    def key(self) -> tuple[int, ...]:
        """Key that is equal for texts with the same words."""
        return tuple(_whole_key(hashes) for hashes in (self.words.hashes, *self.options))


class RunIndex:
    """Index of items that are long enough, by their runs in at most `common` texts.

    Attributes:
        texts: distinct texts. `number` (items,) is the text of each item, -1 if it is too short.
        hashes: (m,) ascending hashes of runs; each is at word `position` of text `owner`.
        before: (words of all texts + 1,) number of own words before each word. `own` (texts,) is
            that of each text, whose words begin at `first`.
        whole: hash of all words → text that is found as a whole message.
        anchors: hash of the last words → texts that are found with their options.
        lookups: lengths of runs to look up with their hashes, ascending. `present` flags the slots
            of these hashes, which rules most runs out before a search.
    """

    def __init__(self, items: Iterable[Item], *, ngram: int, common: int) -> None:
        self.texts, self.number = _distinct(list(items), ngram, common)
        self.ngram = ngram
        texts = self.texts
        grams = [runs(text.words.hashes, ngram) for text in texts]
        counts = [len(hashes) for hashes in grams]
        hashes = np.concatenate([np.empty(0, np.uint64), *grams])
        owner = np.repeat(np.arange(len(texts)), counts)
        position = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])
        self.first = np.cumsum([0, *(len(text.words) for text in texts)])
        distinct, n_texts = np.unique(
            np.concatenate([np.empty(0, np.uint64), *map(np.unique, grams)]), return_counts=True
        )
        rare = n_texts[np.searchsorted(distinct, hashes)] <= common
        template = (self.first[owner] + position)[~rare]
        self.before = _own_before(template, ngram, int(self.first[-1]))
        self.own = np.diff(self.before[self.first])
        found_by_runs = self.own >= ngram
        rare &= found_by_runs[owner]
        order = np.flatnonzero(rare)[np.argsort(hashes[rare], kind="stable")]
        self.hashes = hashes[order]
        self.owner = owner[order]
        self.position = position[order]
        found_whole = np.flatnonzero(~found_by_runs).tolist()
        self.anchors: dict[int, list[int]] = defaultdict(list)
        lengths: dict[int, set[int]] = defaultdict(set)
        for k in found_whole:
            if texts[k].options and texts[k].size >= ngram:
                last_words = texts[k].words.hashes[1 - ngram :]
                self.anchors[_whole_key(last_words)].append(k)
                lengths[len(last_words)].add(_whole_key(last_words))
        self.lookups = [(ngram, self.hashes)]
        self.lookups += [(n, np.array(sorted(k), np.uint64)) for n, k in sorted(lengths.items())]
        self.present = np.zeros(1 << max(16, min(27, (32 * len(order)).bit_length())), np.bool_)
        for _, lookup_hashes in self.lookups:
            self.present[_slot(lookup_hashes, self.present)] = True
        keys = [_whole_key(text.words.hashes) for text in texts]
        key_counts = Counter(keys)  # a stem that many questions share is a template too
        self.whole = {
            keys[k]: k
            for k in reversed(found_whole)  # the first of equal texts wins
            if len(texts[k].words) >= SHORTEST and key_counts[keys[k]] <= common
        }
        self.whole_lengths = np.unique([len(texts[k].words) for k in self.whole.values()])

    def suspects(self, texts: Sequence[str]) -> Mask:
        """Flags of messages that may hold an item, (texts,); `find` gives None for others."""
        words, starts = words_of_all(texts)
        suspect = np.zeros(len(texts), np.bool_)
        for n, keys in self.lookups:
            hashes = runs(words.hashes, n)
            hits = self._hits(hashes, keys)
            owner = np.searchsorted(starts, hits, side="right") - 1
            suspect[owner[hits + n <= starts[owner + 1]]] = True
        counts = np.diff(starts)
        for n in np.intersect1d(counts, self.whole_lengths).tolist():
            messages = np.flatnonzero(counts == n)
            first_words = starts[messages].tolist()
            keys = [_whole_key(words.hashes[start : start + n]) for start in first_words]
            suspect[messages] |= np.array([key in self.whole for key in keys])
        return suspect

    def find(self, words: Words) -> Overlap | None:
        """Overlap with the item that a message holds most of, the first of equals, or None.

        Fewer than `ngram` own words of an item do not count.
        """
        if is_among(np.array([len(words)]), self.whole_lengths)[0]:
            number = self.whole.get(_whole_key(words.hashes))
            if number is not None:
                return self._overlap(number, 1.0, words.text.strip())
        for n, keys in self.lookups[1:]:
            hashes = runs(words.hashes, n)
            for hit in self._hits(hashes, keys).tolist():
                for number in self.anchors[int(hashes[hit])]:
                    text = self.texts[number]
                    size = self._with_options(text, words.hashes, hit + n)
                    if size:
                        passage = words.passage(hit + n - len(text.words), size)
                        return Overlap(text.item, 1.0, passage, "with its options")
        entries = self._shared_entries(words)
        covered = self._covered(self.owner[entries], self.position[entries])
        shares = np.where(covered >= self.ngram, covered / np.maximum(self.own, 1), 0.0)
        if not shares.any():
            return None
        best = int(np.argmax(shares))
        passage = self._passage(best, self.position[entries[self.owner[entries] == best]])
        return self._overlap(best, float(shares[best]), passage)

    def _overlap(self, number: int, coverage: float, passage: str) -> Overlap:
        has_template = self.own[number] < len(self.texts[number].words)
        form = "without its template" if has_template else ""
        return Overlap(self.texts[number].item, coverage, passage, form)

    def _hits(self, hashes: Hashes, keys: Hashes) -> Int:
        """Positions of the hashes that are among the keys, ascending."""
        hits = np.flatnonzero(self.present[_slot(hashes, self.present)])
        return hits[is_among(hashes[hits], keys)]

    def _with_options(self, text: _Text, hashes: Hashes, end: int) -> int:
        """Number of words of a text that ends at `end` and its options; 0 without them.

        Options may be in any order, but must not overlap nor be far from one another.
        """
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
            matches = (view(after, len(option)) == option) & view(free, len(option))
            positions = np.flatnonzero(matches.all(axis=1))
            if not len(positions):
                return 0
            free[positions[0] : positions[0] + len(option)] = False
        return len(text.words) + int(np.flatnonzero(~free)[-1]) + 1

    def _shared_entries(self, words: Words) -> Int:
        """Entries of the index for the runs of a text, ordered by owner and position."""
        hashes = runs(words.hashes, self.ngram)
        hashes = np.unique(hashes[self._hits(hashes, self.hashes)])
        left = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - left
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(left, counts) + steps
        return entries[np.lexsort((self.position[entries], self.owner[entries]))]

    def _covered(self, owner: Int, position: Int) -> Int:
        """Number of own words of each text that runs cover, (texts,).

        The runs are in order of owner and position.
        """
        # overlapping runs: each counts up to the start of the next
        reach = np.full(len(owner), self.ngram, np.int64)
        same = owner[1:] == owner[:-1]
        reach[:-1][same] = np.minimum(np.diff(position)[same], self.ngram)
        begin = self.first[owner] + position
        own = self.before[begin + reach] - self.before[begin]
        return np.bincount(owner, weights=own, minlength=len(self.texts)).astype(np.int64)

    def _passage(self, number: int, positions: Int) -> str:
        """Longest stretch of a text that overlapping runs at ascending positions cover."""
        breaks = np.flatnonzero(np.diff(positions) > self.ngram)
        firsts = positions[np.append(0, breaks + 1)]
        ends = positions[np.append(breaks, len(positions) - 1)] + self.ngram
        longest = int(np.argmax(ends - firsts))
        words = self.texts[number].words
        return words.passage(int(firsts[longest]), int(ends[longest] - firsts[longest]))


def _distinct(items: Sequence[Item], ngram: int, common: int) -> tuple[tuple[_Text, ...], Int]:
    """Texts of items without repetition, and the number of each item's text, -1 if too short."""
    text_counts = Counter(text for text, _ in {(item.text, item.options) for item in items})
    texts: list[_Text] = []
    numbers: list[int] = []
    seen: dict[tuple[int, ...], int] = {}
    for item in items:
        options = tuple(words_of(option).hashes for option in item.options)
        text = _Text(item, words_of(item.text), tuple(o for o in options if len(o)))
        # a letter or a subject that many items share is no question, and occurs in every text
        is_choice = text.options and text.size >= ngram and text_counts[item.text] <= common
        is_long = len(text.words) >= SHORTEST or is_choice
        if not len(text.words) or not is_long:
            numbers.append(-1)
            continue
        number = seen.setdefault(text.key, len(texts))
        if number == len(texts):
            texts.append(text)
        numbers.append(number)
    return tuple(texts), np.array(numbers, np.int64)


def _own_before(template: Int, ngram: int, words: int) -> Int:
    """Number of words before each word that no run beginning at `template` covers, (words + 1,)."""
    edges = np.zeros(words + 1, np.int64)
    edges[template] += 1
    edges[template + ngram] -= 1
    return np.cumsum(np.append(0, np.cumsum(edges[:-1]) == 0))


def _whole_key(hashes: Hashes) -> int:
    """Hash of all words; there is at least one."""
    return int(runs(hashes, len(hashes))[0])


def _slot(hashes: Hashes, present: Mask) -> Hashes:
    return hashes & np.uint64(len(present) - 1)
