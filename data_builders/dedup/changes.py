"""What the differences of two texts are: slips of single characters, or something else said.

changes_of("tom has five apples", "tom has fve aples", spans)  → Changes(slips=2)
changes_of("tom has 5 apples", "ann has 7 apples", spans)      → Changes(exchanged=2)

Characters edited at random damage words: a long word stays near to what it was, letters get into
numbers, words fall apart or run together. Whoever makes another exercise exchanges, inserts or
deletes whole words, numbers and signs, or makes one and the same change in several places. Some
changes can be either: a letter of a short word, two of a long one.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

from data_builders.dedup.spans import Span

Kind = Literal["slip", "doubtful", "exchanged", "layout"]
_IDEOGRAPH = "\u3040-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_IDEOGRAPH}]|[^\W_{_IDEOGRAPH}]+|[^\w\s]|_")
_DIGIT = re.compile(r"\d")
_ONE_IDEOGRAPH = re.compile(f"[{_IDEOGRAPH}]")
_OPERATORS = frozenset("+=<>^%&|~!≤≥≠±×÷−√")
_BETWEEN_WORDS = frozenset("*/")  # operators where they stand for another sign, or else layout
_BRACKETS, _STOPS = frozenset("()[]{}"), frozenset(".?。")
_LONG = 4  # letters of a word in which one edited letter is taken for a slip
# no exercise has another word in the place of one of these, but for another of them
_FUNCTION_WORDS = frozenset(
    """a an the of to in on at by for from with into and or but if then than that this these those
    there is are was were be been am do does did has have had will would can could may must i you he
    she it we they me him her us them my your his its our their as so how who
    what when where why which""".split()  # noqa: SIM905  a list of seventy strings reads worse
)
_NEAR = 3  # a third of the letters may differ in what is doubtful; more is another word
_BRIDGE = 2  # places with so many equal tokens between them are one passage
_SLACK, _DENSE = 3, 0.15  # a passage with more edits than this was exchanged


@dataclass(frozen=True, slots=True)
class Changes:
    """How many changes of each kind; `passage`: whether a whole passage was exchanged."""

    slips: int = 0
    doubtful: int = 0
    exchanged: int = 0
    passage: bool = False


class _Place(NamedTuple):
    """Tokens [start, end) of one text for those of the other."""

    start: int
    end: int
    other_start: int
    other_end: int


def changes_of(one: str, other: str, spans: Sequence[Span]) -> Changes:
    """The kinds of all differences.

    Args:
        spans: of `spans.differing`, in order.
    """
    if not spans:
        return Changes()
    tokens, other_tokens = _Tokens(one), _Tokens(other)
    places = _places(tokens, other_tokens, spans)
    kinds: Counter[Kind] = Counter()
    seen: Counter[tuple[str, str, Kind]] = Counter()
    for place in places:
        before, after = tokens.words(place[:2]), other_tokens.words(place[2:])
        if before or after:
            seen[before, after, _kind(before, after, tokens.near(place[:2]))] += 1
        else:
            kinds[_sign_kind(tokens, other_tokens, place)] += 1
    for (before, after, kind), times in seen.items():
        if times > 1 and kind != "exchanged" and before != after:
            kinds["exchanged"] += 1
        else:
            kinds[kind] += times
    return Changes(
        kinds["slip"],
        kinds["doubtful"],
        kinds["exchanged"],
        any(_is_passage(tokens, other_tokens, place) for place in _bridged(places)),
    )


class _Tokens:
    """The words and signs of a text, and where they are."""

    def __init__(self, text: str) -> None:
        found = list(_TOKEN.finditer(text))
        self.starts = [match.start() for match in found]
        self.ends = [match.end() for match in found]
        self.texts = [match.group() for match in found]

    def touched(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that have a character in [start, end), or inside which start = end lies."""
        first = bisect_right(self.ends, start)
        return first, max(first, bisect_left(self.starts, end))

    def before(self, first: int, start: int) -> int:
        """How many characters of the first token touched are before `start`."""
        return max(start - self.starts[first], 0) if first < len(self.starts) else 0

    def after(self, last: int, end: int) -> int:
        """How many characters of the last token touched are after `end`."""
        return max(self.ends[last - 1] - end, 0) if last else 0

    def words(self, span: tuple[int, int]) -> str:
        """The letters and digits of some tokens, in one."""
        return "".join(t for t in self.texts[span[0] : span[1]] if t[0].isalnum())

    def near(self, span: tuple[int, int]) -> tuple[str, str]:
        """The tokens before and after some, "" at the ends."""
        before = self.texts[span[0] - 1] if span[0] else ""
        return before, self.texts[span[1]] if span[1] < len(self.texts) else ""


