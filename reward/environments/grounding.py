"""Check that the values of a structured answer come from its document, without knowing right ones.

    document = Document("Mara Holt, born 3 May 1972, is an architect.", schema)
    document.judge({"name": "Mara Holt", "born": "1972-05-03", "fee": 900}, schema)
    → Grounding(copied=2, contradicted=("/fee: 900",), values=3, choices=0, nulls=0, unchecked=0.0)

Each number, name, date and id has to be in the document, in any of the usual forms. A free text has
to consist mostly of the document's words, with no name or number that the document lacks. Choices
of an enum, true, false, null, empty values, 0 and 1, and words that the document does not have
cannot be checked. A value that stands in the document but belongs to another field is not noticed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from posttrain.records import json_text

LONGEST_NAME = 6  # words; a longer text is a free text
FIELDS_OF_A_TEXT = 2  # fields that may have the same text
TOLERATED = 0.04  # share of contradicted values: other spellings, and values that were computed
DATE_WINDOW = 30  # characters around a year in which the other parts of a date stand
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*\.?")
# letters of scripts that put no spaces between words, or join particles to them: Thai to Hangul
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_SCRIPT_BORDER = re.compile(
    rf"(?<=[{_UNSPACED}])(?=[^\W{_UNSPACED}])|(?<=[^\W{_UNSPACED}])(?=[{_UNSPACED}])"
)
_ISO_TIME = re.compile(r"(?<=\d)T(?=\d\d:?\d\d)|(?<=:\d\d)Z\b")  # 2024-05-02T14:03:11Z
_NUMBER = re.compile(r"(?<![^\W\d_])\d+(?:[.,]\d+)*(?![A-Z])")
_UNSPACED_WORD = re.compile(rf"[{_UNSPACED}]{{2,}}")
_CODE = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w+")  # LS1, 4AP
_ENTITY = re.compile(r"[^\W\d_a-z][\w'’]*(?:[ \n](?:& )?[^\W\d_a-z][\w'’]*)*")
_DATE = re.compile(r"(?<!\d)\d{4}(?!\d)")
_TIME_OR_ORDINAL = re.compile(r"\d+(?:am|pm|st|nd|rd|th)")
_TIME = re.compile(r"\d{1,2}[:.]\d{2}(?::\d{2})?")
_STOP_WORDS = "a an and at by for in is it of on or the to with"
_FILLERS = "n na none null unknown string text"
_EMPTY_WORDS = frozenset(f"{_STOP_WORDS} {_FILLERS}".split())
_MONTHS = "january february march april may june july august september october november december"
_UNITS = {"thousand": 1e3, "k": 1e3, "million": 1e6, "m": 1e6, "billion": 1e9, "bn": 1e9, "%": 0.01}
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
_TENS = "thirty forty fifty sixty seventy eighty ninety hundred"
_SPELLED_NUMBERS: dict[str, float] = {"dozen": 12.0, "half": 0.5}
_SPELLED_NUMBERS.update((word, float(value)) for value, word in enumerate(_ONES.split()))
_SPELLED_NUMBERS.update((word, 10.0 * tens) for tens, word in enumerate(_TENS.split(), 3))
_SPELLED_MONTHS: dict[str, float] = {}
for _number, _month in enumerate(_MONTHS.split(), 1):
    _SPELLED_MONTHS[_month] = float(_number)
    _SPELLED_MONTHS[_month[:3]] = float(_number)


@dataclass(frozen=True, slots=True)
class Grounding:
    """Result of checking an answer's values against a document.

    Attributes:
        copied: number of values that the document has.
        contradicted: pointers and values of those that it does not have.
        values: number of texts and numbers that could come from the document.
        choices: number of values of an enum, true and false.
        nulls: number of values that were left open.
        unchecked: share of all values that could not be checked.
    """

    copied: int
    contradicted: tuple[str, ...]
    values: int
    choices: int
    nulls: int
    unchecked: float

    @property
    def holds(self) -> bool:
        """True if enough is copied, and almost nothing contradicted.

        Enough is half of the values, and a quarter of the values and nulls.
        """
        if not self.values:
            return self.choices > 0
        few_contradicted = len(self.contradicted) <= TOLERATED * self.values
        half_copied = 2 * self.copied >= self.values
        quarter_copied = 4 * self.copied >= self.values + self.nulls
        return few_contradicted and half_copied and quarter_copied


class Document:
    """Text of a prompt without the schema that it shows, for looking values up."""

    def __init__(self, text: str, schema: Any) -> None:
        text = _without_schema(_spaced(text))
        schema_words = Counter(_words(json_text(schema)))
        word_counts = Counter(_words(text))
        if sum(word_counts[word] > 0 for word in schema_words) > 0.8 * len(schema_words):
            word_counts -= schema_words  # the text shows the schema in another notation than JSON
        self._text = text
        self._codes = set(_CODE.findall(text.casefold()))
        self._squeezed = _squeezed(text)
        self._stems = {_stem(word) for word in word_counts}
        self._abbreviations: set[str] = set()
        for word in word_counts:
            self._abbreviations.update(word[:length] for length in range(3, len(word)))
        self._entities = {tuple(_words(name)) for name in _ENTITY.findall(text)}
        self._numbers = set(_numbers(text))

    def judge(self, value: Any, schema: Any) -> Grounding:
        """Look up every text and number of a structured value in the document."""
        fields_by_text: dict[str, set[str]] = {}
        contradicted: list[str] = []
        leaf_count = 0
        copied = 0
        values = 0
        choices = 0
        nulls = 0
        unchecked = 0
        for pointer, leaf, is_choice in _leaves(value, schema, ""):
            leaf_count += 1
            choices += is_choice or isinstance(leaf, bool)
            nulls += leaf is None
            if is_choice or leaf is None or isinstance(leaf, bool) or leaf in (0, 1):
                unchecked += 1
                continue
            values += 1
            in_document = self._has_text(leaf) if isinstance(leaf, str) else self._has_number(leaf)
            if in_document and isinstance(leaf, str):
                # neither one text copied into many fields nor half of the document in one
                field = re.sub(r"/\d+(?=/|$)", "", pointer)
                fields = fields_by_text.setdefault(_squeezed(leaf), set())
                fields.add(field)
                short = len(leaf) < max(400, len(self._text) // 2)
                in_document = len(fields) <= FIELDS_OF_A_TEXT and short
            copied += in_document is True
            unchecked += in_document is None
            if in_document is False:
                contradicted.append(f"{pointer}: {leaf!s:.60}")
        share = unchecked / leaf_count if leaf_count else 1.0
        return Grounding(copied, tuple(contradicted), values, choices, nulls, share)

    def _has_number(self, number: float) -> bool:
        return any(
            abs(abs(number) - document_number) <= 1e-9 * document_number
            for document_number in self._numbers
        )

    def _has_text(self, text: str) -> bool | None:
        """Tell whether the document has a text; None where nothing can be said."""
        text = _spaced(text)
        words = _WORD.findall(text)
        content_words = [w for w in words if w.rstrip(".").casefold() not in _EMPTY_WORDS]
        has_digits = any(map(str.isdigit, text))
        if not content_words and not has_digits:
            return None
        unknown = [word for word in content_words if not self._has_word(word)]
        if _squeezed(text) in self._squeezed and (has_digits or not unknown):
            return True
        # an address of a mail or page that is not in the document as a whole is another one
        if "@" in text or "://" in text or not self._has_numbers_of(text):
            return False
        if len(words) > LONGEST_NAME:
            # a capital inside a sentence is a name's
            inside_sentences = re.findall(r"(?<=[\w,;] )[^\W\d_]+", text)
            if any(word[0].isupper() and word in inside_sentences for word in unknown):
                return False
            return True if 2 * len(unknown) <= len(content_words) else None
        # the first word of a sentence has a capital in any case
        is_sentence = any(word[0].islower() for word in words[1:])
        may_be_names = words[1:] if is_sentence else words
        if any(word[0].isupper() and word in may_be_names for word in unknown):
            text_words = set(_words(text))
            has_entity = any(set(entity) <= text_words for entity in self._entities if entity)
            return has_entity and len(unknown) < len(content_words)
        if unknown and 2 * len(unknown) > len(content_words):
            return None
        return True

    def _has_word(self, word: str) -> bool:
        plain = word.rstrip(".").casefold()
        if _UNSPACED_WORD.fullmatch(plain):
            return plain in self._squeezed
        return _stem(plain) in self._stems or (word[-1] == "." and plain in self._abbreviations)

    def _has_numbers_of(self, text: str) -> bool:
        """Tell whether the document has the numbers of a text; those of a date stand together."""
        numbers = [number for number in _numbers(text) if number]
        codes = {c for c in _CODE.findall(text.casefold()) if not _TIME_OR_ORDINAL.fullmatch(c)}
        if not codes <= self._codes:
            return False
        if year := _DATE.search(text):
            day_and_month = {number for number in numbers if number != float(year[0])}
            day_and_month |= _months(text)
            years = re.finditer(year[0], self._text)
            return any(day_and_month <= self._numbers_around(match) for match in years)
        for number in numbers:
            # 15:30 for the document's 3:30 pm
            is_hour = bool(_TIME.search(text)) and "pm" in self._squeezed and 12 < number < 24
            if not self._has_number(number) and not (is_hour and self._has_number(number - 12)):
                return False
        return True

    def _numbers_around(self, match: re.Match[str]) -> set[float]:
        start = max(0, match.start() - DATE_WINDOW)
        window = self._text[start : match.end() + DATE_WINDOW]
        return _months(window) | set(_numbers(window))


def _months(text: str) -> set[float]:
    """Numbers of the months that a text names."""
    return {_SPELLED_MONTHS[word] for word in _words(text) if word in _SPELLED_MONTHS}


def _leaves(value: Any, schema: Any, pointer: str) -> Iterator[tuple[str, Any, bool]]:
    """Values that contain no other values: (pointer, value, true for one of an enum)."""
    schema_fields = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        properties = schema_fields.get("properties", {})
        for name, inner in cast(dict[str, Any], value).items():
            yield from _leaves(inner, properties.get(name), f"{pointer}/{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(cast(list[Any], value)):
            yield from _leaves(inner, schema_fields.get("items"), f"{pointer}/{index}")
    else:
        yield pointer, value, "enum" in schema_fields or "const" in schema_fields


def _without_schema(text: str) -> str:
    """The text without the JSON objects in it that describe types."""
    decoder = json.JSONDecoder()
    document = ""
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            document += text[position : start + 1]
            position = start + 1
            continue
        document += text[position:start]
        document += " " if '"type"' in json_text(value) else text[start:end]
        position = end
    return document + text[position:]


def _spaced(text: str) -> str:
    """The text with room between its scripts, and between a date and its time."""
    return _SCRIPT_BORDER.sub(" ", _ISO_TIME.sub(" ", text))


def _words(text: str) -> list[str]:
    """Words of a text in lower case."""
    return [word.rstrip(".").casefold() for word in _WORD.findall(text)]


def _stem(word: str) -> str:
    """A word without the ending of a plural."""
    return re.sub(r"(?<=\w{3})(?:es|s)$", "", word)


def _squeezed(text: str) -> str:
    """Letters and digits of a text, in lower case, without anything between them."""
    return "".join(filter(str.isalnum, text.casefold()))


def _numbers(text: str) -> Iterator[float]:
    """Numbers of a text, also spelled ones, and scaled by their unit: `14.5 million`, `20 %`."""
    for match in _NUMBER.finditer(text):
        plain = re.sub(r",(?=\d{3}(?!\d))", "", match[0]).replace(",", ".")
        # dates and versions have several stops
        parts = [plain] if plain.count(".") < 2 else plain.split(".")
        unit = re.match(r"\s?(%|[a-z]+)", text[match.end() : match.end() + 12].casefold())
        for part in parts:
            number = float(part)
            yield number
            if unit is not None and unit[1] in _UNITS:
                yield number * _UNITS[unit[1]]
    yield from (_SPELLED_NUMBERS[word] for word in _words(text) if word in _SPELLED_NUMBERS)
