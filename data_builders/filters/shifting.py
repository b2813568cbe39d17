"""The rule against loops whose rounds lose, gain and change words: no period holds for long.

    shifting(words of "So it is 7. But wait, is it? So it must be 7. But is it? …", limits)
    → Loop("shifting", 410, 2210, "91% of 640 words equal one shortly before, mostly 11 words")

A window is copied if its words equal words a sixth of the window before or nearer: whatever the
rounds are, there are six of them.
"""

from __future__ import annotations

import numpy as np

from data_builders.filters.loop import PLAIN, Loop, loop_at, of_language, of_markup, without_numbers
from data_builders.filters.nearby import FINE, GRAM, dense, distances
from data_builders.filters.recurrence import Grams
from data_builders.filters.words import Words
from posttrain.config.filters import RepetitionFilter

_LANGUAGE = 0.5  # share of words of language, of running text
_FAR = 64  # words before; rows of code, tables and grids are shorter
_FAR_SHARE = 0.92


def shifting(words: Words, limits: RepetitionFilter) -> Loop | None:
    """The first window whose words were said shortly before."""
    distance = distances(words.keys, Grams(without_numbers(words), GRAM).gaps())
    width, rounds = limits.cycle_words, limits.cycle_rounds
    language, markup = of_language(words), of_markup(words)
    for share, nearest in ((limits.cycle_share, 1), (_FAR_SHARE, _FAR)):
        for first, last in dense(
            distance, width=width, rounds=rounds, share=share, nearest=nearest, scales=FINE
        ):
            part = slice(first, min(last, len(distance)))
            if nearest == 1 and (
                language[part].mean() < _LANGUAGE or 1 - markup[part].mean() < PLAIN
            ):
                continue
            if len(np.unique(words.keys[part][language[part]])) < limits.vocabulary:
                continue
            copied = distance[part][distance[part] > 0]
            detail = (
                f"{len(copied) / (part.stop - first):.0%} of {part.stop - first:,} words equal one "
                f"shortly before, mostly {int(np.median(copied)):,} words"
            )
            return loop_at(words, "shifting", first, part.stop, detail)
    return None
