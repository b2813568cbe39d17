"""Pathological repetition: traces and answers that go round in circles (paper 3.1.3).

A compression ratio picks the few texts worth a look. In them, two rules: an exact *cycle*, most of
whose words equal the word one round before, and a window most of whose *n-grams* stood before.

What tells a loop from honest steps ("Turn 7: Ada passes the coin to Bo.") is where rounds differ.
Steps fill in a template: they differ at the same place in every round, be it a number or a name. A
loop is the same to the letter, or its changes fall anywhere.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_builders.dedup.words import runs
from data_builders.rows.raw import Match
from posttrain.config.filters import RepetitionFilter

# an item's number; an ideograph, a kana, a picture; up to 16 letters, digits or signs; a line end;
# 16 blanks
_WORD = re.compile(
    r"(?<=\n)\d{1,4}[.)](?=\s)|[\u3040-\u30ff\u3400-\u9fff]|[^\W\d\u3040-\u30ff\u3400-\u9fff]{1,16}"
    r"|[\U0001f000-\U0001faff]|\d{1,16}|\n|[^\S\n]{16}|[^\w\s\U0001f000-\U0001faff]{1,16}"
)
_ITEM = re.compile(r"\d+[.)]")
_LANGUAGE = re.compile(r"[^\W\d]{2,15}|[\u3040-\u30ff\u3400-\u9fff]")
_CHUNK, _BEFORE = 1000, 1 << 15  # bytes, compressed after so many before them
_OPEN = 0.55  # of the ratio, reached by LZ4, leaves open whether zlib reaches it
_GRAMS = (4, 16, 64)  # words; the distances between equal ones are candidate periods
_CANDIDATES = 8  # periods tried of each
_SLOT = 0.4  # share of the rounds in which a place must differ to be a template's slot
_TEMPLATE_SHARE = 0.9  # of the words equal: slots are counted as far as this reaches
_SLOTS = 0.02  # of a round's words may be slots: in long rounds a counter is no content
_BARE = 0.25  # share of words of language below which a stretch is a grid, a ruler, digits
_BARE_SHARE, _ROW_ROUNDS = 0.99, 16  # of whose words must be equal, for so many rounds,
_BARE_VOCABULARY, _MANY_ROUNDS = 6, 64  # or for these if a round has so few distinct words
_ALIKE = 0.5  # share of its words that a round's steps have in common: a state that goes to and fro
_REACH = 2  # windows; farther back the names and numbers of any template return by chance
_RUNNING_TEXT = 0.5  # share of words of language of a window, and
_VOCABULARY = 20  # distinct ones in it; fewer make a list of moves

Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a text; all arrays are (words,)."""

    keys: Keys  # equal where words are; the numbers of list items are all equal
    language: Flags  # of 2 to 15 letters, or an ideograph
    items: Flags  # numbers of list items
    cut_off: bool  # the text stops within a sentence, in a line that no other line equals


def find_repetition(text: str, limits: RepetitionFilter) -> Match | None:
    """The first loop of a text; the detail names the rule, "cycle" or "ngrams"."""
    if not _compresses(text, limits):
        return None
    words = _split(text)
    for detail, first, last in chain(_cycles(words, limits), _windows(words, limits)):
        spans = [match.span() for match in islice(_WORD.finditer(text), first, last)]
        return Match(detail, spans[0][0], spans[-1][1])
    return None


def _compresses(text: str, limits: RepetitionFilter) -> bool:
    """Whether any chunk compresses well enough, given what stands before it.

    LZ4 looks at all, at a quarter of zlib's cost; zlib, which packs better, at what it leaves open.
    """
    data, least = text.encode("utf-8", "surrogatepass"), limits.compression_ratio
    if len(data) < 2 * limits.min_words:  # a word and a blank
        return False
    sink = pa.MockOutputStream()
    packer, size = pa.CompressedOutputStream(sink, "lz4"), 0
    for at in range(0, len(data), _CHUNK):
        chunk = data[at : at + _CHUNK]
        packer.write(chunk)
        packer.flush()
        before, size = size, sink.size()
        ratio = len(chunk) / (size - before)
        if ratio >= least:
            return True
        if ratio >= _OPEN * least:
            again = zlib.compressobj(1, wbits=-15, zdict=data[max(at - _BEFORE, 0) : at])
            if len(chunk) >= least * len(again.compress(chunk) + again.flush(zlib.Z_SYNC_FLUSH)):
                return True
    return False


def _split(text: str) -> _Words:
    words = _WORD.findall(text)
    ids = {word: number for number, word in enumerate(dict.fromkeys(words))}
    items = np.array([_ITEM.fullmatch(word) is not None for word in ids], np.bool_)
    language = np.array([_LANGUAGE.fullmatch(word) is not None for word in ids], np.bool_)
    keys = np.fromiter(map(ids.__getitem__, words), np.int64, len(words))
    end = text.rpartition("\n")[2]
    cut_off = end[-1:].isalnum() and f"\n{end}\n" not in text
    shared = np.where(items[keys], -1, keys).view(np.uint64)
    return _Words(shared, language[keys], items[keys], cut_off)


