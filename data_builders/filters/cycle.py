"""The rule against loops with a period: most words of a stretch equal the word one round before.

    cycle(words of "Step 7: wait.\\nStep 8: wait.\\n…", limits)
    → Loop("cycle", 0, 1400, "100% of 600 words equal the word 6 before, 100 rounds")

A word changed in every round leaves the others equal; a number that counts up or down is equal too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.filters.loop import PLAIN, Loop, loop_at, of_language, of_markup, without_numbers
from data_builders.filters.nearby import GRAM, cycling
from data_builders.filters.recurrence import Grams, unions, window_sums
from data_builders.filters.words import DIGITS, LINE_END, Flags, Keys, TextWords
from posttrain.config.filters import RepetitionFilter

_LONG_GRAM = 16  # words
_CANDIDATES = 3  # periods tried in a stretch, by each kind of gram
_FARTHEST = 4096  # words in a round
_SLACK = 0.75  # part of the words that must be equal for a closer look, numbers apart
_LANGUAGE = 0.25  # share of words of language from which a stretch is not bare
_WHOLE = 0.9  # share of the words that stand in rounds without a change, for formulas
_VARIED = 7  # distinct words in a round of formulas, numbers apart; rows of grids have fewer


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of a text, and what each of its words is; flags are (words,).

    Attributes:
        begin: its first word.
        keys, blind: of its words, and with one key for all numbers.
        values: of numbers, -1 elsewhere.
        lines: line ends up to each word.
        language, plain: which words are of language, and which are no markup.
    """

    begin: int
    keys: Keys
    blind: Keys
    values: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    language: Flags
    plain: Flags

    def cut(self, begin: int, end: int) -> _Stretch:
        part = slice(begin, end)
        return _Stretch(
            begin,
            self.keys[part],
            self.blind[part],
            self.values[part],
            self.lines[part],
            self.language[part],
            self.plain[part],
        )


def cycle(words: TextWords, limits: RepetitionFilter) -> Loop | None:
    """The first stretch with a period."""
    blind = without_numbers(words)
    gaps = Grams(blind, GRAM).gaps()
    stretches = cycling(blind, gaps, limits)
    if not stretches:
        return None
    # a round's parts may be alike: longer grams stood a whole round before
    far_gaps = Grams(blind, _LONG_GRAM).gaps()
    lines = np.cumsum(words.kinds == LINE_END)
    language, plain = of_language(words), ~of_markup(words)
    text = _Stretch(0, words.keys, blind, _values(words), lines, language, plain)
    tried = set[tuple[int, int, int]]()
    for first, last in stretches:
        for period in {**_often(gaps[first:last]), **_often(far_gaps[first:last])}:
            attempt = (period, max(first - period, 0), last)
            if attempt not in tried:
                tried.add(attempt)
                loop = _with_period(words, text.cut(*attempt[1:]), period, limits)
                if loop is not None:
                    return loop
    return None


def _often(gaps: npt.NDArray[np.int32]) -> dict[int, None]:
    """The most frequent gaps, in order: what may be the length of a round."""
    counts = np.bincount(gaps[(gaps > 0) & (gaps <= _FARTHEST)])
    found = np.flatnonzero(counts)
    order = np.argsort(-counts[found], kind="stable")[:_CANDIDATES]
    return dict.fromkeys(found[order].tolist())


def _with_period(
    words: TextWords, text: _Stretch, period: int, limits: RepetitionFilter
) -> Loop | None:
    """The longest loop with this period in a stretch."""
    if len(text.keys) <= period:
        return None
    blind = text.blind[period:] == text.blind[:-period]
    width = max(limits.shortest, limits.cycle_rounds * period) - period
    if not (window_sums(blind, width) >= _SLACK * width).any():
        return None
    found = [
        (run, rule.wanted[0][0])
        for rule in _rules(text, period, limits)
        for run in _runs(rule.wanted, max(rule.words, rule.rounds * period) - period)
        if not rule.varied or _variety(text, run, period) >= rule.varied
    ]
    if not found:
        return None
    (first, last), same = max(found, key=lambda item: item[0][1] - item[0][0])
    size = last - first + period
    detail = f"{same[first:last].mean():.0%} of {size:,} words equal the word {period:,} before"
    return loop_at(words, "cycle", text.begin + first, text.begin + last + period, detail)


