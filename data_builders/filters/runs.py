"""Two rules against repetition that are about characters: blanks, and words without a blank.

unbroken_run(words of "= 0.33333333…") → Loop("unbroken", 2, 2050, "2,048 characters …")
"""

from __future__ import annotations

import numpy as np

from data_builders.filters.loop import Loop
from data_builders.filters.recurrence import Grams, unions, window_sums
from data_builders.filters.words import LINE_END, PIECE, Positions, Words
from posttrain.config.filters import RepetitionFilter

_GRAM = 8  # characters
_SHARE = 0.9  # of a window, that must repeat; two random letters reach 0.4


def blank_run(words: Words, limits: RepetitionFilter) -> Loop | None:
    """Blanks and empty lines without end."""
    ends, starts = blank_runs(words)
    long = np.flatnonzero(starts - ends >= limits.blanks)
    if not len(long):
        return None
    start, end = int(ends[long[0]]), int(starts[long[0]])
    return Loop("blanks", start, end, f"{end - start:,} blank characters")


def blank_runs(words: Words) -> tuple[Positions, Positions]:
    """Where blanks and line ends begin and end, (runs,) each, in bytes; many are empty."""
    visible = np.flatnonzero(words.kinds != LINE_END)
    starts, lengths = words.starts[visible], words.lengths[visible]
    begin, end = words.offsets[0], words.offsets[-1]
    return np.append(begin, starts + lengths), np.append(starts, end)


def unbroken_run(words: Words, limits: RepetitionFilter) -> Loop | None:
    """A word without end whose characters repeat those shortly before: digits, "hahaha…"."""
    for start, end in unbroken_words(words, limits.unbroken):
        characters = np.frombuffer(words.data[start:end], np.uint8).astype(np.uint64)
        gaps = Grams(characters, _GRAM).gaps()
        again = (gaps > 0) & (gaps <= limits.unbroken // 2)
        found = unions(
            window_sums(again, limits.unbroken) >= _SHARE * limits.unbroken, limits.unbroken
        )
        if found:
            first, last = max(found, key=lambda run: run[1] - run[0])
            detail = f"{last - first:,} characters without a blank that repeat each other"
            return Loop("unbroken", start + first, start + last, detail)
    return None


def unbroken_words(words: Words, shortest: int) -> list[tuple[int, int]]:
    """Runs of one kind of at least so many bytes, as start and end in bytes."""
    full = (words.lengths == PIECE) & (words.kinds != LINE_END)
    full[:-1] &= words.starts[1:] == words.starts[:-1] + PIECE
    full[-1:] = False
    edges = np.flatnonzero(np.diff(full, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    long = np.flatnonzero((ends - begins + 1) * PIECE >= shortest)
    stops = words.starts + words.lengths
    # a text's last word may be short: the run goes on to the end of the piece behind it
    return [(int(words.starts[begins[i]]), int(stops[ends[i]])) for i in long]
