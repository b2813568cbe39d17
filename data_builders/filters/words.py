"""Texts as arrays of words, for filters that look at millions of them without a loop in Python.

split_texts(["No, 12 nos.\\n"])  →  words No · , · 12 · nos · . · ⏎   keys (6,) uint64, first [0, 6]

A word is a run of letters, of digits or of other signs, at most 16 bytes of it, or a line's end; an
ideograph, a kana and a sign beyond Latin-1 begin a word of their own. Blanks are no words. Equal
words have equal keys, in every text and every process; that different words share one is as likely
as for any 64-bit hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLANK, LETTERS, DIGITS, SIGNS, LINE_END, WIDE, IDEOGRAPH = 0, 1, 2, 3, 8, 9, 10
PIECE = 16  # bytes; a longer run of one kind is several words

Keys = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xBF58476D1CE4E5B9)
_FIRST_BYTES = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(PIECE + 1)], np.uint64)
_OTHER_BYTES = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(PIECE + 1)], np.uint64)


def _kind(byte: int) -> int:
    if 0xE3 <= byte <= 0xE9:
        return IDEOGRAPH  # with kana
    if byte == 0xE2 or byte >= 0xED:
        return WIDE  # dashes, mathematical signs, emoji; EA…EC is Hangul, which has blanks
    if byte == 0x0A:
        return LINE_END
    if byte >= 0x80 or chr(byte).isalpha() or byte == 0x5F:
        return LETTERS
    if chr(byte).isdigit():
        return DIGITS
    return BLANK if byte <= 0x20 else SIGNS


# such a character's first byte differs from whatever stands before it, and its other bytes do not
# differ from its first: hence one table for a byte and one for the byte before
_KINDS = bytes(map(_kind, range(256)))
_KINDS_BEFORE = bytes(LETTERS if kind in (WIDE, IDEOGRAPH) else kind for kind in _KINDS)


@dataclass(frozen=True, slots=True)
class TextWords:
    """The words of several texts, one after the other.

    Attributes:
        data: the texts as UTF-8, each with a line's end behind it.
        starts, lengths: (words,) where each word stands in `data`, in bytes.
        kinds: (words,) LETTERS, DIGITS, SIGNS, LINE_END, WIDE or IDEOGRAPH.
        keys: (words,) equal where words are equal.
        first: (texts + 1,) the first word of each text, and their number.
        offsets: (texts + 1,) where each text begins in `data`, and where the last ends.
    """

    data: bytes
    starts: Positions
    lengths: Positions
    kinds: npt.NDArray[np.uint8]
    keys: Keys
    first: Positions
    offsets: Positions

    def of_text(self, index: int) -> TextWords:
        """The words of one text alone."""
        part = slice(int(self.first[index]), int(self.first[index + 1]))
        return TextWords(
            self.data,
            self.starts[part],
            self.lengths[part],
            self.kinds[part],
            self.keys[part],
            np.array([0, part.stop - part.start], np.int64),
            self.offsets[index : index + 2],
        )


def split_texts(texts: Sequence[str]) -> TextWords:
    """The words of all texts, at least one. Half surrogate pairs are words like others."""
    assert texts
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    data = b"\n".join([*encoded, b""])
    offsets = np.cumsum([0, *(len(text) + 1 for text in encoded)])
    starts, lengths, kinds = _bounds(data)
    keys = _keys(data, starts, lengths)
    return TextWords(data, starts, lengths, kinds, keys, np.searchsorted(starts, offsets), offsets)


def _bounds(data: bytes) -> tuple[Positions, Positions, npt.NDArray[np.uint8]]:
    kinds = np.frombuffer(data.translate(_KINDS), np.uint8)
    before = np.frombuffer(data.translate(_KINDS_BEFORE), np.uint8)
    changes = np.ones(len(data) + 1, np.bool_)
    np.not_equal(kinds[1:], before[:-1], out=changes[1:-1])
    visible = kinds.astype(np.bool_)
    starts = np.flatnonzero(changes[:-1] & visible)
    lengths = np.flatnonzero(changes[1:] & visible) - starts + 1
    found = kinds[starts]
    long = np.flatnonzero(lengths > PIECE)
    if len(long):
        more = (lengths[long] - 1) // PIECE
        at = np.repeat(long, more)
        step = np.arange(len(at)) - np.repeat(np.cumsum(more) - more, more) + 1
        ends = starts + lengths
        starts = np.insert(starts, at + 1, starts[at] + step * PIECE)
        found = np.insert(found, at + 1, found[at])
        lengths = np.minimum(np.insert(ends, at + 1, ends[at]) - starts, PIECE)
    return starts, lengths, found


def _keys(data: bytes, starts: Positions, lengths: Positions) -> Keys:
    """Two loads of eight bytes at every word, cut to its length and mixed."""
    padded = data + bytes(2 * PIECE)
    loads = np.ndarray((len(data) + PIECE,), np.dtype("<u8"), buffer=padded, strides=(1,))
    keys = (loads[starts] & _FIRST_BYTES[lengths]) * _MIX_A
    keys ^= keys >> np.uint64(29)
    long = np.flatnonzero(lengths > 8)  # the others add nothing
    keys[long] += (loads[starts[long] + 8] & _OTHER_BYTES[lengths[long]]) * _MIX_B
    keys ^= keys >> np.uint64(32)
    keys *= _MIX_B
    return keys
