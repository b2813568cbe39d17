"""Whether the values of a structured answer come from its document, where no right ones are known.

    document = Document("Mara Holt, born 3 May 1972, is an architect.", schema)
    document.judge({"name": "Mara Holt", "born": "1972-05-03", "fee": 900}, schema)
    → Grounding(copied=2, contradicted=("/fee: 900",), values=3, choices=0, nulls=0, unchecked=0.0)

Numbers, names, dates and ids are copied: each has to be in the document, in any of the usual forms.
A free text has to be made of the document's words for the most part, and has no name or number of
its own. Choices of an enum, true, false, null, empty values, 0 and 1, and words that the document
does not have, cannot be checked. What stands in the document at another place is not told apart.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from posttrain.records import json_text

LONG = 6  # words: more are a free text
NAMES_OF_A_VALUE = 2  # fields that may share one text
TOLERATED = 0.04  # of the values: other spellings, and what was computed
NEAR = 30  # characters around a year in which the other parts of a date stand
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*\.?")
_NUMBER = re.compile(r"(?<![^\W\d_])\d+(?:[.,]\d+)*(?![A-Z])")
_CODE = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w+")  # LS1, 4AP
_ENTITY = re.compile(r"[^\W\d_a-z][\w'’]*(?:[ \n](?:& )?[^\W\d_a-z][\w'’]*)*")
_DATE = re.compile(r"(?<!\d)\d{4}(?!\d)")
_TIMES = re.compile(r"\d+(?:am|pm|st|nd|rd|th)")
_TIME = re.compile(r"\d{1,2}[:.]\d{2}(?::\d{2})?")
_STOP_WORDS = "a an and at by for in is it of on or the to with"
_FILLERS = "n na none null unknown string text"
_EMPTY = frozenset(f"{_STOP_WORDS} {_FILLERS}".split())
_MONTHS = "january february march april may june july august september october november december"
_UNITS = {"thousand": 1e3, "k": 1e3, "million": 1e6, "m": 1e6, "billion": 1e9, "bn": 1e9, "%": 0.01}
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
_SPELLED = {word: float(value) for value, word in enumerate(_ONES.split())} | {
    "thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "seventy": 70.0, "eighty": 80.0,
    "ninety": 90.0, "hundred": 100.0, "dozen": 12.0, "half": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grounding:
    """What became of an answer's values.

    Attributes:
        copied: values that the document has; `contradicted`: copied ones that it does not have.
        values: texts and numbers that could come from the document; `choices`: those of an enum,
            true and false; `nulls`: what was left open.
        unchecked: share of all of them that nothing could be said about.
    """

    copied: int
    contradicted: tuple[str, ...]
    values: int
    choices: int
    nulls: int
    unchecked: float

    @property
    def holds(self) -> bool:
        if not self.values:
            return self.choices > 0
        few = len(self.contradicted) <= TOLERATED * self.values
        copied_most = 2 * self.copied >= self.values
        return few and copied_most and 4 * self.copied >= self.values + self.nulls


class Document:
    """The text of a prompt without the schema that it shows."""

    def __init__(self, text: str, schema: Any) -> None:
        text = _without_schema(text)
        shown = Counter(_words(json_text(schema)))
        counts = Counter(_words(text))
        if sum(counts[word] > 0 for word in shown) > 0.8 * len(shown):
            counts -= shown  # in another notation than JSON
        self._text = text
        self._codes = set(_CODE.findall(text.casefold()))
        self._squeezed = _squeezed(text)
        self._words = {_stem(word) for word in counts}
        self._starts = {word[:length] for word in counts for length in range(3, len(word))}
        self._entities = {tuple(_words(name)) for name in _ENTITY.findall(text)}
        self._numbers = set(_numbers(text))

    def judge(self, value: Any, schema: Any) -> Grounding:
        seen: dict[str, set[str]] = {}
        contradicted: list[str] = []
        copied, values, choices = 0, 0, 0
        nulls, unchecked, every = 0, 0, 0
        for pointer, leaf, chosen in _leaves(value, schema, ""):
            every += 1
            choices += chosen or isinstance(leaf, bool)
            nulls += leaf is None
            if chosen or leaf is None or isinstance(leaf, bool) or leaf in (0, 1):
                unchecked += 1
                continue
            values += 1
            held = self._has_text(leaf) if isinstance(leaf, str) else self._has_number(leaf)
            name = re.sub(r"/\d+(?=/|$)", "", pointer)
            if held and isinstance(leaf, str):
                names = seen.setdefault(_squeezed(leaf), set())
                names.add(name)
                held = len(names) <= NAMES_OF_A_VALUE and len(leaf) < max(400, len(self._text) // 2)
            copied += held is True
            unchecked += held is None
            if held is False:
                contradicted.append(f"{pointer}: {leaf!s:.60}")
        share = unchecked / every if every else 1.0
        return Grounding(copied, tuple(contradicted), values, choices, nulls, share)

    def _has_number(self, number: float) -> bool:
        return any(abs(abs(number) - known) <= 1e-9 * known for known in self._numbers)

    def _has_text(self, text: str) -> bool | None:
        """Whether the document has a text; None where nothing can be said."""
        given = _WORD.findall(text)
        content = [word for word in given if word.rstrip(".").casefold() not in _EMPTY]
        squeezed = _squeezed(text)
        has_digits = any(map(str.isdigit, text))
        if not content and not has_digits:
            return None
        unknown = [word for word in content if not self._knows(word)]
        if squeezed in self._squeezed and (has_digits or not unknown):
            return True
        # addresses of mails and pages are whole, or others
        if "@" in text or "://" in text or not self._has_digits_of(text):
            return False
        # the first word of a sentence has a capital in any case
        rest = given[1:] if any(word[0].islower() for word in given[1:]) else given
        if len(given) > LONG:
            rest = re.findall(r"(?<=[\w,;] )[^\W\d_]+", text)
        names = [word for word in unknown if word[0].isupper() and word in rest]
        if len(given) > LONG:
            return False if names else (True if 2 * len(unknown) <= len(content) else None)
        if names:
            words = set(_words(text))
            whole = any(set(name) <= words for name in self._entities if name)
            return whole and len(unknown) < len(content)
        if unknown and 2 * len(unknown) > len(content):
            return None
        return True

    def _knows(self, word: str) -> bool:
        plain = word.rstrip(".").casefold()
        return _stem(plain) in self._words or (word[-1] == "." and plain in self._starts)

    def _has_digits_of(self, text: str) -> bool:
        """Whether the numbers of a text are the document's; those of a date stand together."""
        numbers = [number for number in _numbers(text) if number]
        codes = {code for code in _CODE.findall(text.casefold()) if not _TIMES.fullmatch(code)}
        if not codes <= self._codes:
            return False
        if year := _DATE.search(text):
            others = {number for number in numbers if number != float(year[0])}
            others |= {_SPELLED_MONTHS[word] for word in _words(text) if word in _SPELLED_MONTHS}
            return any(others <= self._around(match) for match in re.finditer(year[0], self._text))
        for number in numbers:
            hour = bool(_TIME.search(text)) and "pm" in self._squeezed and 12 < number < 24
            if not self._has_number(number) and not (hour and self._has_number(number - 12)):
                return False
        return True

    def _around(self, match: re.Match[str]) -> set[float]:
        near = self._text[max(0, match.start() - NEAR) : match.end() + NEAR]
        months = {_SPELLED_MONTHS[word] for word in _words(near) if word in _SPELLED_MONTHS}
        return months | set(_numbers(near))


