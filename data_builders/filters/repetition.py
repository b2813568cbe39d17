"""Pathological repetition: traces and answers that go round in circles (paper 3.1.3).

Compression picks the stretches worth a look. In them, two rules: an exact *cycle*, most of whose
words equal the word one round before, and a window most of whose words followed the same *n-gram*
the last time as well, when that had stood twice already.

What tells a loop from honest steps ("Turn 7: Ada passes the coin to Bo.") is where rounds differ.
Steps fill in a template: they differ at the same place in every round, be it a number or a name. A
loop is the same to the letter, or its changes fall anywhere, or all it fills in is its own number
or one of the same few words.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_builders.dedup.words import runs
from data_builders.keyed import shuffled_keys
from data_builders.rows.raw import Match
from posttrain.config.filters import RepetitionFilter

_BLANK, _LETTER, _DIGIT, _SIGN, _LINE_END, _ALONE, _INSIDE = range(7)  # kinds of bytes
_LONGEST = 16  # bytes of a word; a longer run is several
_CHUNK = 1000  # bytes, compressed after what stands before them
_EARLY, _LESS = 2, 0.8  # chunks with little before them, of which this share of the ratio is asked
_GAP = 4  # chunks between two that compress well; fewer join them
_HINT = 0.3  # share of a window's words that follow as before, below which no rule can hold
_CANDIDATES = 4  # periods tried, of rounds in one part and in two
_SLOT = 0.4  # share of the rounds in which a place must differ to be a template's slot
_TEMPLATE_SHARE = 0.9  # of the words equal: slots are counted as far as this reaches
_SLOTS = 0.02  # of a round's words may be slots: in long rounds a counter is no content
_FILLED_ROUNDS = 12  # of one slot, from which on what fills it is looked at
_ELSEWHERE = 0.01  # share of the words that may differ then outside the slot
_COUNTED = 0.9  # share of the slot's numbers that are one more than the last: the round's own
_DISTINCT = 0.85  # share of distinct words in the slot: if fewer, the same return again and again
_SENTENCE = 12  # words of a round of which that, or numbers in no order, make a loop
_BARE = 0.25  # share of words of language below which a stretch is a grid, a ruler, digits
_BARE_SHARE, _ROW_ROUNDS = 0.99, 16  # of whose words must be equal, for so many rounds,
_BARE_VOCABULARY, _MANY_ROUNDS = 6, 64  # or for these if a round has so few distinct words
_ALIKE = 0.5  # share of its words that a round's steps have in common: a state that goes to and fro
_REACH = 1200  # words; farther back the names and numbers of any template return by chance
_RUNNING_TEXT = 0.5  # share of words of language of a window, and
_VOCABULARY = 34  # distinct ones in it; fewer make the sentences of one template

Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a stretch of text; all arrays are (words,)."""

    data: bytes
    starts: Places  # of their first bytes
    ends: Places  # behind their last, and behind the blanks that follow
    kinds: npt.NDArray[np.uint8]  # of their first bytes
    keys: Keys  # equal where words are; the numbers of list items are all equal
    items: Flags  # numbers of list items

    def texts(self, places: Places) -> list[bytes]:
        starts, ends = self.starts[places].tolist(), self.ends[places].tolist()
        return [self.data[start:end].rstrip() for start, end in zip(starts, ends, strict=True)]

    def language(self, first: int, last: int) -> Flags:
        """Which words are letters, more than one with the blank behind them, or an ideograph."""
        kinds, starts = self.kinds[first:last], self.starts[first:last]
        lengths = self.ends[first:last] - starts
        leads = np.frombuffer(self.data, np.uint8)[starts]
        letters = (kinds == _LETTER) & (lengths > 2) & (lengths < _LONGEST)
        return letters | ((leads >= 0xE3) & (leads <= 0xEC))

    def cut_off(self) -> bool:
        """Whether the stretch stops within a sentence, in a line that no other line equals."""
        line = self.data.rpartition(b"\n")[2]
        return line[-1:].isalnum() and b"\n" + line + b"\n" not in self.data


