"""The rules against loops without a period: the same sentences and lines, again and again.

    recurring(words of "Maybe it is the river. But I'm not sure. Alternatively, …", limits)
    → Loop("window", 9120, 12055, "83% of 540 words stood 5 times or more in the 2,048 before")

A word *returns* if it lies in an eight-word n-gram, or in a line of at least four words of
language, that stood often enough before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.filters.loop import PLAIN, Loop, loop_at, of_language, of_markup
from data_builders.filters.recurrence import Grams, inside, unions, window_sums
from data_builders.filters.words import LINE_END, Flags, Keys, Positions, TextWords
from posttrain.config.filters import RepetitionFilter

GRAM = 8  # words
REACH = 4  # windows
_SENTENCE = 4  # words of language
_LANGUAGE = 0.5  # share of words of language: running text has 0.8, tables and listings less
_MARKUP_SHARE = 0.9  # code and tables return to their own lines for good reasons


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of texts that are long enough to be sentences.

    Attributes:
        starts, ends: (lines,) first word and behind the last.
        keys: (lines,) equal where lines hold the same words in the same order.
    """

    starts: Positions
    ends: Positions
    keys: Keys


def lines_of(words: TextWords) -> Lines:
    """All lines with at least four words of language; `words` end with a line's end."""
    ends = np.flatnonzero(words.kinds == LINE_END)
    starts = np.append(0, ends[:-1] + 1)
    language = np.zeros(len(words.keys) + 1, np.int32)
    np.cumsum(of_language(words), out=language[1:])
    long = language[ends] - language[starts] >= _SENTENCE
    starts, ends = starts[long], ends[long]
    with np.errstate(over="ignore"):
        # a word counts with its place in the line, so that order matters
        sums = np.append(np.uint64(0), np.cumsum(words.keys))
        weighed = np.append(
            np.uint64(0), np.cumsum(words.keys * np.arange(len(words.keys), dtype=np.uint64))
        )
        total = sums[ends] - sums[starts]
        keys = weighed[ends] - weighed[starts] - total * starts.astype(np.uint64)
        keys = (keys ^ (keys >> np.uint64(29))) + total
    return Lines(starts, ends, keys)


def recurring(words: TextWords, limits: RepetitionFilter) -> Loop | None:
    """A window, or else the whole text, most of which returns."""
    grams, lines = Grams(words.keys, GRAM), lines_of(words)
    by_line = Grams(lines.keys, 1)
    return _window(words, grams, lines, by_line, limits) or _whole(
        words, grams, lines, by_line, limits
    )


def _window(
    words: TextWords, grams: Grams, lines: Lines, by_line: Grams, limits: RepetitionFilter
) -> Loop | None:
    times, reach = limits.window_times, REACH * limits.window
    gaps = grams.gaps(times)
    returns = inside((gaps > 0) & (gaps <= reach), GRAM)
    far = line_gaps(lines, by_line, times)
    returns |= _marked(lines, (far > 0) & (far <= reach), len(returns))
    width = limits.window
    hot = window_sums(returns, width) >= limits.window_share * width
    hot &= window_sums(of_language(words), width) >= _LANGUAGE * width
    markup = of_markup(words)
    for first, last in unions(hot, width):
        share = returns[first:last].mean()
        if 1 - markup[first:last].mean() < PLAIN and share < _MARKUP_SHARE:
            continue
        if _vocabulary(words, slice(first, last), returns) >= limits.vocabulary:
            text = (
                f"{share:.0%} of {last - first:,} words stood {times} times or more "
                f"in the {reach:,} before"
            )
            return loop_at(words, "window", first, last, text)
    return None


def _whole(
    words: TextWords, grams: Grams, lines: Lines, by_line: Grams, limits: RepetitionFilter
) -> Loop | None:
    size = len(words.keys)
    if size < limits.whole_words:
        return None
    times = limits.whole_times
    returns = inside(grams.counts() >= times, GRAM)
    returns |= _marked(lines, by_line.counts() >= times, size)
    share = returns.mean()
    if share < limits.whole_share or of_language(words)[returns].mean() < _LANGUAGE:
        return None
    if _vocabulary(words, slice(None), returns) < limits.vocabulary:
        return None
    at = np.flatnonzero(returns)
    text = f"{share:.0%} of all {size:,} words stand {times} times or more"
    return loop_at(words, "whole", int(at[0]), int(at[-1]) + 1, text)


def line_gaps(lines: Lines, by_line: Grams, nth: int) -> npt.NDArray[np.int64]:
    """How many words ago each line's nth occurrence before stood, 0 where there is none."""
    gaps = by_line.gaps(nth)
    at = np.arange(len(gaps))
    return np.where(gaps > 0, lines.starts - lines.starts[at - gaps], 0)


def _marked(lines: Lines, which: Flags, size: int) -> Flags:
    steps = np.zeros(size + 1, np.int32)
    steps[lines.starts[which]] += 1
    steps[lines.ends[which]] -= 1
    return np.cumsum(steps[:-1]) > 0


def _vocabulary(words: TextWords, part: slice, returns: Flags) -> int:
    """Distinct words of language among those that return."""
    return len(np.unique(words.keys[part][(of_language(words) & returns)[part]]))
