"""What a rule against repetition finds in a text, and what the rules share.

Loop(rule="cycle", start=410, end=2210, detail="97% of 640 words equal the word 6 before")
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_builders.filters.words import DIGITS, IDEOGRAPH, LETTERS, SIGNS, Flags, Keys, TextWords

PLAIN = 0.92  # share of words that are no markup from which a stretch is running text
_NUMBER = np.uint64(0xD1B54A32D192ED03)
_MARKUP = np.zeros(256, np.bool_)  # signs of code, tables and formulas, by their byte
_MARKUP[list(b"|()[]{}<>=_/\\@#$%^&*+~`")] = True
_QUOTES = np.zeros(256, np.bool_)  # and with another sign behind them
_QUOTES[list(b"\"':")] = True


@dataclass(frozen=True, slots=True)
class Loop:
    """`start` to `end` in bytes of the words' data; `rule` names the rule that found it."""

    rule: str
    start: int
    end: int
    detail: str


def without_numbers(words: TextWords) -> Keys:
    """The words' keys, with one for all numbers."""
    return np.where(words.kinds == DIGITS, _NUMBER, words.keys)


def of_language(words: TextWords) -> Flags:
    """Which words are of language: two letters at least, or an ideograph."""
    return ((words.kinds == LETTERS) & (words.lengths >= 2)) | (words.kinds == IDEOGRAPH)


def of_markup(words: TextWords) -> Flags:
    """Which words are signs of code, data, tables or formulas."""
    data = np.frombuffer(words.data, np.uint8)
    first, second = data[words.starts], data[np.minimum(words.starts + 1, len(data) - 1)]
    several = (words.kinds == SIGNS) & (words.lengths > 1)
    return _MARKUP[first] | (several & (_QUOTES[first] | _MARKUP[second]))


def loop_at(words: TextWords, rule: str, first: int, last: int, detail: str) -> Loop:
    """The loop from word `first` to before word `last`."""
    end = int(words.starts[last - 1] + words.lengths[last - 1])
    return Loop(rule, int(words.starts[first]), min(end, int(words.offsets[-1]) - 1), detail)