_Found = tuple[str, int, int]  # detail, first word, behind the last


def find_repetition(text: str, limits: RepetitionFilter) -> Match | None:
    """The first loop of a text; the detail names the rule, "cycle" or "ngrams"."""
    data = text.encode("utf-8", "surrogatepass")
    for begin, end in _suspects(data, limits):
        words = _split(data[begin:end])
        for detail, first, last in _loops(words, limits):
            start = len(_decode(data[: begin + words.starts[first]]))
            loop = _decode(data[begin + words.starts[first] : begin + words.ends[last - 1]])
            return Match(detail, start, start + len(loop.rstrip(" ") or loop))
    return None


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _suspects(data: bytes, limits: RepetitionFilter) -> Iterator[tuple[int, int]]:
    """Stretches that compress well, given what stands before, and half as much before them."""
    if len(data) < 3 * limits.min_words:  # an ideograph, or letters and a blank
        return
    sizes = _sizes(data)
    packed = np.diff(sizes)
    lengths = np.full(len(packed), _CHUNK)
    lengths[-1] = len(data) - _CHUNK * (len(packed) - 1)
    least = np.full(len(packed), limits.compression_ratio)
    least[:_EARLY] *= _LESS
    good = np.flatnonzero(packed * least <= lengths)
    if not len(good):
        return
    breaks = np.flatnonzero(np.diff(good) > _GAP)
    firsts = good[np.append(0, breaks + 1)].tolist()
    lasts = good[np.append(breaks, -1)].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        begin = max(first - (last - first) // 2 - 2, 0) * _CHUNK
        while begin and data[begin] & 0xC0 == 0x80:  # within a character
            begin -= 1
        end = min((last + 2) * _CHUNK, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        yield begin, end


def _sizes(data: bytes) -> list[int]:
    """The bytes that LZ4 needs up to the end of each chunk, from 0 on."""
    if len(data) <= _CHUNK:  # most texts; a stream costs many times as much
        return [0, len(pa.compress(data, "lz4", asbytes=True))]
    sink = pa.MockOutputStream()
    packer = pa.CompressedOutputStream(sink, "lz4")
    sizes = [0]
    for start in range(0, len(data), _CHUNK):
        packer.write(data[start : start + _CHUNK])
        packer.flush()
        sizes.append(sink.size())
    return sizes


@cache
def _kinds() -> bytes:
    """The kind of each byte of UTF-8."""
    kinds = np.full(256, _SIGN, np.uint8)
    kinds[list(b" \t\r\v\f")] = _BLANK
    kinds[list(string.ascii_letters.encode())] = _LETTER
    kinds[list(string.digits.encode())] = _DIGIT
    kinds[ord("\n")] = _LINE_END
    kinds[0x80:0xE0] = _LETTER  # two bytes: accents, Greek, Cyrillic, Hebrew, Arabic
    kinds[0xE0:] = _ALONE  # three or four: scripts that separate no words, signs, pictures
    return kinds.tobytes()


def _split(data: bytes) -> _Words:
    """A word is a run of letters, digits or signs, a line end, or a character of 3 or 4 bytes.

    The blanks that follow belong to it.
    """
    codes = np.frombuffer(data, np.uint8)
    kinds = np.frombuffer(data.translate(_kinds()), np.uint8)
    if not data.isascii():
        kinds = kinds.copy()
        wide = np.flatnonzero(kinds == _ALONE)
        kinds[wide + 1] = kinds[wide + 2] = _INSIDE
        kinds[wide[codes[wide] >= 0xF0] + 3] = _INSIDE
    begins = kinds >= _LINE_END
    begins[1:] |= kinds[1:] != kinds[:-1]
    begins &= (kinds != _BLANK) & (kinds != _INSIDE)
    begins[0] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=len(data))
    if lengths.max() > _LONGEST:
        pieces = (lengths + _LONGEST - 1) // _LONGEST
        skipped = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        skipped *= _LONGEST
        lengths = np.minimum(np.repeat(lengths, pieces) - skipped, _LONGEST)
        starts = np.repeat(starts, pieces) + skipped
    padded = data + bytes(_LONGEST)
    eights = np.ndarray(len(data) + 8, "<u8", padded, strides=(1,))  # the 8 bytes from each on
    masks = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(_LONGEST + 1)], np.uint64)
    keys = shuffled_keys(eights[starts] & masks[lengths], salt=1)
    long = np.flatnonzero(lengths > 8)
    keys[long] += eights[starts[long] + 8] & masks[lengths[long] - 8]
    kinds, leads = kinds[starts], codes[starts]
    items = np.zeros(len(keys), np.bool_)
    items[1:-1] = (kinds[:-2] == _LINE_END) & (kinds[1:-1] == _DIGIT) & (lengths[1:-1] <= 4)
    items[1:-1] &= (leads[2:] == ord(".")) | (leads[2:] == ord(")"))
    keys[items] = 0
    return _Words(data, starts, starts + lengths, kinds, keys, items)


