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
# A stretch is looked at if 1 kB of it compresses this well (LZ4), given what stands before it.
_COMPRESSION_RATIO = 3.0
_MIN_ROUNDS = 3  # of the shortest cycle
_CYCLE_SHARE = 0.9  # share of a cycle's words that must equal the word one round before
# In a window of so many words, this share must follow the same n-gram as the last time, when that
# n-gram had stood twice already.
_WINDOW = 100
_NGRAM = 6
_DUPLICATE_SHARE = 0.9
_MAX_WORD_BYTES = 16  # a longer run of letters is split into several words
_CHUNK = 1000  # bytes, compressed after everything before them
# The first chunks have little text before them to repeat: they need a lower compression ratio.
_EARLY_CHUNKS = 2
_EARLY_RATIO_SHARE = 0.8
_JOINED_GAP = 4  # suspect stretches at most so many chunks apart are joined
_MIN_FORETOLD = 0.3  # share of repeated words in a window, below which no rule can hold
_MAX_PERIODS = 4  # periods tried, of rounds in one part and in two
_SLOT_CHANGES = 0.4  # share of the rounds in which a word must differ to be a template's slot
_LOOP_SLOTS = 0.02  # share of a round's words that may be slots: a counter is no content
_FILLED_ROUNDS = 12  # rounds with one slot, from which on its fillings are looked at
_CHANGES_ELSEWHERE = 0.01  # share of the words that may then differ outside the slot
_COUNTER_STEPS = 0.9  # share of steps by one that makes the slot's numbers a counter of rounds
_DISTINCT_FILLINGS = 0.85  # share of distinct words in the slot; with fewer they recur
_SENTENCE = 12  # words of a round from which on recurring or unordered fillings make a loop
_BARE = 0.25  # share of words of language below which a stretch is a grid, a ruler or digits
_BARE_SHARE = 0.99  # share of the words of such a stretch that must be equal,
_BARE_ROUNDS = 16  # for so many rounds,
_MANY_ROUNDS = 64  # or for so many where a round has
_BARE_VOCABULARY = 6  # so few distinct words
_ALIKE = 0.5  # share of words that the steps of one round share: a state that goes to and fro
_REACH = 1200  # words; farther back the names and numbers of any template return by chance
# A window of running text has this share of words of language, and so many distinct ones: fewer are
# the sentences of one template.
_RUNNING_TEXT = 0.5
_MIN_VOCABULARY = 34

Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of a stretch of text; all arrays are (words,).

    Attributes:
        starts: position of the first byte.
        ends: position after the last byte and the blanks that follow.
        kinds: kind of the first byte.
        keys: equal where words are equal; the numbers of list items all have one key.
        items: True for the numbers of list items.
    """

    data: bytes
    starts: Positions
    ends: Positions
    kinds: npt.NDArray[np.uint8]
    keys: Keys
    items: Flags

    def texts(self, positions: Positions) -> list[bytes]:
        """Words at these positions, without the blanks that follow."""
        starts = self.starts[positions].tolist()
        ends = self.ends[positions].tolist()
        return [self.data[start:end].rstrip() for start, end in zip(starts, ends, strict=True)]

    def language(self, first: int, last: int) -> Flags:
        """Flags of words of a language: an ideograph, or letters of 3 to 15 bytes with blanks."""
        kinds = self.kinds[first:last]
        starts = self.starts[first:last]
        lengths = self.ends[first:last] - starts
        leads = np.frombuffer(self.data, np.uint8)[starts]
        letters = (kinds == _LETTER) & (lengths > 2) & (lengths < _MAX_WORD_BYTES)
        # first bytes of U+3000 to U+CFFF: kana, CJK ideographs, most of Hangul
        return letters | ((leads >= 0xE3) & (leads <= 0xEC))

    def cut_off(self) -> bool:
        """True where the stretch stops within a sentence, in a line that no other line equals."""
        line = self.data.rpartition(b"\n")[2]
        # four bytes hold the last letter of any script; what comes before it may be half a letter
        last_letter = line[-4:].decode("utf-8", "ignore")[-1:]
        return last_letter.isalnum() and b"\n" + line + b"\n" not in self.data


_Loop = tuple[str, int, int]  # detail, first word, end


def find_repetition(text: str, limits: RepetitionFilter) -> Match | None:
    """First loop of a text, None without one; the detail names the rule, "cycle" or "ngrams"."""
    data = text.encode("utf-8", "surrogatepass")
    for begin, end in _suspect_stretches(data, limits):
        words = _split(data[begin:end])
        for detail, first, last in _find_loops(words, limits):
            start = len(_decode(data[: begin + words.starts[first]]))
            loop = _decode(data[begin + words.starts[first] : begin + words.ends[last - 1]])
            return Match(detail, start, start + len(loop.rstrip(" ") or loop))
    return None


def _decode(data: bytes) -> str:
    """Text of UTF-8 bytes, in which lone surrogates may stand."""
    return data.decode("utf-8", "surrogatepass")


def _suspect_stretches(data: bytes, limits: RepetitionFilter) -> Iterator[tuple[int, int]]:
    """Byte spans that compress well after the text before them, with half as much before them."""
    if len(data) < 3 * limits.min_words:  # no word is shorter: an ideograph has three bytes
        return
    packed = np.diff(_packed_sizes(data))
    lengths = np.full(len(packed), _CHUNK)
    lengths[-1] = len(data) - _CHUNK * (len(packed) - 1)
    min_ratios = np.full(len(packed), _COMPRESSION_RATIO)
    min_ratios[:_EARLY_CHUNKS] *= _EARLY_RATIO_SHARE
    suspects = np.flatnonzero(packed * min_ratios <= lengths)
    if not len(suspects):
        return
    breaks = np.flatnonzero(np.diff(suspects) > _JOINED_GAP)
    firsts = suspects[np.append(0, breaks + 1)].tolist()
    lasts = suspects[np.append(breaks, -1)].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        begin = max(first - (last - first) // 2 - 2, 0) * _CHUNK
        while begin and data[begin] & 0xC0 == 0x80:  # within a character
            begin -= 1
        end = min((last + 2) * _CHUNK, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        yield begin, end


def _packed_sizes(data: bytes) -> list[int]:
    """Bytes that LZ4 needs up to the end of each chunk, from 0 on."""
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
    """Translation table: byte of UTF-8 → its kind."""
    kinds = np.full(256, _SIGN, np.uint8)
    kinds[list(b" \t\r\v\f")] = _BLANK
    kinds[list(string.ascii_letters.encode())] = _LETTER
    kinds[list(string.digits.encode())] = _DIGIT
    kinds[ord("\n")] = _LINE_END
    kinds[0x80:0xE0] = _LETTER  # two bytes: accents, Greek, Cyrillic, Hebrew, Arabic
    kinds[0xE0:] = _ALONE  # three or four: scripts that separate no words, signs, pictures
    return kinds.tobytes()


def _split(data: bytes) -> _Words:
    """Split a text into words.

    A word is a run of letters, digits or signs, a line end, or a character of 3 or 4 bytes, with
    the blanks that follow.
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
    if lengths.max() > _MAX_WORD_BYTES:
        pieces = (lengths + _MAX_WORD_BYTES - 1) // _MAX_WORD_BYTES
        skipped = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        skipped *= _MAX_WORD_BYTES
        lengths = np.minimum(np.repeat(lengths, pieces) - skipped, _MAX_WORD_BYTES)
        starts = np.repeat(starts, pieces) + skipped
    # the key of a word is made from its first 8 bytes and, if it is longer, its next 8
    padded = data + bytes(_MAX_WORD_BYTES)
    eights = np.ndarray(len(data) + 8, "<u8", padded, strides=(1,))  # 8 bytes from each position
    masks = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(_MAX_WORD_BYTES + 1)], np.uint64)
    keys = shuffled_keys(eights[starts] & masks[lengths], salt=1)
    long = np.flatnonzero(lengths > 8)
    keys[long] += eights[starts[long] + 8] & masks[lengths[long] - 8]
    kinds = kinds[starts]
    leads = codes[starts]
    # "\n12." and "\n3)": numbers of list items, which count up in a loop as well
    items = np.zeros(len(keys), np.bool_)
    items[1:-1] = (kinds[:-2] == _LINE_END) & (kinds[1:-1] == _DIGIT) & (lengths[1:-1] <= 4)
    items[1:-1] &= (leads[2:] == ord(".")) | (leads[2:] == ord(")"))
    keys[items] = 0
    return _Words(data, starts, starts + lengths, kinds, keys, items)


