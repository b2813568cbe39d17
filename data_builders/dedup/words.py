"""Texts as hashes of their words, in numpy: no Python code runs for each word.

Texts are normalised to compatibility forms (NFKC) and lower case. A word is a run of letters and
digits; each ideograph or kana is a word by itself, because these scripts do not separate words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from data_builders.keyed import shuffled_keys

Hashes = npt.NDArray[np.uint64]
Int = npt.NDArray[np.int64]
_SIGN, _WORD, _SPACE = range(3)  # kinds of characters
_PLANE = 0x10000  # characters beyond the basic plane count as signs
_BASE = 0x9E3779B97F4A7C15
_WEIGHTED_CHARACTERS = 256  # of a word; characters beyond these have equal weight


@dataclass(frozen=True, slots=True)
class Words:
    """`hashes` (words,) and `spans` (words, 2) of characters in `text`, the normalised text."""

    text: str
    hashes: Hashes
    spans: Int

    def __len__(self) -> int:
        return len(self.hashes)

    def passage(self, first: int, count: int) -> str:
        """Text of `count` words from word `first` on."""
        return self.text[self.spans[first, 0] : self.spans[first + count - 1, 1]]


def words_of(text: str) -> Words:
    """Words of one text."""
    return words_of_all([text])[0]


def words_of_all(texts: Sequence[str], *, signs: bool = False) -> tuple[Words, Int]:
    """Words of several texts in one array, and the first word of each text, (texts + 1,).

    Args:
        signs: True to make words of runs of other characters too. White space between two signs
            does not count, so that code and JSON in another layout have the same words.
    """
    parts = [t if t.isascii() else unicodedata.normalize("NFKC", t) for t in texts]
    parts = [part.lower() for part in parts]
    words = _split("\n".join(parts), signs=signs)
    begins = np.cumsum([0, *(len(part) + 1 for part in parts)])
    return words, np.searchsorted(words.spans[:, 0], begins).astype(np.int64)


def _split(text: str, *, signs: bool) -> Words:
    """Split a normalised text into words."""
    if text.isascii():
        codes = np.frombuffer(text.encode("ascii"), np.uint8)
        kinds = _kinds()[:128][codes]
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        kinds = _kinds()[np.minimum(codes, _PLANE - 1)]
    positions = np.flatnonzero(kinds != _SPACE if signs else kinds == _WORD)
    if not len(positions):
        return Words(text, np.empty(0, np.uint64), np.empty((0, 2), np.int64))
    codes = codes[positions].astype(np.uint64)
    kinds = kinds[positions]
    # kana and CJK ideographs: each is a word
    alone = ((codes >= 0x3040) & (codes <= 0x9FFF)) | ((codes >= 0xF900) & (codes <= 0xFAFF))
    begins_word = np.ones(len(positions), np.bool_)
    begins_word[1:] = (kinds[1:] != kinds[:-1]) | alone[1:] | alone[:-1]
    begins_word[1:] |= (np.diff(positions) > 1) & (kinds[1:] == _WORD)
    starts = np.flatnonzero(begins_word)
    lengths = np.diff(np.append(starts, len(positions)))
    # a word's hash is a polynomial in its characters
    within = np.minimum(
        np.arange(len(positions)) - np.repeat(starts, lengths), _WEIGHTED_CHARACTERS - 1
    )
    with np.errstate(over="ignore"):
        sums = np.add.reduceat((codes + np.uint64(1)) * _powers()[within], starts)
    spans = np.stack([positions[starts], positions[starts + lengths - 1] + 1], axis=1)
    return Words(text, shuffled_keys(sums, salt=1), spans)


def runs(hashes: Hashes, n: int) -> Hashes:
    """Hash of every run of n words, (words - n + 1,); empty for fewer than n words."""
    if len(hashes) < n:
        return np.empty(0, np.uint64)
    sums = np.zeros(len(hashes) - n + 1, np.uint64)
    with np.errstate(over="ignore"):
        for k in range(n):
            sums = sums * np.uint64(_BASE) + hashes[k : k + len(sums)]
    return shuffled_keys(sums, salt=n)


@cache
def _powers() -> Hashes:
    return np.array([pow(_BASE, k, 1 << 64) for k in range(_WEIGHTED_CHARACTERS)], np.uint64)


@cache
def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.full(_PLANE, _SIGN, np.uint8)
    for code in range(_PLANE):
        if chr(code).isalnum():
            kinds[code] = _WORD
        elif chr(code).isspace():
            kinds[code] = _SPACE
    return kinds
