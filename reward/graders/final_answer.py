r"""Where a completion gives its final answer: a tag, box, JSON field or label, or the last line.

final_answer("So it is $\\boxed{\\frac{1}{2}}$.") == "\\frac{1}{2}"
final_answer("The answer is 5 km, as shown.") == "5 km"
final_answer("答案：18") == "18"

The most explicit place wins, and of two alike the later. An opening box that never closes is a
last word that cannot be read: None, and not an earlier box.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from posttrain.jsontext import load_json
from reward.graders.numbers import known_unit_length
from reward.graders.tidy import tidy

LABELS = 8  # labels that are looked at, from the last
LINE = 2000  # characters of a line that are looked at
SHORT = 40  # characters of a first line that may be the answer
CLOSING_LINES = 2  # lines without a number that may follow the answer: "Hope this helps!"
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_WORDS = (
    r"\b(?:answers?|antwort|lösung|ergebnis|réponse|respuesta|resposta|risposta|antwoord|svar|"
    r"odpowiedź|odpověď|válasz|răspuns|cevap|yanıt|vastaus|jawaban|ответ|відповідь|απάντηση|"
    r"đáp án|đáp số|trả lời)\b|答案|答え|答|正解|정답|답|الجواب|الإجابة|پاسخ|उत्तर|คำตอบ|תשובה"
)
_COPULAS = (
    r"(?:\b(?:is|are|equals|be|ist|est|es|è|é|är|jest|là|adalah)\b|:|=>?|->|\s-(?=\s)"
    r"|[是为為は는은])"
)
LABEL = re.compile(
    rf"(?:(?:{_WORDS})[ \t*_]*[^\n.:=?!不]{{0,60}}?{_COPULAS}|^[ \t]*\#{{4}})[ \t*_:]*",
    re.IGNORECASE | re.MULTILINE,
)
_MARKUP = re.compile(r"(?:\s|[*_`~]|\$\$|\\\])*")
_DOUBT = re.compile(r"\b(?:not|cannot|unsure|unknown|wrong)\b|n't\b", re.IGNORECASE)
_DENIAL = re.compile(  # in a label: "The answer cannot be", "La respuesta no es"
    r"\b(?:not|cannot|no|nicht|ne|não|non|не|ikke|inte|niet|false|wrong)\b|n't\b|\bn'|不", re.I
)
# what is behind it takes back what is before it
_CORRECTION = re.compile(
    r"\b(?:no,? wait\b|wait\b[\W]*(?:no[,:.]|actually|I\b|that)|oops|scratch that|correction:"
    r"|I made a mistake|I meant|(?:actually|sorry),? (?:it|the|that|no)\b)",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"(?:[^.!?\n]|\.(?=\d))*\?+(?!\d)")
_FINAL = re.compile(r"\bfinal answer(?: is)?\b[^\n]{0,60}\d", re.IGNORECASE)
# JSON, or as Python or YAML write it: {'answer': 18}, {answer: 1,080}
_VALUE = (
    r"""["']?\s*:\s*("(?:[^"\\\n]|\\["\\/bfnrt])*"|'[^'\\\n]*'|"""
    r"""[^\s"'{}\[\],](?:[^"'{}\[\]\n,]|,(?=\d{3}))*)"""
)
_FIELD = re.compile(
    rf"""["'{{]\s*(?:final[ _]?)?(?:answer|result|solution|choice|value){_VALUE}""", re.IGNORECASE
)
_ONLY_FIELD = re.compile(rf"""^\W*?(?:json\s*)?\{{\s*["'][^"'\n]{{1,60}}{_VALUE}\s*\}}\W*$""")


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """The text in which the answer stands: all of it in a tag, a box or a field; behind a label,
    at its head; in a line, at its end."""

    kind: Literal["tag", "box", "json", "label", "line"]
    text: str


