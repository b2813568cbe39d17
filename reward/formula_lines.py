"""One line of text → the formula, number or list in it that is the answer.

leading("5 km, as shown above.") == "5 km";  last("so $a=3$ and it costs $18 every day") == "$18"
"""

from __future__ import annotations

import itertools
import re

from reward.boxes import JOINT
from reward.units import known_unit_length

_SPAN = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)")
_LEADS = re.compile(
    r"(?:therefore|thus|simply|just|exactly|about|approximately|equal to|given by|the|then|now|"
    r"number|value|of|a total|[,:*_])\s*",
    re.IGNORECASE,
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_TOKEN = re.compile(
    rf"(?:(?<![\w)])[+\-−–]\s?)?(?:US\$|\\?[$€£¥₹])?(?:(?<![\w)])[+\-−])?"
    rf"(?:\d+\s*(?=\\[dtc]?frac)|\d+\s+(?=\d+\s*/\s*\d))?"
    rf"(?:\\[dtc]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|(?:{_DIGITS})(?:\s*/\s*\d+)?)"
    rf"(?:\s?\\?%|\s(?:percent|hundred|thousand|million|billion|trillion|dozen)s?\b)?"
    rf"[A-Za-z0-9_^°½¼¾]*"
)
_OR = re.compile(r"\s*,?\s*\bor\b\s*")
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\(?:begin|end)\{[a-z]*\}|\\[A-Za-z]+")
_PLAIN_WORDS = frozenset([
    "and", "or", "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "atan",
    "asin", "acos", "arctan", "arcsin", "arccos", "sinh", "cosh", "tanh", "abs", "pi", "inf",
    "oo", "ln", "frac", "dfrac", "tfrac", "text", "cdot", "times", "left", "right", "infty",
    "circ",
])  # fmt: skip
_SMALL_WORDS = frozenset([
    "is", "of", "to", "it", "we", "so", "as", "be", "by", "he", "on", "if", "at", "in", "an",
    "my", "no", "do", "us", "me", "am",
])  # fmt: skip


def leading(line: str) -> str | None:
    """The answer at the head of what follows a label."""
    if reads_as_math(line):
        return line
    while match := _LEADS.match(line):
        line = line[match.end() :]
    span = _SPAN.match(line)
    if span and reads_as_math(span.group()):
        spans = [s for s in _SPAN.finditer(line) if reads_as_math(s.group())]
        return _joined_spans(line, spans, 0)
    number = _TOKEN.match(line)
    if number:
        return _with_unit(line, number)
    return last(line)


def last(line: str) -> str | None:
    """The last formula or number of a line."""
    if reads_as_math(line):
        return line
    spans = [span for span in _SPAN.finditer(line) if reads_as_math(span.group())]
    if spans:
        return _joined_spans(line, spans, len(spans) - 1)
    numbers = list(_TOKEN.finditer(line))
    if not numbers:
        return None
    first = len(numbers) - 1  # "5 or 6" is no answer 6
    while first and _OR.fullmatch(line, numbers[first - 1].end(), numbers[first].start()):
        first -= 1
    if first < len(numbers) - 1:
        return line[numbers[first].start() : numbers[-1].end()]
    return _with_unit(line, numbers[-1])


def _joined_spans(line: str, spans: list[re.Match[str]], chosen: int) -> str:
    """The chosen formula with its neighbours that "and", "or" or a comma joins to it."""
    joint = [JOINT.fullmatch(line, a.end(), b.start()) for a, b in itertools.pairwise(spans)]
    low = high = chosen
    while low and joint[low - 1]:
        low -= 1
    while high < len(joint) and joint[high]:
        high += 1
    return ", ".join(next(filter(None, span.groups())).strip() for span in spans[low : high + 1])


def _with_unit(line: str, number: re.Match[str]) -> str:
    """A number with the unit behind it, or with the second choice it hedges with."""
    other = _OR.match(line, number.end())
    if other:
        second = _TOKEN.match(line, other.end())
        return line[number.start() : second.end() if second else other.end()]
    return number.group() + line[number.end() :][: known_unit_length(line[number.end() :])]


def reads_as_math(text: str) -> bool:
    """Whether a text holds no words other than those of formulas."""
    words: list[str] = re.findall(r"[A-Za-z]+", _COMMAND.sub(" ", text))
    return all(
        word.lower() in _PLAIN_WORDS or (len(word) < 3 and word.lower() not in _SMALL_WORDS)
        for word in words
    ) and any(c.isalnum() for c in text)
