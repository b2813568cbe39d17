r"""Where a completion gives its final answer: a tag, box, JSON field or label, or the last line.

find_answer("The answer is 5 km, as shown.") == ("5 km", "5 km, as shown.")

The most explicit place wins, and of two alike the later. An opening box that never closes is a
last word that cannot be read: None, and not an earlier box.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from posttrain.jsontext import load_json
from reward.graders.numbers import MONEY, NUMBER, SCALES, UNITS, read_number
from reward.graders.tidy import bare, tidy

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
# inside a box a label may be less explicit than in prose: "Total: 18"
_LABEL_WITHIN = re.compile(
    rf"(?:the\s+)?(?:(?:final|correct|total)\s+)?(?:{_WORDS}|\b(?:result|total|value|solution|sum|ans)\b\.?)"
    rf"[\s*_]*(?:{_COPULAS})?[\s*_:]*(?=\S)",
    re.IGNORECASE,
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
    r"""["']?\s*:\s*("(?:[^"\\\n]|\\.)*"|'[^'\\\n]*'|"""
    r"""[^\s"'{}\[\],](?:[^"'{}\[\]\n,]|,(?=\d{3}))*)"""
)
_FIELD = re.compile(
    rf"""["'{{]\s*(?:final[ _]?)?(?:answer|result|solution|choice|value){_VALUE}""", re.IGNORECASE
)
_COMMAND_IN_JSON = re.compile(r"""\\\\|\\(?!["/]|[bfnrt](?![A-Za-z]))""")
_ONLY_FIELD = re.compile(rf"""^\W*?(?:json\s*)?\{{\s*["'][^"'\n]{{1,60}}{_VALUE}\s*\}}\W*$""")


class AnswerPlace(NamedTuple):
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
    for box in _merged(text, _boxes(text))[-1:]:
        if not _FINAL.search(text, box.end):
            if box.contents:
                yield AnswerPlace("box", box.contents)
            return
        text = text[box.end :]
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


def find_answer(text: str, *, last_line: bool = True) -> tuple[str | None, str]:
    """The final answer in a completion's text without reasoning, None where there is none, and the
    prose that it stands in. With `last_line` the last formula or number of the last line that has
    one counts, where there is neither tag, box, field nor label."""
    text = tidy(text)
    for place in answer_places(text):
        if place.kind == "label":
            line = _QUESTION.sub("", place.text.split("\n", 1)[0]).strip()
            return leading(line), line
        if place.kind != "line":
            return _without_label(place.text), ""
        if last_line:
            line = _DRESS.sub("", place.text)
            answer = last(line)
            if answer is not None or re.search(r"\d", line):
                first, _, others = text.strip().partition("\n")
                return answer, f"{first} {line}" if others and len(first) < SHORT else line
    return None, ""


def _without_label(contents: str) -> str:
    """The contents of a box or tag without a label in them: "\\text{Answer: } 18"."""
    answer = bare(contents)
    label = _LABEL_WITHIN.match(answer)
    return answer[label.end() :] if label else contents


def _json_field(text: str) -> str | None:
    """The answer's field, or the only one, of a JSON object; numbers may be grouped, 1,080."""
    found = _FIELD.findall(text) or _ONLY_FIELD.findall(text)
    value = found[-1] if found else ""
    value = _COMMAND_IN_JSON.sub(r"\\\\", value)  # "\frac{1}{2}" as models write it
    return (str(load_json(value)) if value.startswith('"') else value.strip("'")).strip() or None


class _Piece(NamedTuple):
    """A box, formula or number of a text; `contents` is "" for a box that does not close."""

    start: int
    end: int
    contents: str


# a box with its brace, or with the one token that LaTeX takes without; braces, escaped or not
_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|[^\s$\\{}]*)|\\[\\{}](?!(?:boxed|fbox)\b)|[{}]"
)
# between two boxes, or two formulas, that are one answer: "$1$ and $2$"
_MARKS = r"(?:\s|\$|\\[()\[\]]|\\q?quad)*"
_JOINT = re.compile(
    rf"{_MARKS}(?:,|;|,?(?:\b|\\text\s*\{{\s*)(?:for part \(\w\) |[a-z]+ )?(?:and|or)\b\s*\}}?)?"
    rf"{_MARKS}(?:[A-Za-z][\w{{}}]*\s*=\s*)?"
)


def joined_boxes(text: str) -> str | None:
    """The last box, with those before it that only "and", "or" or a comma parts from it; None where
    there is no box, "" where the last one is empty or does not close."""
    boxes = _merged(text, _boxes(text))
    return boxes[-1].contents if boxes else None


