"""Index of all runs of words of the evaluation items, made for millions of lookups.

A run that more than `common` items have belongs to a template; an item's own words are those in no
template. An item with fewer own words than a run has is found by all its words instead: as a whole
message, or followed by its options.
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
LABEL = 2  # words that may stand beside each option ("Option A"), ours
HEADING = 8  # words that may stand between a question and its options ("Choose one of"), ours
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
        """Number of words of the item and of its options."""
        return len(self.words) + sum(map(len, self.options))

    @property
    def key(self) -> tuple[int, ...]:
        """Key that is equal for texts with the same words."""
        return tuple(_hash_all(hashes) for hashes in (self.words.hashes, *self.options))


class RunIndex:
    """Index of items that are long enough, by their runs in at most `common` texts.

    Words are numbered through all texts: word `k` of text `i` is `first[i] + k`.

    Attributes:
        texts: distinct texts.
        text_of_item: (items,) number of the text of each item, -1 if it is too short.
        first: (texts + 1,) number of the first word of each text.
        own_before: (words of all texts + 1,) number of own words before each word.
        own_words: (texts,) number of own words of each text.
        hashes: (m,) ascending hashes of runs; each is at word `position` of text `owner`.
        whole_messages: hash of all words → text that is found as a whole message.
        anchors: hash of the last words → texts that are found with their options.
        lookups: lengths of runs to look up, ascending, with the ascending hashes of each.
        slot_flags: flags of the slots of these hashes; they rule most runs out before a search.
    """

    def __init__(self, items: Iterable[Item], *, ngram: int, common: int) -> None:
        self.texts, self.text_of_item = _distinct_texts(list(items), ngram, common)
        self.ngram = ngram
        texts = self.texts
        runs_of_texts = [runs(text.words.hashes, ngram) for text in texts]
        run_counts = [len(hashes) for hashes in runs_of_texts]
        hashes = np.concatenate([np.empty(0, np.uint64), *runs_of_texts])
        owner = np.repeat(np.arange(len(texts)), run_counts)
        position = np.concatenate([np.empty(0, np.int64), *map(np.arange, run_counts)])
        self.first = np.cumsum([0, *(len(text.words) for text in texts)])

        is_rare = _count_texts(runs_of_texts, hashes) <= common
        template_starts = (self.first[owner] + position)[~is_rare]
        self.own_before = _count_own_before(template_starts, ngram, int(self.first[-1]))
        self.own_words = np.diff(self.own_before[self.first])

        # texts with enough own words are found by runs, the others by all their words
        found_by_runs = self.own_words >= ngram
        is_indexed = is_rare & found_by_runs[owner]
        order = np.flatnonzero(is_indexed)[np.argsort(hashes[is_indexed], kind="stable")]
        self.hashes = hashes[order]
        self.owner = owner[order]
        self.position = position[order]

        found_whole = np.flatnonzero(~found_by_runs).tolist()
        self.lookups = [(ngram, self.hashes)]
        self.anchors: dict[int, list[int]] = defaultdict(list)
        self._add_anchors(found_whole)
        # 32 slots a hash or more, so that few runs are searched for in vain; at most 128 MiB, which
        # 4 million hashes fill so
        n_slots = 1 << max(16, min(27, (32 * len(order)).bit_length()))
        self.slot_flags = np.zeros(n_slots, np.bool_)
        for _, lookup_hashes in self.lookups:
            self.slot_flags[_slots(lookup_hashes, self.slot_flags)] = True

        keys = [_hash_all(text.words.hashes) for text in texts]
        key_counts = Counter(keys)
        self.whole_messages: dict[int, int] = {}
        # backwards, so that the first of equal texts wins
        for number in reversed(found_whole):
            # a stem that many questions share is a template too
            is_shared = key_counts[keys[number]] > common
            if len(texts[number].words) >= SHORTEST and not is_shared:
                self.whole_messages[keys[number]] = number
        whole_lengths = [len(texts[number].words) for number in self.whole_messages.values()]
        self.whole_lengths = np.unique(whole_lengths)

    def _add_anchors(self, numbers: Iterable[int]) -> None:
        """Add the last words of the texts that can be found with their options."""
        hashes_by_length: dict[int, set[int]] = defaultdict(set)
        for number in numbers:
            text = self.texts[number]
            if text.options and text.size >= self.ngram:
                last_words = text.words.hashes[1 - self.ngram :]
                key = _hash_all(last_words)
                self.anchors[key].append(number)
                hashes_by_length[len(last_words)].add(key)
        for length, keys in sorted(hashes_by_length.items()):
            self.lookups.append((length, np.array(sorted(keys), np.uint64)))

    def suspects(self, texts: Sequence[str]) -> Mask:
        """Flags of messages that may hold an item, (texts,); `find` gives None for others."""
        words, starts = words_of_all(texts)
        is_suspect = np.zeros(len(texts), np.bool_)
        for length, keys in self.lookups:
            hits = self._find_hits(runs(words.hashes, length), keys)
            message = np.searchsorted(starts, hits, side="right") - 1
            # a run that reaches into the next message is in neither
            is_inside = hits + length <= starts[message + 1]
            is_suspect[message[is_inside]] = True
        word_counts = np.diff(starts)
        for length in np.intersect1d(word_counts, self.whole_lengths).tolist():
            messages = np.flatnonzero(word_counts == length)
            first_words = starts[messages].tolist()
            keys = [_hash_all(words.hashes[start : start + length]) for start in first_words]
            is_suspect[messages] |= np.array([key in self.whole_messages for key in keys])
        return is_suspect

    def find(self, words: Words) -> Overlap | None:
        """Find the item that a message holds most of, the first of equals; None without one.

        Fewer than `ngram` own words of an item do not count.
        """
        if is_among(np.array([len(words)]), self.whole_lengths)[0]:
            number = self.whole_messages.get(_hash_all(words.hashes))
            if number is not None:
                return self._overlap(number, 1.0, words.text.strip())
        overlap = self._find_with_options(words)
        if overlap is not None:
            return overlap
        entries = self._shared_entries(words)
        covered = self._count_covered(self.owner[entries], self.position[entries])
        coverage = np.where(covered >= self.ngram, covered / np.maximum(self.own_words, 1), 0.0)
        if not coverage.any():
            return None
        best = int(np.argmax(coverage))
        positions = self.position[entries[self.owner[entries] == best]]
        passage = self._longest_passage(best, positions)
        return self._overlap(best, float(coverage[best]), passage)

    def _find_with_options(self, words: Words) -> Overlap | None:
        """Find the first item that stands in a message in full, with its options behind it."""
        for length, keys in self.lookups[1:]:
            hashes = runs(words.hashes, length)
            for hit in self._find_hits(hashes, keys).tolist():
                end = hit + length
                for number in self.anchors[int(hashes[hit])]:
                    text = self.texts[number]
                    size = self._size_with_options(text, words.hashes, end)
                    if size:
                        passage = words.passage(end - len(text.words), size)
                        return Overlap(text.item, 1.0, passage, "with its options")
        return None

    def _overlap(self, number: int, coverage: float, passage: str) -> Overlap:
        has_template = self.own_words[number] < len(self.texts[number].words)
        form = "without its template" if has_template else ""
        return Overlap(self.texts[number].item, coverage, passage, form)

    def _find_hits(self, hashes: Hashes, keys: Hashes) -> Int:
        """Positions of the hashes that are among the keys, ascending."""
        candidates = np.flatnonzero(self.slot_flags[_slots(hashes, self.slot_flags)])
        return candidates[is_among(hashes[candidates], keys)]

    def _size_with_options(self, text: _Text, hashes: Hashes, end: int) -> int:
        """Number of words from the start of a text to the end of its options; 0 if one is missing.

        Options may be in any order, but must not overlap nor be far from one another.

        Args:
            hashes: words of the message.
            end: number of the word behind the text's last one.
        """
        start = end - len(text.words)
        if start < 0 or not np.array_equal(hashes[start:end], text.words.hashes):
            return 0
        reach = text.size - len(text.words) + LABEL * len(text.options) + HEADING
        following = hashes[end : end + reach]
        is_free = np.ones(len(following), np.bool_)
        # longest first, so that a short option does not take a part of a longer one
        for option in sorted(text.options, key=len, reverse=True):
            if len(option) > len(following):
                return 0
            windows = np.lib.stride_tricks.sliding_window_view(following, len(option))
            free_windows = np.lib.stride_tricks.sliding_window_view(is_free, len(option))
            is_match = ((windows == option) & free_windows).all(axis=1)
            positions = np.flatnonzero(is_match)
            if not len(positions):
                return 0
            is_free[positions[0] : positions[0] + len(option)] = False
        last_option_word = int(np.flatnonzero(~is_free)[-1])
        return len(text.words) + last_option_word + 1

    def _shared_entries(self, words: Words) -> Int:
        """Entries of the index for the runs of a text, ordered by owner and position."""
        hashes = runs(words.hashes, self.ngram)
        hashes = np.unique(hashes[self._find_hits(hashes, self.hashes)])
        first_entries = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - first_entries
        # 0, 1, … within the entries of each hash
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(first_entries, counts) + offsets
        return entries[np.lexsort((self.position[entries], self.owner[entries]))]

    def _count_covered(self, owner: Int, position: Int) -> Int:
        """Number of own words of each text that runs cover, (texts,).

        Args:
            owner, position: text and word of each run, in order of text and word.
        """
        # overlapping runs: each counts up to the start of the next
        lengths = np.full(len(owner), self.ngram, np.int64)
        has_same_owner = owner[1:] == owner[:-1]
        lengths[:-1][has_same_owner] = np.minimum(np.diff(position)[has_same_owner], self.ngram)
        starts = self.first[owner] + position
        own_words = self.own_before[starts + lengths] - self.own_before[starts]
        return np.bincount(owner, weights=own_words, minlength=len(self.texts)).astype(np.int64)

    def _longest_passage(self, number: int, positions: Int) -> str:
        """Longest stretch of a text that overlapping runs at ascending positions cover."""
        breaks = np.flatnonzero(np.diff(positions) > self.ngram)
        starts = positions[np.append(0, breaks + 1)]
        ends = positions[np.append(breaks, len(positions) - 1)] + self.ngram
        longest = int(np.argmax(ends - starts))
        words = self.texts[number].words
        return words.passage(int(starts[longest]), int(ends[longest] - starts[longest]))


def _distinct_texts(
    items: Sequence[Item], ngram: int, common: int
) -> tuple[tuple[_Text, ...], Int]:
    """Texts of items without repetition, and the number of each item's text, -1 if too short."""
    text_counts = Counter(text for text, _ in {(item.text, item.options) for item in items})
    texts: list[_Text] = []
    numbers: list[int] = []
    number_by_key: dict[tuple[int, ...], int] = {}
    for item in items:
        options = [words_of(option).hashes for option in item.options]
        filled_options = tuple(hashes for hashes in options if len(hashes))
        text = _Text(item, words_of(item.text), filled_options)
        # a letter or a subject that many items share is no question, and occurs in every text
        is_choice = text.options and text.size >= ngram and text_counts[item.text] <= common
        is_long = len(text.words) >= SHORTEST or is_choice
        if not len(text.words) or not is_long:
            numbers.append(-1)
            continue
        number = number_by_key.setdefault(text.key, len(texts))
        if number == len(texts):
            texts.append(text)
        numbers.append(number)
    return tuple(texts), np.array(numbers, np.int64)