def _find_loops(words: _Words, limits: RepetitionFilter) -> Iterator[_Loop]:
    """Loops of a stretch: cycles, whose rounds may have two parts or be rows of a grid; n-grams."""
    last, second = _lags(words.keys, _NGRAM)
    if not _dense(last > 0, limits.min_words, _MIN_FORETOLD):
        return
    periods = list(_periods(last, limits))
    lines = np.diff(np.flatnonzero(words.kinds == _LINE_END))
    rows = [int(np.bincount(lines).argmax())] if len(lines) > _MIN_ROUNDS else []
    twice = [period for period in _periods(second, limits) if period / 2 not in periods]
    yield from _cycles(words, list(dict.fromkeys([*periods, *twice, *rows])), limits)
    yield from _windows(words, second)


def _lags(keys: Keys, n: int) -> tuple[Positions, Positions]:
    """Words back to the last two places of the n words before each word; 0 if another followed.

    It is also 0 where the n words did not occur so often. Only the word that followed at the last
    place is compared.
    """
    last, second = np.zeros((2, len(keys)), np.int64)
    hashes = runs(keys[:-1], n)
    if not len(hashes):
        return last, second
    # sorted with their positions as the lowest bits: several times as fast as a stable `argsort`
    bits = np.uint64(len(hashes).bit_length())
    ranked = np.sort(hashes >> bits << bits | np.arange(len(hashes), dtype=np.uint64))
    positions = (ranked & np.uint64((1 << int(bits)) - 1)).astype(np.int64) + n
    ranked >>= bits
    repeats = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    repeats = repeats[keys[positions[repeats]] == keys[positions[repeats - 1]]]
    last[positions[repeats]] = positions[repeats] - positions[repeats - 1]
    repeats = repeats[(repeats > 1) & (ranked[repeats] == ranked[repeats - 2])]
    second[positions[repeats]] = positions[repeats] - positions[repeats - 2]
    return last, second