def _boxes(text: str) -> Iterator[_Piece]:
    start, inside, depth = 0, 0, 0
    for token in _BOX_OR_BRACE.finditer(text):
        opens = "{" in (token[0], token[1])
        if depth:
            depth += 1 if opens else -1 if token[0] == "}" else 0
            if not depth:
                yield _Piece(start, token.end(), text[inside : token.start()].strip())
        elif token[1] is not None and opens:
            start, inside, depth = token.start(), token.end(), 1
        elif token[1] is not None:
            yield _Piece(token.start(), token.end(), token[1])
    if depth:
        yield _Piece(start, len(text), "")


def _merged(text: str, pieces: Iterable[_Piece], joint: re.Pattern[str] = _JOINT) -> list[_Piece]:
    """The pieces; those that only a joint parts are one, that holds a list."""
    merged: list[_Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else piece
        both = last.contents and piece.contents
        if both and joint.fullmatch(text, last.end, piece.start):
            again = piece.contents == last.contents
            contents = last.contents if again else f"{last.contents}, {piece.contents}"
            merged[-1] = _Piece(last.start, piece.end, contents)
        else:
            merged.append(piece)
    return merged


# what may stand before the answer of a line: bullets, "1.", "(a)", "A:", "A -", "=>"
_DRESS = re.compile(
    r"^(?:[>#|`\s]|\*\*|[-+*]\s+(?=[^\d\s$\\]))*(?:[(\[]?(?:[A-Za-z]|\d{1,2})[.)\]]+\s+)?"
    r"(?:(?:[A-Za-z]\d?)?[*_]*\s*(?:->|=>|:)[*_]*\s*|[Aa]\s*-\s+)*"
)
_SPAN = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)")
_LEADS = re.compile(
    r"^(?:(?:therefore|thus|simply|just|exactly|about|approximately|equal to|given by|the|then|now|"
    r"number|value|of|a total|[,:*_`']|\\?\x22|=>|->)\s*)*",
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
_NUMBER = re.compile(
    r"(?=[-+.\d$€£¥₹₽\\U])"  # for speed
    rf"(?:(?:(?<![A-Za-z0-9_)])[+-])?(?:{MONEY})?(?:\d+\s*)?\\[dtc]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|{NUMBER})"
    rf"(?:\s?\\?%|\s(?:percent|{'|'.join(SCALES)})s?\b)?"
    rf"[A-Za-z0-9_]*(?:\^\{{?-?\w+\}}?)?{UNITS}"
)
_OR = re.compile(r"\s*,?\s*\b(?:or(?! so\b)|oder|ou|или|lub|veya|atau|eller)\b\s*")
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
    line = _LEADS.sub("", line)
    for formula in _formulas(line)[:1]:
        if formula.start == 0:
            return formula.contents
    for number in _numbers(line)[:1]:
        if number.start == 0:
            return _meant(line, number)
    return last(line)


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
    formulas, numbers = _formulas(line), _numbers(line)
    if formulas and not (
        re.fullmatch(r"[A-Za-z](?:, [A-Za-z])*", formulas[-1].contents)  # a name is no answer
        or (numbers and _LEADS_TO.search(line, formulas[-1].end, numbers[-1].start))
    ):
        return formulas[-1].contents
    return _meant(line, numbers[-1]) if numbers else None


def _formulas(line: str) -> list[_Piece]:
    spans = [span for span in _SPAN.finditer(line) if reads_as_math(span.group())]
    return _merged(line, (_Piece(*s.span(), s[s.lastindex or 0].strip()) for s in spans))


def _numbers(line: str) -> list[_Piece]:
    """The numbers of a line; "5 or 6" is one, and no answer 6; "60 minutes or 1 hour" are two."""
    pieces = [_Piece(*m.span(), m.group()) for m in _NUMBER.finditer(line)]
    numbers = [read_number(bare(piece.contents)) for piece in pieces]
    units = {number.unit for number in numbers if number and number.unit}
    return pieces if len(units) > 1 else _merged(line, pieces, _OR)


def _meant(line: str, number: _Piece) -> str | None:
    """A number with what it hedges with; None in "twice 17"."""
    if _BEFORE.search(line[: number.start]) or _BEHIND.match(line, number.end):
        return None
    other = _OR.match(line, number.end)
    if other and _NUMBER.match(line, other.end()):  # "60 minutes or 1 hour"
        other = None
    return line[number.start : other.end() if other else number.end]


def reads_as_math(text: str) -> bool:
    """Whether a text holds no words other than those of formulas."""
    words: list[str] = re.findall(r"[^\W\d_]+", _COMMAND.sub(" ", text))
    return any(c.isalnum() for c in text) and all(
        word.isascii() and len(word) < 3 and (word.isupper() or word.lower() not in _SMALL_WORDS)
        for word in words
        if word.lower() not in _PLAIN_WORDS
    )