@dataclass(frozen=True, slots=True)
class _Rule:
    """At least so many words and rounds, in which each of the flags is set for its share of words.

    `varied` is how many distinct words a round must have, numbers apart.
    """

    words: int
    rounds: int
    wanted: list[tuple[Flags, float]]
    varied: int = 0


def _rules(text: _Stretch, period: int, limits: RepetitionFilter) -> list[_Rule]:
    equal = text.keys[period:] == text.keys[:-period]
    counting = equal | _counts(text, period)
    whole = _in_runs(equal, period)
    spoken = (text.language[period:], _LANGUAGE)
    prose = [spoken, (text.plain[period:], PLAIN)]
    size, often, many = limits.cycle_words, limits.cycle_rounds, limits.row_rounds
    alike, counts = (equal, limits.cycle_share), (counting, limits.counting_share)
    drifting = (equal, limits.drift_share)
    return [
        _Rule(size, often, [alike, *prose]),
        _Rule(size, often, [counts, *prose]),
        _Rule(limits.short_words, often, [(counting, limits.short_share), *prose]),
        _Rule(limits.drift_words, limits.drift_rounds, [drifting, *prose]),
        # code, tables, records: their rows differ a little for good reasons
        _Rule(size, often, [alike, spoken, (whole, limits.exact_share)]),
        _Rule(size, many, [counts, spoken, (_in_runs(counting, period), _WHOLE)]),
        # formulas, said again to the letter; grids
        _Rule(size, often, [(equal, _WHOLE), (whole, _WHOLE)], _VARIED),
        _Rule(limits.bare_words, limits.bare_rounds, [(equal, limits.bare_share)]),
    ]


def _variety(text: _Stretch, run: tuple[int, int], period: int) -> int:
    """Distinct words in the middle round of a run, numbers apart."""
    middle = (run[0] + run[1]) // 2
    return len(np.unique(text.blind[middle : middle + period]))


def _runs(wanted: list[tuple[Flags, float]], width: int) -> list[tuple[int, int]]:
    """Windows in which each of the flags is set for its share of the words, joined."""
    hot = [window_sums(flags, width) >= share * width for flags, share in wanted]
    return unions(np.logical_and.reduce(hot), width)


def _in_runs(equal: Flags, shortest: int) -> Flags:
    """Which words lie in a run of equal ones of a whole round at least."""
    edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    long = ends - begins >= shortest
    steps = np.zeros(len(equal) + 1, np.int8)
    steps[begins[long]] = 1
    steps[ends[long]] = -1
    return np.cumsum(steps[:-1]) > 0


def _counts(text: _Stretch, period: int) -> Flags:
    """Numbers that count up or down for two rounds, by one or by the lines of a round."""
    values = text.values
    steps = np.zeros(len(values), np.int64)
    known = (values[period:] >= 0) & (values[:-period] >= 0)
    steps[period:] = np.where(known, values[period:] - values[:-period], 0)
    size = np.abs(steps[period:])
    lines = text.lines[period:] - text.lines[:-period]
    steady = (size > 0) & ((size == 1) | (size == lines))
    return steady & (steps[period:] == steps[:-period])


def _values(words: TextWords) -> npt.NDArray[np.int64]:
    """The values of numbers of at most nine digits, -1 for every other word."""
    numbers = np.flatnonzero((words.kinds == DIGITS) & (words.lengths <= 9))
    starts, lengths = words.starts[numbers], words.lengths[numbers]
    data = np.frombuffer(words.data, np.uint8)
    value = np.zeros(len(numbers), np.int64)
    for digit in range(int(lengths.max(initial=0))):
        more = lengths > digit
        at = starts + np.where(more, digit, 0)
        value = np.where(more, value * 10 + data[at] - ord("0"), value)
    values = np.full(len(words.starts), -1, np.int64)
    values[numbers] = value
    return values