def _loops(words: _Words, limits: RepetitionFilter) -> Iterator[_Found]:
    """Cycles, whose rounds may have two parts or be a grid's rows; then windows."""
    last, second = _lags(words.keys, limits.ngram)
    if not _dense(last > 0, limits.min_words, _HINT):
        return
    periods = list(_periods(last, limits))
    lines = np.diff(np.flatnonzero(words.kinds == _LINE_END))
    rows = [int(np.bincount(lines).argmax())] if len(lines) > limits.min_rounds else []
    twice = [period for period in _periods(second, limits) if period / 2 not in periods]
    yield from _cycles(words, list(dict.fromkeys([*periods, *twice, *rows])), limits)
    yield from _windows(words, second, limits)


def _lags(keys: Keys, n: int) -> tuple[Places, Places]:
    """How far back each word was foretold: the same n words stood before it, and it followed.

    From the last time that they stood, and from the time before; 0 where they stood not so often,
    or another word followed the last time.
    """
    last, second = np.zeros((2, len(keys)), np.int64)
    hashes = runs(keys[:-1], n)
    if not len(hashes):
        return last, second
    # sorted with their places as the lowest bits: several times as fast as a stable `argsort`
    bits = np.uint64(len(hashes).bit_length())
    ranked = np.sort(hashes >> bits << bits | np.arange(len(hashes), dtype=np.uint64))
    places = (ranked & np.uint64((1 << int(bits)) - 1)).astype(np.int64) + n
    ranked >>= bits
    same = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    same = same[keys[places[same]] == keys[places[same - 1]]]
    last[places[same]] = places[same] - places[same - 1]
    same = same[(same > 1) & (ranked[same] == ranked[same - 2])]
    second[places[same]] = places[same] - places[same - 2]
    return last, second