def _cycles(words: _Words, periods: list[int], limits: RepetitionFilter) -> Iterator[_Loop]:
    """Stretches whose words equal the word one round before."""
    for period in periods:
        equal = words.keys[period:] == words.keys[:-period]
        width = max(limits.min_words, _MIN_ROUNDS * period) - period
        for first, last in _dense(equal, width, _CYCLE_SHARE):
            cycle = equal[first:last]
            end = last + period
            # a round in the middle stands for all of them
            sample_round = slice((first + last) // 2, (first + last) // 2 + period)
            if _is_template(words, equal, slice(first, last), sample_round):
                continue
            if words.language(first, end).mean() < _BARE:
                n_distinct = len(np.unique(words.keys[sample_round]))
                min_rounds = _MANY_ROUNDS if n_distinct <= _BARE_VOCABULARY else _BARE_ROUNDS
                if not _dense(cycle, max(width, period * min_rounds), _BARE_SHARE):
                    continue
            # a cycle that runs into the end of a cut text is no list of steps
            is_stuck = end == len(words.keys) and words.cut_off()
            is_short = len(cycle) < _MANY_ROUNDS * period
            if not is_stuck and is_short and _alternates(words.keys[sample_round]):
                continue
            share = f"{cycle.mean():.0%} of {len(cycle):,} words"
            yield f"cycle: {share} equal the word {period:,} before", first, end


def _periods(lags: Positions, limits: RepetitionFilter) -> Iterator[int]:
    """Most frequent lags among those that occur close together somewhere in the text."""
    counts = np.bincount(lags)
    min_count = int(_MIN_FORETOLD * limits.min_words)
    frequent = np.flatnonzero(counts > min_count)
    # one more than are tried: lag 0, of words without a lag, is among them
    order = np.argsort(-counts[frequent], kind="stable")[: _MAX_PERIODS + 1]
    for period in frequent[order].tolist():
        positions = np.flatnonzero(lags == period)
        spans = positions[min_count:] - positions[:-min_count]
        if period and spans.min() < limits.min_words:
            yield period


def _is_template(words: _Words, equal: Flags, rounds: slice, sample_round: slice) -> bool:
    """True where the rounds fill in a template, or are several items of a numbered list.

    Args:
        equal: flags of the words that equal the word one round before.
        rounds: words of the rounds to judge by.
        sample_round: words of one round.
    """
    period = sample_round.stop - sample_round.start
    length = rounds.stop - rounds.start
    # changes at each position of a round: a template's slot changes in most rounds
    changes = np.bincount(np.flatnonzero(~equal[rounds]) % period, minlength=period)
    slots = np.flatnonzero(changes > _SLOT_CHANGES * length / period)
    item_numbers = int(np.count_nonzero(words.items[sample_round]))
    if len(slots) == 1 and not item_numbers and length >= _FILLED_ROUNDS * period:
        elsewhere = changes.sum() - changes[slots[0]]
        if elsewhere <= _CHANGES_ELSEWHERE * length:
            positions = np.arange(rounds.start + slots[0], rounds.stop, period)
            following_word = words.texts(positions[:1] + 1)[0]
            return not _is_idle(words.texts(positions), following_word, period)
    if item_numbers == 1:  # one number a round is the round's own
        item_numbers = 0
    return len(slots) + item_numbers > _LOOP_SLOTS * period


def _is_idle(fillings: list[bytes], following_word: bytes, period: int) -> bool:
    """True where the words in a template's only slot tell nothing."""
    numbers = [int(filling) if filling.isdigit() else -1 for filling in fillings]
    steps = np.diff(numbers)
    if (steps == 1).mean() >= _COUNTER_STEPS:
        return not following_word.isalnum()  # "Step 7:", and not "7 apples"
    in_no_order = 0 < (steps > 0).mean() < 1
    if min(numbers) >= 0 and in_no_order:
        return period >= _SENTENCE
    return period >= _SENTENCE and len(set(fillings)) <= _DISTINCT_FILLINGS * len(fillings)


def _alternates(sample_round: Keys) -> bool:
    """True where a round is several steps of one template ("'(' opens, ')' closes")."""
    period = len(sample_round)
    for step in range(1, period // 2 + 1):
        if period % step == 0:
            alike = (sample_round == np.roll(sample_round, step)).mean()
            if _ALIKE <= alike < _CYCLE_SHARE:
                return True
    return False


def _windows(words: _Words, lags: Positions) -> Iterator[_Loop]:
    """Windows of running text most of whose words followed their n-gram twice before."""
    copied = (lags > 0) & (lags <= _REACH)
    for first, last in _dense(copied, _WINDOW, _DUPLICATE_SHARE):
        language = words.language(first, last)
        vocabulary = np.unique(words.keys[first:last][language])
        if language.mean() >= _RUNNING_TEXT and len(vocabulary) >= _MIN_VOCABULARY:
            share = f"{copied[first:last].mean():.0%} of {last - first:,} words"
            yield f"ngrams: {share} follow the same {_NGRAM} as before", first, last


def _dense(flags: Flags, width: int, share: float) -> list[tuple[int, int]]:
    """Spans of the windows of `width` flags of which this share is set; overlapping ones joined."""
    positions = np.flatnonzero(flags)
    n_others = math.ceil(share * width) - 1  # beside the first set flag of a window
    # of each set flag, the first and last window that holds it and so many after it
    begins = np.maximum(positions[n_others:] - width + 1, 0)
    lasts = np.minimum(positions[: len(begins)], len(flags) - width)
    exist = begins <= lasts
    begins = begins[exist]
    ends = lasts[exist] + width
    if not len(begins):
        return []
    breaks = np.flatnonzero(begins[1:] > ends[:-1])
    begins = begins[np.append(0, breaks + 1)]
    ends = ends[np.append(breaks, -1)]
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
