"""The first pass against repetition: which of many texts might hold a loop.

suspects(split_texts([…]), limits)  →  [3, 17]     every text with a loop, and a few without

It looks at all words at once and asks for less than the rules do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_builders.filters.loop import without_numbers
from data_builders.filters.nearby import GRAM as NEAR_GRAM
from data_builders.filters.nearby import cycling
from data_builders.filters.recurrence import Grams
from data_builders.filters.recurring import GRAM, REACH, Lines, line_gaps, lines_of
from data_builders.filters.runs import long_blanks, unbroken_words
from data_builders.filters.words import Positions, TextWords
from posttrain.config.filters import RepetitionFilter

_EVERY = 4  # of the eight-word grams, one in so many is looked at, chosen by its hash
_BLOCK = 128  # words
_SLACK = 0.5  # this part of the share that the rules ask for: blocks lie as neighbours let them


def suspects(words: TextWords, limits: RepetitionFilter) -> list[int]:
    """The texts that may hold a loop, by their index."""
    of_text = np.repeat(np.arange(len(words.first) - 1), np.diff(words.first))
    blind = without_numbers(words)
    gaps = Grams(blind, NEAR_GRAM, of_text=of_text).gaps()
    grams, lines = Grams(words.keys, GRAM, of_text=of_text, every=_EVERY), lines_of(words)
    by_line = Grams(lines.keys, 1, of_text=of_text[lines.starts])
    windows = [
        *cycling(blind, gaps, limits),
        *_returning_windows(words, grams, lines, by_line, limits),
    ]
    found = {int(text) for first, last in windows for text in np.unique(of_text[first:last])}
    found.update(_returning_texts(words, of_text, grams, lines, by_line, limits))
    begins = [start for start, _ in unbroken_words(words, limits.unbroken)]
    begins += long_blanks(words, limits.blanks)[0].tolist()
    found.update((np.searchsorted(words.offsets, begins, side="right") - 1).tolist())
    return sorted(found)


def _returning_windows(
    words: TextWords, grams: Grams, lines: Lines, by_line: Grams, limits: RepetitionFilter
) -> list[tuple[int, int]]:
    times, reach, span = limits.window_times, REACH * limits.window, limits.window // _BLOCK

    def in_windows(
        at: npt.NDArray[np.integer], weights: Positions | None = None
    ) -> npt.NDArray[np.float64]:
        """Sums over the `span` blocks that end with each block."""
        blocks = np.bincount(at // _BLOCK, weights, minlength=len(words.keys) // _BLOCK + 1)
        return np.convolve(blocks, np.ones(span))

    gaps = grams.kept_gaps(times)
    far = line_gaps(lines, by_line, times)
    returns = (far > 0) & (far <= reach)
    share = in_windows(grams.kept[(gaps > 0) & (gaps <= reach)])
    share = share / np.maximum(in_windows(grams.kept), 1)
    share += in_windows(lines.starts[returns], (lines.ends - lines.starts)[returns]) / limits.window
    hot = np.flatnonzero(share >= _SLACK * limits.window_share)
    return [(max(at - span + 1, 0) * _BLOCK, (at + 1) * _BLOCK) for at in hot.tolist()]


def _returning_texts(
    words: TextWords,
    of_text: Positions,
    grams: Grams,
    lines: Lines,
    by_line: Grams,
    limits: RepetitionFilter,
) -> list[int]:
    sizes = np.diff(words.first)
    often = grams.kept_counts() >= limits.whole_times
    lines_often = by_line.counts() >= limits.whole_times
    texts = len(sizes)
    grams_of = np.bincount(of_text[grams.kept], minlength=texts)
    share = np.bincount(of_text[grams.kept], often, texts) / np.maximum(grams_of, 1)
    in_lines = np.where(lines_often, lines.ends - lines.starts, 0)
    share = share + np.bincount(of_text[lines.starts], in_lines, texts) / sizes
    hot = (share >= _SLACK * limits.whole_share) & (sizes >= limits.whole_words)
    return np.flatnonzero(hot).tolist()