def _places(tokens: _Tokens, other: _Tokens, spans: Sequence[Span]) -> list[_Place]:
    """The tokens that the spans touch; spans that touch the same token are one place."""
    places: list[_Place] = []
    for span in spans:
        start, end, other_start, other_end = span
        while True:  # what is the middle of a word in either text is part of the place in both
            place = _Place(*tokens.touched(start, end), *other.touched(other_start, other_end))
            before = max(tokens.before(place[0], start), other.before(place[2], other_start))
            after = max(tokens.after(place[1], end), other.after(place[3], other_end))
            if not before and not after:
                break
            start, other_start = max(start - before, 0), max(other_start - before, 0)
            end, other_end = end + after, other_end + after
        if places and (place[0] < places[-1][1] or place[2] < places[-1][3]):
            place = _joined(places.pop(), place)
        places.append(place)
    return places


def _joined(one: _Place, other: _Place) -> _Place:
    return _Place(
        min(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), max(one[3], other[3])
    )


def _bridged(places: Sequence[_Place]) -> list[_Place]:
    found: list[_Place] = []
    for place in places:
        if found and place.start - found[-1].end <= _BRIDGE:
            place = _joined(found.pop(), place)
        found.append(place)
    return found


def _is_passage(tokens: _Tokens, other: _Tokens, place: _Place) -> bool:
    before, after = tokens.words(place[:2]), other.words(place[2:])
    limit = _SLACK + _DENSE * max(len(before), len(after))
    return Levenshtein.distance(before, after, score_cutoff=int(limit)) > limit


def _kind(before: str, after: str, beside: tuple[str, str]) -> Kind:
    """Of a place in which at least one of the texts has letters or digits.

    Args:
        beside: the tokens next to it.
    """
    if _DIGIT.search(before) or _DIGIT.search(after):
        return _number_kind(before, after)
    if not before or not after:
        strange = _is_latin(before or after) and any(map(_ONE_IDEOGRAPH.match, beside))
        return "exchanged" if len(before or after) > 1 else "slip" if strange else "doubtful"
    distance, size = Levenshtein.distance(before, after), max(len(before), len(after))
    if _ONE_IDEOGRAPH.search(before) or _ONE_IDEOGRAPH.search(after):
        strange = _is_latin(before) != _is_latin(after)
        return "slip" if strange else "doubtful" if distance < size else "exchanged"
    function_word = size > 1 and (before in _FUNCTION_WORDS) != (after in _FUNCTION_WORDS)
    if distance <= 1 and (min(len(before), len(after)) >= _LONG or function_word):
        return "slip"
    if size > 1 and (distance <= 1 or _NEAR * distance <= size):
        return "doubtful"
    return "exchanged"


def _number_kind(before: str, after: str) -> Kind:
    """A letter in a number of several digits, or a digit in a long word, is a slip."""
    if not before or not after or (before.isdigit() and after.isdigit()):
        return "exchanged"
    distance, shorter = Levenshtein.distance(before, after), min(len(before), len(after))
    same_digits = _DIGIT.findall(before) == _DIGIT.findall(after)
    if before.isdigit() or after.isdigit():
        number = before if before.isdigit() else after
        slip, doubtful = len(number) > 1, True
    else:
        slip = doubtful = same_digits or before.isalpha() or after.isalpha()
    if distance > 1 or not doubtful:
        return "exchanged"
    return "slip" if slip and shorter >= (2 if before.isdigit() else _LONG) else "doubtful"


def _is_latin(text: str) -> bool:
    return text.isascii() and text.isalpha()


def _sign_kind(tokens: _Tokens, other: _Tokens, place: _Place) -> Kind:
    """Signs at a word are punctuation; operators, and signs among others or numbers, are not."""
    before = {*tokens.texts[place.start : place.end]}
    after = {*other.texts[place.other_start : place.other_end]}
    signs = before | after
    if signs & _OPERATORS or (before and after and signs & _BETWEEN_WORDS):
        return "exchanged"
    beside = tokens.near(place[:2])
    at_word = any((len(t) > 1 and t.isalpha()) or _ONE_IDEOGRAPH.match(t) for t in beside)
    if not at_word and not ("" in beside and signs <= _STOPS):
        return "exchanged"
    return "doubtful" if signs & _BRACKETS else "layout"
