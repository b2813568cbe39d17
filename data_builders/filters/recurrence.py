"""Where each n-gram of a text stood before: the raw material of the repetition filter.

keys of "a b c a b c a b c"  →  nearest(keys, 2) = [0 0 0 3 3 3 3 3 0]

One sort of (hash, position) words of 64 bits; everything else is linear and in arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_builders.filters.words import Flags, Keys, Positions

_POSITION_BITS = 24
AT_MOST = 1 << _POSITION_BITS  # words that can be looked at together
_POSITION = np.uint64(AT_MOST - 1)
_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0x94D049BB133111EB)


class Grams:
    """All n-grams of some words, n a power of two, sorted so that equal ones stand together.

    Attributes:
        n: words in a gram.
        words: number of words; there are `words - n + 1` grams, or none.
        kept: (grams kept,) the words at which they begin, in no useful order.
    """

    def __init__(
        self, keys: Keys, n: int, *, of_text: Positions | None = None, every: int = 1
    ) -> None:
        """Sort the grams of `keys`.

        Args:
            of_text: (words,) the text of each word; grams of different texts then differ.
            every: keep about one in so many distinct grams, a power of two, chosen by their hash:
                all occurrences of a gram are kept, or none.
        """
        assert n & (n - 1) == 0, n
        assert len(keys) <= AT_MOST, len(keys)
        self.n, self.words = n, len(keys)
        hashes, factor, step = keys, _MIX_A, 1
        with np.errstate(over="ignore"):
            while step < n:
                hashes = (
                    hashes[:-step] * factor + hashes[step:] if len(hashes) > step else hashes[:0]
                )
                factor, step = factor * factor, 2 * step
            if of_text is not None:
                hashes = hashes + of_text[: len(hashes)].astype(np.uint64) * _MIX_B
            hashes = (hashes ^ (hashes >> np.uint64(31))) * _MIX_B
        at = np.arange(len(hashes), dtype=np.uint64)
        if every > 1:
            at = np.flatnonzero(hashes & np.uint64((every - 1) << 8) == 0).astype(np.uint64)
            hashes = hashes[at]
        hashes &= ~_POSITION
        hashes |= at
        hashes.sort()
        self._sorted = hashes
        self.kept = (hashes & _POSITION).astype(np.int32)

    def gaps(self, nth: int = 1) -> npt.NDArray[np.int32]:
        """How many words ago each gram's nth occurrence before stood; 0 where there is none.

        Returns:
            (words,) with 0 for the last `n - 1`, which begin no gram.
        """
        gaps = np.zeros(self.words, np.int32)
        gaps[self.kept] = self.kept_gaps(nth)
        return gaps

    def kept_gaps(self, nth: int = 1) -> npt.NDArray[np.int32]:
        """The gaps of the grams kept, (grams kept,), in the order of `kept`."""
        gaps = np.zeros(len(self.kept), np.int32)
        if len(self._sorted) > nth:
            same = (self._sorted[nth:] ^ self._sorted[:-nth]) <= _POSITION
            np.subtract(self.kept[nth:], self.kept[:-nth], out=gaps[nth:], where=same)
        return gaps

    def counts(self) -> npt.NDArray[np.int32]:
        """How often each gram stands in its text, (words,), 0 where none was kept."""
        counts = np.zeros(self.words, np.int32)
        counts[self.kept] = self.kept_counts()
        return counts

    def kept_counts(self) -> npt.NDArray[np.int32]:
        """How often each gram kept stands in its text, (grams kept,), in the order of `kept`."""
        if not len(self._sorted):
            return np.zeros(0, np.int32)
        new = np.flatnonzero((self._sorted[1:] ^ self._sorted[:-1]) > _POSITION) + 1
        sizes = np.diff(new, prepend=0, append=len(self._sorted)).astype(np.int32)
        return np.repeat(sizes, sizes)


def inside(begins: Flags, n: int) -> Flags:
    """Which words lie in a gram that begins where `begins` says."""
    steps = np.zeros(len(begins) + 1, np.int32)
    steps[:-1] += begins
    steps[n:] -= begins[: len(begins) + 1 - n]
    return np.cumsum(steps[:-1]) > 0


def window_sums(flags: npt.NDArray[np.bool_], width: int) -> npt.NDArray[np.int32]:
    """Set flags in every window of `width`, (len - width + 1,); empty where none fits."""
    if len(flags) < width:
        return np.empty(0, np.int32)
    sums = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=sums[1:])
    return sums[width:] - sums[:-width]


def unions(hot: Flags, width: int) -> list[tuple[int, int]]:
    """Overlapping windows joined, each as its first word and the one behind its last.

    Args:
        hot: (windows,) which windows of `width` words qualify.
    """
    at = np.flatnonzero(hot)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > width)
    begins = at[np.append(0, breaks + 1)]
    ends = at[np.append(breaks, len(at) - 1)] + width
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def filled(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Each zero replaced by the last value before it that is none."""
    last = np.arange(len(values))
    last *= values > 0
    np.maximum.accumulate(last, out=last)
    return values.take(last)