def _count_texts(runs_of_texts: Sequence[Hashes], hashes: Hashes) -> Int:
    """Number of texts that have each of the hashes, in the order of `hashes`."""
    distinct_runs = [np.unique(text_runs) for text_runs in runs_of_texts]
    distinct, n_texts = np.unique(
        np.concatenate([np.empty(0, np.uint64), *distinct_runs]), return_counts=True
    )
    return n_texts[np.searchsorted(distinct, hashes)]


def _count_own_before(template_starts: Int, ngram: int, n_words: int) -> Int:
    """Number of words before each word that no template covers, (n_words + 1,).

    Args:
        template_starts: first words of the runs of templates; each at most once.
    """
    edges = np.zeros(n_words + 1, np.int64)
    edges[template_starts] += 1
    edges[template_starts + ngram] -= 1
    is_own = np.cumsum(edges[:-1]) == 0
    return np.cumsum(np.append(0, is_own))


def _hash_all(hashes: Hashes) -> int:
    """Hash of all words of a text; there is at least one."""
    return int(runs(hashes, len(hashes))[0])


def _slots(hashes: Hashes, slot_flags: Mask) -> Hashes:
    """Slot of each hash: its last bits, since the number of slots is a power of two."""
    return hashes & np.uint64(len(slot_flags) - 1)