_SPELLED_MONTHS = {
    form: float(number)
    for number, month in enumerate(_MONTHS.split(), 1)
    for form in (month, month[:3])
}


def _leaves(value: Any, schema: Any, pointer: str) -> Iterator[tuple[str, Any, bool]]:
    """Every value that holds no others, by its pointer, and whether it is one of an enum's."""
    known = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        for name, inner in cast(dict[str, Any], value).items():
            yield from _leaves(inner, known.get("properties", {}).get(name), f"{pointer}/{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(cast(list[Any], value)):
            yield from _leaves(inner, known.get("items"), f"{pointer}/{place}")
    else:
        yield pointer, value, "enum" in known or "const" in known


def _without_schema(text: str) -> str:
    """A text without the JSON objects in it that describe types."""
    decoder, kept, at = json.JSONDecoder(), "", 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            kept, at = kept + text[at : start + 1], start + 1
            continue
        kept += text[at:start] + (" " if '"type"' in json_text(value) else text[start:end])
        at = end
    return kept + text[at:]


def _words(text: str) -> list[str]:
    return [word.rstrip(".").casefold() for word in _WORD.findall(text)]


def _stem(word: str) -> str:
    return re.sub(r"(?<=\w{3})(?:es|s)$", "", word)


def _squeezed(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _numbers(text: str) -> Iterator[float]:
    """The numbers of a text, also spelled ones, and with their unit: `14.5 million`, `20 %`."""
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
    yield from (_SPELLED[word] for word in _words(text) if word in _SPELLED)
