"""The rule against loops with a period: most words of a stretch equal the word one round before.

    cycle(words of "Step 7: wait.\\nStep 8: wait.\\n…", limits)
    → Loop("cycle", 0, 1400, "100% of 600 words equal the word 6 before, 100 rounds")

A word changed in every round leaves the others equal; a number that counts up or down is equal too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_builders.filters.loop import Loop, loop_at, of_language, without_numbers
from data_builders.filters.recurrence import Grams, filled, unions, window_sums
from data_builders.filters.words import DIGITS, Flags, Words
from posttrain.config.filters import RepetitionFilter

GRAM = 4  # words, by which candidates for a period are found
_CANDIDATES = 4  # periods tried in a stretch
_FARTHEST = 4096  # words in a round
_SLACK = 0.8  # a stretch is looked at from this part of the share it must have
_LANGUAGE = 0.25  # share of words of language from which a stretch is not bare


def cycle(words: Words, limits: RepetitionFilter) -> Loop | None:
    """The first stretch with a period."""
    gaps = Grams(without_numbers(words), GRAM).gaps()
    for first, last in cycling(words, gaps, limits):
        near = gaps[first:last]
        often = np.bincount(near[(near > 0) & (near <= _FARTHEST)])
        for period in np.argsort(-often, kind="stable")[:_CANDIDATES]:
            if often[period]:
                begin = max(first - int(period), 0)
                loop = _with_period(words, int(period), begin, last, limits)
                if loop is not None:
                    return loop
    return None


def cycling(
    words: Words, gaps: npt.NDArray[np.int32], limits: RepetitionFilter
) -> list[tuple[int, int]]:
    """Stretches, first word and behind the last, most of whose words equal some word before.

    How far before is where the four words at hand, numbers apart, stood last (`gaps`); behind a
    change, whose own grams are new, it is taken from the words before the change.
    """
    keys = without_numbers(words)
    distance = filled(gaps)
    equal = (distance > 0) & (keys == keys[np.arange(len(keys)) - distance])
    found = list[tuple[int, int]]()
    for scale in (1, 4, 16):
        width = min(limits.cycle_words, limits.bare_words) * scale
        far = 2 * width // limits.cycle_rounds
        sums = window_sums(equal & (distance <= far), width)
        found += unions(sums >= _SLACK * limits.cycle_share * width, width)
    return found


def _with_period(
    words: Words, period: int, begin: int, end: int, limits: RepetitionFilter
) -> Loop | None:
    """The longest loop with this period among the words from `begin` to `end`."""
    if end - begin <= period:
        return None
    part = slice(begin, end)
    equal = words.keys[part][period:] == words.keys[part][:-period]
    counting = equal | _counts(words, part, period)
    language = of_language(words)[part][period:]
    found = [
        (run, same)
        for same, size, rounds, share, spoken in (
            (equal, limits.cycle_words, limits.cycle_rounds, limits.cycle_share, _LANGUAGE),
            (counting, limits.cycle_words, limits.cycle_rounds, limits.counting_share, _LANGUAGE),
            (equal, limits.drift_words, limits.drift_rounds, limits.drift_share, _LANGUAGE),
            (equal, limits.bare_words, limits.bare_rounds, limits.bare_share, 0.0),
        )
        for run in _runs(same, language, max(size, rounds * period) - period, share, spoken)
    ]
    if not found:
        return None
    (first, last), same = max(found, key=lambda item: item[0][1] - item[0][0])
    size = last - first + period
    text = f"{same[first:last].mean():.0%} of {size:,} words equal the word {period:,} before"
    return loop_at(words, "cycle", begin + first, begin + last + period, text)


def _runs(
    equal: Flags, language: Flags, width: int, share: float, spoken: float
) -> list[tuple[int, int]]:
    hot = window_sums(equal, width) >= share * width
    hot &= window_sums(language, width) >= spoken * width
    return unions(hot, width)


def _counts(words: Words, part: slice, period: int) -> Flags:
    """Numbers that count up or down by one, for two rounds; for words from `period` on."""
    values = _values(words, part)
    steps = np.zeros(len(values), np.int64)
    known = (values[period:] >= 0) & (values[:-period] >= 0)
    steps[period:] = np.where(known, values[period:] - values[:-period], 0)
    steady = np.abs(steps) == 1
    steady[period:] &= steps[period:] == steps[:-period]
    return steady[period:]


def _values(words: Words, part: slice) -> npt.NDArray[np.int64]:
    """The values of numbers of at most nine digits, -1 for every other word."""
    starts, lengths = words.starts[part], words.lengths[part]
    numbers = np.flatnonzero((words.kinds[part] == DIGITS) & (lengths <= 9))
    data = np.frombuffer(words.data, np.uint8)
    value = np.zeros(len(numbers), np.int64)
    for digit in range(9):
        more = lengths[numbers] > digit
        at = starts[numbers] + np.where(more, digit, 0)
        value = np.where(more, value * 10 + data[at] - ord("0"), value)
    values = np.full(len(starts), -1, np.int64)
    values[numbers] = value
    return values
