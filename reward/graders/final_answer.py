r"""Where a completion gives its final answer: a tag, a box, an "Answer:" line, or its last line.

final_answer("So it is $\\boxed{\\frac{1}{2}}$.") == "\\frac{1}{2}"
final_answer("The answer is 5 km, as shown.") == "5 km"

The most explicit place wins, and of two alike the later. An opening box that never closes is a
last word that cannot be read: None, and not an earlier box.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from reward.graders.numbers import known_unit_length

LINE = 2000  # characters of a line that are looked at
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
LABEL = re.compile(
    r"(?:\banswers?\b[ \t*_]*"
    r"(?:[^\n.:=?!]{0,60}?\b(?:is|are|equals|be)\b|:|=)|^[ \t]*\#{4})[ \t*_:]*",
    re.IGNORECASE | re.MULTILINE,
)


def final_answer(text: str, *, last_line: bool = True) -> str | None:
    """The text of the final answer, as it was written; None where there is none.

    Args:
        text: a completion's answer, without its reasoning.
        last_line: whether, with neither tag, box nor label, the last formula or number of the last
            line counts.
    """
    tags = TAG.findall(text)
    if tags:
        return final_answer(tags[-1], last_line=False) or tags[-1].strip() or None
    if has_box(text):
        return joined_boxes(text)
    for label in reversed(list(LABEL.finditer(text))):
        rest = text[label.end() : label.end() + LINE].strip()
        if rest and not rest.startswith("not "):
            return leading(rest.split("\n", 1)[0].strip())
    lines = [line for line in text.splitlines() if line.strip(" \t*_$`")]
    return last(lines[-1].strip()[-LINE:]) if lines and last_line else None


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[^\s$\\{}]+")
# between two boxes, or two formulas, that are one answer: "$1$ and $2$"
JOINT = re.compile(
    r"\s*(?:\$|\\\)|\\\])*\s*(?:,|;|,?\s*\b(?:and|or)\b|,?\s*\\text\{\s*(?:and|or)\s*\})"
    r"\s*(?:\$|\\\(|\\\[)*\s*(?:[A-Za-z]\w?\s*=\s*)?"
)


def has_box(text: str) -> bool:
    """Whether there is a box, closed or not."""
    return _BOX.search(text) is not None


def boxed(text: str) -> str | None:
    """The contents of the last box alone; None where there is none or it does not close."""
    boxes = list(_boxes(text))
    return boxes[-1][2].strip() or None if boxes and boxes[-1][2] is not None else None


def joined_boxes(text: str) -> str | None:
    """The last box; with those before it that only "and", "or" or a comma parts from it."""
    boxes = list(_boxes(text))
    start, _, last = boxes[-1] if boxes else (0, 0, None)
    if last is None or not last.strip():
        return None
    answers = [last.strip()]
    for before, end, contents in reversed(boxes[:-1]):
        if contents is None or not JOINT.fullmatch(text, end, start):
            break
        if contents.strip() != answers[0]:
            answers.insert(0, contents.strip())
        start = before
    return ", ".join(answers)


def _boxes(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Start, end and contents of each outermost box; contents None where it does not close."""
    done = 0
    for match in _BOX.finditer(text):
        if match.start() < done:
            continue
        end = _closing(text, match.end())
        if end is not None:
            yield match.start(), end, text[match.end() + 1 : end - 1]
            done = end
        elif text[match.end() : match.end() + 1] != "{":  # \boxed 5: LaTeX takes one token
            token = _BARE_BOX.match(text, match.end())
            yield match.start(), token.end() if token else match.end(), token and token[0]
        else:
            yield match.start(), len(text), None
            return


def _closing(text: str, start: int) -> int | None:
    """Position after the brace that closes the one at `start`."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if match.start() != start and depth == 0:
            return None
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end() if match[0] == "}" else None
    return None


_SPAN = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)")
_LEADS = re.compile(
    r"(?:therefore|thus|simply|just|exactly|about|approximately|equal to|given by|the|then|now|"
    r"number|value|of|a total|[,:*_])\s*",
    re.IGNORECASE,
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?:(?<![\w)])[+\-−–]\s?)?(?:US\$|\\?[$€£¥₹])?(?:(?<![\w)])[+\-−])?"
    rf"(?:\d+\s*(?=\\[dtc]?frac)|\d+\s+(?=\d+\s*/\s*\d))?"
    rf"(?:\\[dtc]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|(?:{_DIGITS})(?:\s*/\s*\d+)?)"
    rf"(?:\s?\\?%|\s(?:percent|hundred|thousand|million|billion|trillion|dozen)s?\b)?"
    rf"[A-Za-z0-9_^°½¼¾]*"
)
# "A: 18", "- A: \$18", "(a) 18", "1. 18", "答：18": no formulas, though without words in ASCII
_OWN_LABEL = re.compile(
    r"[-*_>`(\[ \t]*"
    r"(?:[A-Za-z][A-Za-z.]{0,5}\d?[*_\])]*\s*[:：).]|\([A-Za-z]\)|\d{1,2}[.)](?=[ \t]))"
    r"[ \t*_=≈~(]*(?=(?:[-+−$€£¥₹]|\\\$|\\[dt]?frac\{)*\d)"
    r"|\D*(?:[^\W\d_\x00-\x7f\u0370-\u03ff]{2}|[\u0400-\u04ff\u3040-\u9fff\uac00-\ud7a3])"
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
        return None if _OWN_LABEL.match(line) else line
    while match := _LEADS.match(line):
        line = line[match.end() :]
    span = _SPAN.match(line)
    if span and reads_as_math(span.group()):
        spans = [s for s in _SPAN.finditer(line) if reads_as_math(s.group())]
        return _joined_spans(line, spans, 0)
    number = _NUMBER.match(line)
    if number:
        return _with_unit(line, number)
    return last(line)


def last(line: str) -> str | None:
    """The last formula or number of a line."""
    if reads_as_math(line):
        return None if _OWN_LABEL.match(line) else line
    spans = [span for span in _SPAN.finditer(line) if reads_as_math(span.group())]
    if spans:
        return _joined_spans(line, spans, len(spans) - 1)
    numbers = list(_NUMBER.finditer(line))
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
        second = _NUMBER.match(line, other.end())
        return line[number.start() : second.end() if second else other.end()]
    return number.group() + line[number.end() :][: known_unit_length(line[number.end() :])]


def reads_as_math(text: str) -> bool:
    """Whether a text holds no words other than those of formulas."""
    words: list[str] = re.findall(r"[A-Za-z]+", _COMMAND.sub(" ", text))
    return all(
        word.lower() in _PLAIN_WORDS or (len(word) < 3 and word.lower() not in _SMALL_WORDS)
        for word in words
    ) and any(c.isalnum() for c in text)
