"""Two rules against repetition that are about characters: blanks, and words without a blank.

unbroken_run(words of "= 0.33333333…") → Loop("unbroken", 2, 2050, "2,048 characters …")
"""

from __future__ import annotations

import numpy as np

from data_builders.filters.loop import Loop
from data_builders.filters.recurrence import Grams, unions, window_sums
from data_builders.filters.words import LINE_END, PIECE, Positions, TextWords
from posttrain.config.filters import RepetitionFilter

_GRAM = 8  # characters
_SHARE = 0.9  # of a window, that must repeat; two random letters reach 0.4
_SAMPLES = 8  # bytes looked at of a run of blanks, to find one


def blank_run(words: TextWords, limits: RepetitionFilter) -> Loop | None:
    """Blanks and empty lines without end."""
    starts, ends = long_blanks(words, limits.blanks)
    if not len(starts):
        return None
    size = int(ends[0] - starts[0])
    return Loop("blanks", int(starts[0]), int(ends[0]), f"{size:,} blank characters")


def long_blanks(words: TextWords, shortest: int) -> tuple[Positions, Positions]:
    """Where runs of at least so many blanks and line ends begin and end, in bytes."""
    own = np.frombuffer(words.data, np.uint8)[int(words.offsets[0]) : int(words.offsets[-1])]
    # a long run holds eight samples in a row; next to no other text does
    few = own[:: max(shortest // _SAMPLES, 1)] <= ord(" ")
    if not (window_sums(few, _SAMPLES) == _SAMPLES).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    visible = np.flatnonzero(words.kinds != LINE_END)
    starts, lengths = words.starts[visible], words.lengths[visible]
    begin, end = words.offsets[0], words.offsets[-1]
    befores, afters = np.append(begin, starts + lengths), np.append(starts, end)
    long = afters - befores >= shortest
    return befores[long], afters[long]


def unbroken_run(words: TextWords, limits: RepetitionFilter) -> Loop | None:
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


def unbroken_words(words: TextWords, shortest: int) -> list[tuple[int, int]]:
    """Runs of one kind of at least so many bytes, as start and end in bytes."""
    full = words.lengths == PIECE
    if np.count_nonzero(full) < shortest // PIECE - 1:
        return []  # as in most texts
    full &= words.kinds != LINE_END
    full[:-1] &= words.starts[1:] == words.starts[:-1] + PIECE
    full[-1:] = False
    edges = np.flatnonzero(np.diff(full, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    long = np.flatnonzero((ends - begins + 1) * PIECE >= shortest)
    stops = words.starts + words.lengths
    # a text's last word may be short: the run goes on to the end of the piece behind it
    return [(int(words.starts[begins[i]]), int(stops[ends[i]])) for i in long]