def answer_places(text: str) -> Iterator[AnswerPlace]:
    """The places where an answer may stand, best first, in a tidied text (see `tidy.tidy`)."""
    for correction in list(_CORRECTION.finditer(text))[-1:]:
        text = text[correction.end() :].lstrip(" ,.:;\n")
    tags = [tag for tag in TAG.findall(text) if tag.strip()]
    if tags:
        inner = next((p for p in answer_places(tags[-1]) if p.kind != "line"), None)
        yield inner or AnswerPlace("tag", tags[-1].strip())
        return
    if has_box(text):
        behind = text[max(end for _, end, _ in _boxes(text)) :]
        if not _FINAL.search(behind):
            box = joined_boxes(text)
            if box is not None:
                yield AnswerPlace("box", box)
            return
        text = behind
    field = _json_field(text)
    if field is not None:
        yield AnswerPlace("json", field)
        return
    for label in list(LABEL.finditer(text))[: -LABELS - 1 : -1]:
        rest = text[label.end() : label.end() + LINE].strip()
        if rest and not _DENIAL.search(label.group()):
            yield AnswerPlace("label", rest)
    lines = [line for line in text.split("\n") if not _MARKUP.fullmatch(line)]
    for line in reversed(lines[-1 - CLOSING_LINES :]):
        line = line.strip()[-LINE:]
        told = _QUESTION.sub("", line).strip()
        if told:
            yield AnswerPlace("line", told)
        if not re.search(r"\w", line) or _DOUBT.search(line):
            return


def final_answer(text: str, *, last_line: bool = True) -> str | None:
    """The text of the final answer; None where there is none. Arguments: see `find_answer`."""
    return find_answer(text, last_line=last_line)[0]


def find_answer(text: str, *, last_line: bool = True) -> tuple[str | None, str]:
    """The text of the final answer, None where there is none, and the prose that it stands in.

    Args:
        text: a completion's answer, without its reasoning.
        last_line: whether, with neither tag, box, field nor label, the last formula or number of
            the last line that has one counts.
    """
    text = tidy(text)
    for place in answer_places(text):
        if place.kind == "label":
            if not place.text.startswith("not "):  # "The answer is not 5 but 6"
                line = _QUESTION.sub("", place.text.split("\n", 1)[0]).strip()
                return leading(line), line
        elif place.kind != "line":
            return place.text, ""
        elif last_line:
            line = _DRESS.sub("", place.text)
            answer = last(line)
            if answer is not None or re.search(r"\d", line):
                first, _, others = text.strip().partition("\n")
                return answer, f"{first} {line}" if others and len(first) < SHORT else line
    return None, ""


def _json_field(text: str) -> str | None:
    """The answer's field, or the only one, of a JSON object; numbers may be grouped, 1,080."""
    found = _FIELD.findall(text) or _ONLY_FIELD.findall(text)
    value = found[-1] if found else ""
    return (str(load_json(value)) if value.startswith('"') else value.strip("'")).strip() or None


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[^\s$\\{}]+")
# between two boxes, or two formulas, that are one answer: "$1$ and $2$"
_MARKS = r"(?:\s|\$|\\[()\[\]]|\\q?quad)*"
JOINT = re.compile(
    rf"{_MARKS}(?:,|;|,?(?:\b|\\text\s*\{{\s*)(?:for part \(\w\) |[a-z]+ )?(?:and|or)\b\s*\}}?)?"
    rf"{_MARKS}(?:[A-Za-z][\w{{}}]*\s*=\s*)?"
)


def has_box(text: str) -> bool:
    """Whether there is a box, closed or not."""
    return _BOX.search(text) is not None


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


