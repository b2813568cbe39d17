"""A text as hashes of its words, and where each stands; nothing runs once a word in Python.

words_of("Tom's 3 apples")  → Words("tom's 3 apples", hashes=[…], spans=[(0, 3), (4, 5)…])

Compatibility forms (NFKC) and lower case; a word is a run of letters and digits, and each ideograph
or kana by itself. Punctuation and layout do not count.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from data_builders.dedup.near_text import codes_of, is_ideograph, is_word
from data_builders.dedup.signature import rolling
from data_builders.keyed import shuffled_keys

Hashes = npt.NDArray[np.uint64]
Int = npt.NDArray[np.int64]
_BASE = 0x9E3779B97F4A7C15
_BETWEEN = "\0"  # two texts: no letter
_LONGEST = 256  # characters beyond it weigh the same, which mixes up no word that is one


@dataclass(frozen=True, slots=True)
class Words:
    """`hashes` (words,) and `spans` (words, 2) of characters in `text`, the normalised text."""

    text: str
    hashes: Hashes
    spans: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    def passage(self, first: int, count: int) -> str:
        """The text of `count` words from the given one on."""
        return self.text[self.spans[first, 0] : self.spans[first + count - 1, 1]]


def words_of(text: str) -> Words:
    """The words of a text."""
    return _words_in(_normalised(text))


def words_of_all(texts: Sequence[str]) -> tuple[Words, Int]:
    """The words of some texts, one after the other, and the first word of each, (texts + 1,)."""
    parts = [_normalised(text) for text in texts]
    words = _words_in(_BETWEEN.join(parts))
    begins = np.cumsum([0, *(len(part) + len(_BETWEEN) for part in parts)])
    return words, np.searchsorted(words.spans[:, 0], begins).astype(np.int64)


def _normalised(text: str) -> str:
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower()


def _words_in(text: str) -> Words:
    codes = codes_of(text)
    at = np.flatnonzero(is_word(codes))
    if not len(at):
        return Words(text, np.empty(0, np.uint64), np.empty((0, 2), np.int64))
    codes = codes[at].astype(np.uint64)
    alone = is_ideograph(codes)
    first = np.ones(len(at), np.bool_)
    first[1:] = (np.diff(at) > 1) | alone[1:] | alone[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(at)))
    within = np.minimum(np.arange(len(at)) - np.repeat(starts, lengths), _LONGEST - 1)
    with np.errstate(over="ignore"):
        sums = np.add.reduceat((codes + np.uint64(1)) * _powers()[within], starts)
    spans = np.stack([at[starts], at[starts + lengths - 1] + 1], axis=1)
    return Words(text, shuffled_keys(sums, salt=1), spans)


def runs(hashes: Hashes, n: int) -> Hashes:
    """A hash of every run of n words, (words - n + 1,); empty for fewer words."""
    if len(hashes) < n:
        return np.empty(0, np.uint64)
    return shuffled_keys(rolling(hashes, n), salt=n)


@cache
def _powers() -> Hashes:
    return np.array([pow(_BASE, k, 1 << 64) for k in range(_LONGEST)], np.uint64)