_Found = tuple[str, int, int]  # detail, first word, behind the last


def _cycles(words: _Words, limits: RepetitionFilter) -> Iterator[_Found]:
    """Stretches whose words equal the word one round before."""
    for period in _periods(words.keys):
        equal = words.keys[period:] == words.keys[:-period]
        width = max(limits.min_words, limits.min_rounds * period) - period
        for low, high in _dense(equal, width, _TEMPLATE_SHARE):
            around = equal[low:high]
            for first, last in _dense(around, width, limits.cycle_share):
                part, begin, end = around[first:last], low + first, low + last + period
                one_round = slice((begin + end - period) // 2, (begin + end + period) // 2)
                seen = around if len(around) >= 2 * limits.min_rounds * period else part
                if _steps(seen, words.items[one_round]):
                    continue
                if words.language[begin:end].mean() < _BARE:
                    few = len(np.unique(words.keys[one_round])) <= _BARE_VOCABULARY
                    shortest = period * (_MANY_ROUNDS if few else _ROW_ROUNDS)
                    if not _dense(part, max(width, shortest), _BARE_SHARE):
                        continue
                stuck = words.cut_off and end == len(words.keys)
                if not stuck and len(part) < _MANY_ROUNDS * period and _alternates(
                    words.keys[one_round], limits
                ):  # fmt: skip
                    continue
                share = f"{part.mean():.0%} of {len(part):,} words"
                yield f"cycle: {share} equal the word {period:,} before", begin, end


def _periods(keys: Keys) -> list[int]:
    """The most frequent distances between equal n-grams."""
    periods = dict[int, None]()
    for n in _GRAMS:
        counts = np.bincount(_distances(keys, n), minlength=1)
        counts[0] = 0
        order = np.argsort(-counts, kind="stable")[:_CANDIDATES]
        periods |= dict.fromkeys(order[counts[order] > 0].tolist())
    return list(periods)


def _steps(equal: Flags, items: Flags) -> bool:
    """Whether the rounds fill in a template, or are several items of a numbered list."""
    period = len(items)
    changes = np.bincount(np.flatnonzero(~equal) % period, minlength=period)
    slots = int(np.count_nonzero(changes > _SLOT * len(equal) / period))
    numbers = int(np.count_nonzero(items))
    return slots + (numbers if numbers > 1 else 0) > _SLOTS * period


def _alternates(one_round: Keys, limits: RepetitionFilter) -> bool:
    """Whether a round is several steps of one template ("'(' opens, ')' closes")."""
    period = len(one_round)
    steps = (np.roll(one_round, n) for n in range(1, period // 2 + 1) if period % n == 0)
    return any(_ALIKE <= (one_round == step).mean() < limits.cycle_share for step in steps)


def _windows(words: _Words, limits: RepetitionFilter) -> Iterator[_Found]:
    """Windows of running text most of whose n-grams stood twice before."""
    distances = _distances(words.keys, limits.ngram, nth=2)
    again = (distances > 0) & (distances <= _REACH * limits.window)
    for first, last in _dense(again, limits.window, limits.duplicate_share):
        language = words.language[first:last]
        vocabulary = np.unique(words.keys[first:last][language])
        if language.mean() >= _RUNNING_TEXT and len(vocabulary) >= _VOCABULARY:
            share, end = again[first:last].mean(), last + limits.ngram - 1
            count = f"{last - first:,} {limits.ngram}-grams"
            yield f"ngrams: {share:.0%} of {count} stood twice before", first, end


def _distances(keys: Keys, n: int, nth: int = 1) -> npt.NDArray[np.int64]:
    """How many words before each n-gram its nth equal stood, 0 where there is none."""
    hashes = runs(keys, n)
    # sorted with their places as the lowest bits: several times as fast as a stable `argsort`
    bits = np.uint64(len(hashes).bit_length())
    ranked = np.sort(hashes >> bits << bits | np.arange(len(hashes), dtype=np.uint64))
    order = (ranked & np.uint64((1 << int(bits)) - 1)).astype(np.int64)
    same = ranked[nth:] >> bits == ranked[:-nth] >> bits
    distances = np.zeros(len(hashes), np.int64)
    distances[order[nth:][same]] = (order[nth:] - order[:-nth])[same]
    return distances


def _dense(flags: Flags, width: int, share: float) -> list[tuple[int, int]]:
    """Windows of `width` of whose flags this share is set, overlapping ones joined."""
    sums = np.append(0, np.cumsum(flags))
    at = np.flatnonzero(sums[width:] - sums[:-width] >= share * width)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > width)
    begins, ends = at[np.append(0, breaks + 1)], at[np.append(breaks, -1)] + width
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