# what may stand before the answer of a line: bullets, "1.", "(a)", "A:", "A -", "=>"
_DRESS = re.compile(
    r"^(?:[>#|`\s]|\*\*|[-+*]\s+(?=[^\d\s$\\]))*(?:[(\[]?(?:[A-Za-z]|\d{1,2})[.)\]]+\s+)?"
    r"(?:(?:[A-Za-z]\d?)?[*_]*\s*(?:->|=>|:)[*_]*\s*|[Aa]\s*-\s+)*"
)
_SPAN = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)")
_LEADS = re.compile(
    r"(?:therefore|thus|simply|just|exactly|about|approximately|equal to|given by|the|then|now|"
    r"number|value|of|a total|[,:*_`']|\\?\x22|=>|->)\s*",
    re.IGNORECASE,
)
_LEADS_TO = re.compile(r"(?:\b(?:is|are|by|to)|[=:])[\s*]*\Z")
# a remark behind the answer: "(12 on Monday)", "because 4 are sold"
_REMARK = re.compile(
    r"\s*\([^()$\\]*[A-Za-z]{2}[^()$\\]*\)[\s.!]*$|,?\s(?:because|since|where|as|given)\s.*$"
)
_DENIED = re.compile(  # "not 5 but 6", "6 instead of 5"
    r"(?:(?:\bnot|n't|\b(?:instead of|rather than|anything but|except))\s+|不是\s*)"
    r"[$*]*[+-]?\d[\d.,]*",
    re.IGNORECASE,
)
# words beside a number that make it another, or none that is meant
_BEFORE = re.compile(
    r"\b(?:twice|double|triple|half(?: of)?|root of|log|than|nearly|almost|over|under|at least|"
    r"at most|up to|minus|negative)\s\W*$",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    r"[\s$*]*(?:(?:squared|cubed|factorial|at most|at least|or more|or less)\b|"
    r"(?:times|plus|minus|choose)\s\W*\d|(?:is|was|would be)(?: not|n't| too| wrong| incorrect)\b|"
    r"이상|이하|이 아니)"
)
_SENTENCE = re.compile(r"(?<=[.!?])[*_]*\s+")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+,\d{1,2}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?:(?<![A-Za-z0-9_)])[+-])?(?:US\$|\\?[$€£¥₹₽])?(?:(?<![A-Za-z0-9_)])[+-])?"
    rf"(?:\d+\s*(?=\\[dtc]?frac)|\d+\s+(?=\d+\s*/\s*\d))?"
    rf"(?:\\[dtc]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|(?:{_DIGITS})(?:\s*/\s*\d+)?)"
    rf"(?:\s?\\?%|\s(?:percent|hundred|thousand|million|billion|trillion|dozen)s?\b)?"
    rf"[A-Za-z0-9_^°½¼¾]*(?:\{{\d\}})?"
)
_OR = re.compile(r"\s*,?\s*\b(?:or|oder|ou|или|lub|veya|atau|eller)\b\s*")
_COMMAND = re.compile(
    r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\(?:begin|end)\{[a-z]*\}|_\{[^{}]*\}|\\[A-Za-z]+"
)
_PLAIN_WORDS = frozenset([
    "and", "or", "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "atan",
    "asin", "acos", "arctan", "arcsin", "arccos", "sinh", "cosh", "tanh", "abs", "pi", "inf",
    "oo", "ln", "frac", "text",
])  # fmt: skip
_SMALL_WORDS = frozenset([
    "is", "of", "to", "it", "we", "so", "as", "be", "by", "he", "on", "if", "at", "in", "an",
    "my", "no", "do", "us", "me", "am",
])  # fmt: skip


def numbers_beside(answer: str, prose: str) -> list[str]:
    """The other numbers of the prose that an answer was read from."""
    before, _, behind = prose.rpartition(answer)
    return [m.group() for m in _NUMBER.finditer(f"{before} {behind}")]


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
    number = _NUMBER.match(line)
    return _with_unit(line, number) if number else last(line)


def last(line: str) -> str | None:
    """The last formula or number of a line: of its last sentence that has one."""
    if reads_as_math(line):
        return line
    for sentence in reversed(_SENTENCE.split(_DENIED.sub(" ", line).strip())):
        found = _last(_REMARK.sub("", sentence)) or _last(sentence)
        if found is not None or re.search(r"\d", sentence):
            return found
    return None


def _last(line: str) -> str | None:
    if reads_as_math(line):
        return line
    spans = [span for span in _SPAN.finditer(line) if reads_as_math(span.group())]
    numbers = list(_NUMBER.finditer(line))
    if spans and not (
        re.fullmatch(r"\W*[A-Za-z]\W*", spans[-1].group())  # a name is no answer
        or (numbers and _LEADS_TO.search(line, spans[-1].end(), numbers[-1].start()))
    ):
        return _joined_spans(line, spans, len(spans) - 1)
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


def _with_unit(line: str, number: re.Match[str]) -> str | None:
    """A number with its unit, or with the second choice it hedges with; None in "twice 17"."""
    if _BEFORE.search(line[: number.start()]) or _BEHIND.match(line, number.end()):
        return None
    other = _OR.match(line, number.end())
    if other:
        second = _NUMBER.match(line, other.end())
        return line[number.start() : second.end() if second else other.end()]
    rest = line[number.end() :]
    return number.group() + rest[: known_unit_length(rest)]


def reads_as_math(text: str) -> bool:
    """Whether a text holds no words other than those of formulas."""
    words: list[str] = re.findall(r"[^\W\d_]+", _COMMAND.sub(" ", text))
    return all(
        word.lower() in _PLAIN_WORDS
        or (
            word.isascii()
            and len(word) < 3
            and (word.isupper() or word.lower() not in _SMALL_WORDS)
        )
        for word in words
    ) and any(c.isalnum() for c in text)
