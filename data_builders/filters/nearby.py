"""Words that say again what stood shortly before, whatever the distance: where loops may be.

    distances(words, gaps)  →  (words,) 6 where a word equals the one six words before, else 0

How far before is where the four words at hand stood last; behind a change, whose own grams are new,
it is taken from the words before the change. So rounds may lose, gain and change words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_builders.filters.recurrence import filled, unions
from data_builders.filters.words import Keys
from posttrain.config.filters import RepetitionFilter

GRAM = 4  # words, by which what stood before is found
# windows, in units of the shortest loop; a loop fills most of one whatever its size
_COARSE = tuple(2.0 ** (2 * k / 3) for k in range(11))
FINE = tuple(2.0 ** (k / 4) for k in range(25))
_BLOCK = 8  # words
_SLACK = 0.9  # a stretch is looked at from this part of the share it must have

Distances = npt.NDArray[np.int32]


def distances(keys: Keys, gaps: Distances) -> Distances:
    """How many words before each word its equal stands, 0 where it is not equal."""
    distance = filled(gaps)
    equal = keys == keys.take(np.arange(len(keys)) - distance)
    return distance * equal


def cycling(blind: Keys, gaps: Distances, limits: RepetitionFilter) -> list[tuple[int, int]]:
    """Stretches, first word and behind the last, most of whose words equal some word before.

    Args:
        blind: of `without_numbers`.
    """
    distance = distances(blind, gaps)
    shortest = limits.shortest - _BLOCK
    longer = min(limits.cycle_words, limits.bare_words) - _BLOCK
    few = tuple(scale for scale in _COARSE if shortest * scale < longer)
    rounds = limits.cycle_rounds / 2
    wanted = (
        (few, rounds, limits.short_share),
        (_COARSE[len(few) :], rounds, limits.cycle_share),
        (_COARSE[len(few) :: 2], limits.drift_rounds / 2, limits.drift_share),
    )
    return [
        (first, min(last, len(blind)))
        for scales, rounds, share in wanted
        for first, last in dense(
            distance, width=shortest, rounds=rounds, share=_SLACK * share, scales=scales
        )
    ]


def dense(
    distance: Distances,
    *,
    width: int,
    rounds: float,
    share: float,
    nearest: int = 1,
    scales: tuple[float, ...] = _COARSE,
) -> list[tuple[int, int]]:
    """Stretches that are dense in words equal to one before, by windows of several sizes.

    Args:
        distance: of `distances`.
        width: words in the smallest window; begins and ends are known to eight words.
        rounds: how often the farthest distance that counts must fit into a window.
        share: of a window's words that must be equal.
        nearest: the shortest distance that counts.
        scales: sizes of the windows, in units of `width`.
    """
    padded = np.zeros(-len(distance) % _BLOCK + len(distance), np.int32)
    # as unsigned numbers, less what is too near, all that must not count is too far
    padded[: len(distance)] = distance
    away = (padded - nearest).view(np.uint32)
    found = list[tuple[int, int]]()
    for scale in scales:
        blocks = int(width * scale) // _BLOCK
        if blocks > len(away) // _BLOCK:
            break
        farthest = int(width * scale / rounds)
        if farthest < nearest:
            continue
        close = away <= np.uint32(farthest - nearest)
        sums = np.zeros(len(away) // _BLOCK + 1, np.int32)
        np.cumsum(np.bitwise_count(close.view(np.uint64)), out=sums[1:])
        hot = sums[blocks:] - sums[:-blocks] >= share * blocks * _BLOCK
        found += [(first * _BLOCK, last * _BLOCK) for first, last in unions(hot, blocks)]
    return found
