"""The rule against loops whose rounds lose, gain and change words: no period holds for long.

    shifting(words of "So it is 7. But wait, is it? So it must be 7. But is it? …", limits)
    → Loop("shifting", 410, 2210, "91% of 640 words equal one shortly before, mostly 11 words")

A window is copied if its words equal words a sixth of the window before or nearer: whatever the
rounds are, there are six of them.
"""

from __future__ import annotations

import numpy as np

from data_builders.filters.loop import PLAIN, Loop, loop_at, of_language, of_markup, without_numbers
from data_builders.filters.nearby import FINE, GRAM, Distances, dense, distances
from data_builders.filters.recurrence import Grams
from data_builders.filters.words import Flags, TextWords
from posttrain.config.filters import RepetitionFilter

_LANGUAGE = 0.4  # share of words of language, of running text
_FAR = 64  # words before; rows of code, tables and grids are shorter
_FAR_GRAM = 16  # words; shorter ones stand within a round as well
_FAR_SHARE = 0.92


def shifting(words: TextWords, limits: RepetitionFilter) -> Loop | None:
    """The first window of running text, or of any with long rounds, said shortly before."""
    blind = without_numbers(words)
    language = of_language(words)
    near = distances(words.keys, Grams(blind, GRAM).gaps())
    prose = dense(
        near,
        width=limits.cycle_words,
        rounds=limits.cycle_rounds,
        share=limits.cycle_share,
        scales=FINE,
    )
    if not prose:
        return None  # words from farther are as dense in nearer ones
    markup = of_markup(words)
    for first, last in prose:
        part = slice(first, last)
        if language[part].mean() >= _LANGUAGE and 1 - markup[part].mean() >= PLAIN:
            loop = _loop(words, near, language, part, limits)
            if loop is not None:
                return loop
    far = distances(words.keys, Grams(blind, _FAR_GRAM).gaps())
    for first, last in dense(
        far,
        width=limits.cycle_words,
        rounds=limits.cycle_rounds,
        share=_FAR_SHARE,
        nearest=_FAR,
        scales=FINE,
    ):
        loop = _loop(words, far, language, slice(first, last), limits)
        if loop is not None:
            return loop
    return None


def _loop(
    words: TextWords, distance: Distances, language: Flags, part: slice, limits: RepetitionFilter
) -> Loop | None:
    """The loop, if it is one of words and not of a few signs."""
    if len(np.unique(words.keys[part][language[part]])) < limits.vocabulary:
        return None
    copied = distance[part][distance[part] > 0]
    last = min(part.stop, len(distance))
    detail = (
        f"{len(copied) / (last - part.start):.0%} of {last - part.start:,} words equal one "
        f"shortly before, mostly {int(np.median(copied)):,} words"
    )
    return loop_at(words, "shifting", part.start, last, detail)