def _cycles(words: _Words, periods: list[int], limits: RepetitionFilter) -> Iterator[_Found]:
    """Stretches whose words equal the word one round before."""
    for period in periods:
        equal = words.keys[period:] == words.keys[:-period]
        width = max(limits.min_words, limits.min_rounds * period) - period
        for low, high in _dense(equal, width, _TEMPLATE_SHARE):
            around = equal[low:high]
            for first, last in _dense(around, width, limits.cycle_share):
                part, begin, end = around[first:last], low + first, low + last + period
                one_round = slice((begin + end - period) // 2, (begin + end + period) // 2)
                wide = len(around) >= 2 * limits.min_rounds * period
                seen = slice(low, high) if wide else slice(begin, end - period)
                if _steps(words, equal, seen, one_round):
                    continue
                if words.language(begin, end).mean() < _BARE:
                    few = len(np.unique(words.keys[one_round])) <= _BARE_VOCABULARY
                    shortest = period * (_MANY_ROUNDS if few else _ROW_ROUNDS)
                    if not _dense(part, max(width, shortest), _BARE_SHARE):
                        continue
                stuck = end == len(words.keys) and words.cut_off()
                if not stuck and len(part) < _MANY_ROUNDS * period and _alternates(
                    words.keys[one_round], limits
                ):  # fmt: skip
                    continue
                share = f"{part.mean():.0%} of {len(part):,} words"
                yield f"cycle: {share} equal the word {period:,} before", begin, end


def _periods(lags: Places, limits: RepetitionFilter) -> Iterator[int]:
    """The most frequent lags that somewhere stand close together."""
    counts = np.bincount(lags)
    least = int(_HINT * limits.min_words)
    frequent = np.flatnonzero(counts > least)
    order = np.argsort(-counts[frequent], kind="stable")[: _CANDIDATES + 1]
    for period in frequent[order].tolist():
        places = np.flatnonzero(lags == period)
        if period and (places[least:] - places[:-least]).min() < limits.min_words:
            yield period


def _steps(words: _Words, equal: Flags, seen: slice, one_round: slice) -> bool:
    """Whether the rounds fill in a template, or are several items of a numbered list."""
    period, length = one_round.stop - one_round.start, seen.stop - seen.start
    changes = np.bincount(np.flatnonzero(~equal[seen]) % period, minlength=period)
    slots = np.flatnonzero(changes > _SLOT * length / period)
    numbers = int(np.count_nonzero(words.items[one_round]))
    if len(slots) == 1 and not numbers and length >= _FILLED_ROUNDS * period:
        elsewhere = changes.sum() - changes[slots[0]]
        if elsewhere <= _ELSEWHERE * length:
            places = np.arange(seen.start + slots[0], seen.stop, period)
            return not _idle(words.texts(places), words.texts(places[:1] + 1)[0], period)
    return len(slots) + (numbers if numbers > 1 else 0) > _SLOTS * period


def _idle(fillings: list[bytes], follows: bytes, period: int) -> bool:
    """Whether what fills a template's only slot tells nothing."""
    numbers = [int(filling) if filling.isdigit() else -1 for filling in fillings]
    steps = np.diff(numbers)
    if (steps == 1).mean() >= _COUNTED:
        return not follows.isalnum()  # "Step 7:", and not "7 apples"
    in_no_order = 0 < (steps > 0).mean() < 1
    if min(numbers) >= 0 and in_no_order:
        return period >= _SENTENCE
    return period >= _SENTENCE and len(set(fillings)) <= _DISTINCT * len(fillings)


def _alternates(one_round: Keys, limits: RepetitionFilter) -> bool:
    """Whether a round is several steps of one template ("'(' opens, ')' closes")."""
    period = len(one_round)
    steps = (np.roll(one_round, n) for n in range(1, period // 2 + 1) if period % n == 0)
    return any(_ALIKE <= (one_round == step).mean() < limits.cycle_share for step in steps)


def _windows(words: _Words, lags: Places, limits: RepetitionFilter) -> Iterator[_Found]:
    """Windows of running text most of whose words followed the last two times as well."""
    copied = (lags > 0) & (lags <= _REACH)
    for first, last in _dense(copied, limits.window, limits.duplicate_share):
        language = words.language(first, last)
        vocabulary = np.unique(words.keys[first:last][language])
        if language.mean() >= _RUNNING_TEXT and len(vocabulary) >= _VOCABULARY:
            share = f"{copied[first:last].mean():.0%} of {last - first:,} words"
            yield f"ngrams: {share} follow the same {limits.ngram} as before", first, last


def _dense(flags: Flags, width: int, share: float) -> list[tuple[int, int]]:
    """Windows of `width` of whose flags this share is set, overlapping ones joined."""
    sums = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=sums[1:])
    at = np.flatnonzero(sums[width:] - sums[:-width] >= math.ceil(share * width))
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > width)
    begins, ends = at[np.append(0, breaks + 1)], at[np.append(breaks, -1)] + width
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
