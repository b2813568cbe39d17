r"""Extraction of a final answer: from a tag, a box, a JSON field, a label, or the last line.

find_answer("The answer is 5 km, as shown.") == ("5 km", "5 km, as shown.")

The most explicit place wins, and of two equally explicit ones the later. A last box that never
closes is an answer that cannot be read: the result is None, and not the box before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from reward.graders.numbers import MONEY, NUMBER, SCALES, UNITS
from reward.graders.tidy import bare, tidy

LINE = 2000  # characters of a line that are read
SHORT = 40  # characters of a first line that may be the answer
CLOSING_LINES = 2  # lines without an answer that may follow it: "Hope this helps!"
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_ANSWER_WORDS = (
    r"\b(?:answers?|antwort|lösung|ergebnis|réponse|respuesta|resposta|risposta|antwoord|svar|"
    r"odpowiedź|odpověď|válasz|răspuns|cevap|yanıt|vastaus|jawaban|ответ|відповідь|απάντηση|"
    r"đáp án|đáp số|trả lời)\b|答案|答え|答|正解|정답|답|الجواب|الإجابة|پاسخ|उत्तर|คำตอบ|תשובה"
)
_COPULAS = (
    r"(?:\b(?:is|are|equals|be|ist|est|es|è|é|är|jest|là|adalah)\b|:|=>?|->|\s-(?=\s)"
    r"|[是为為は는은])"
)
LABEL = re.compile(
    rf"(?:(?:{_ANSWER_WORDS})[ \t*_]*[^\n.:=?!不]{{0,60}}?{_COPULAS}"
    # as GSM8K ends; a heading further up is none
    r"|(?<!#)\#{4}(?=[^#\n][^\n]*+\s*\Z))[ \t*_:]*"
    # the brace of a label that is set in type: "\text{Answer: } 18"
    r"(?:\}(?:[ \t~]|\\[,;:! ])*)?",
    re.IGNORECASE,
)
# of any words, in a box or tag: "Total: 18"; "John: 5, Mary: 6" is an answer
_NAME = re.compile(r"\s*[A-Za-z]{3}[A-Za-z ]*:\s+(?=[^:]+\Z)")
CROSS = "[✗✘❌❎🚫]"
_DENIAL = re.compile(  # in a label: "The answer cannot be", "La respuesta no es"
    r"\b(?:not|cannot|no|nicht|ne|não|non|не|ikke|inte|niet|false|incorrect|wrong)\b|n't\b|\bn'|不",
    re.I,
)
_DENIED_LABEL = re.compile(  # before a label: "It is not the right"
    r"(?:\b(?:not|never)\b|n['’]t\b)(?:\s+(?:the|an?|my|right|correct|final))*\s*\Z", re.I
)
# before the label of a list in the lines below: "Wrong answers:"
_WRONG_LIST = re.compile(r"^\W*(?:wrong|incorrect|false|other)[ \t]+\Z", re.I | re.M)
# phrases that take back everything before them
_CORRECTION = re.compile(
    r"\b(?:no,? wait\b|wait\b[\W]*(?:no[,:.]|actually|I\b|that)|oops|scratch that|correction:"
    r"|I made a mistake|I meant|(?:actually|sorry),? (?:it|the|that|no)\b)",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"(?:[^.!?\n]|\.(?=\d))*\?+(?!\d)")
_FINAL = re.compile(r"\bfinal answer(?: is)?\b[^\n]{0,60}\d", re.IGNORECASE)
# JSON, or as Python or YAML write it: {'answer': 18}, {answer: 1,080}
_VALUE = (
    r"""["']?\s*:\s*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\\\n]*)'|"""
    r"""([^\s"'{}\[\],](?:[^"'{}\[\]\n,]|,(?=\d{3}))*))"""
)
_FIELD = re.compile(
    rf"""["'{{]\s*(?:final[ _]?)?(?:answer|result|solution|choice|value){_VALUE}""", re.IGNORECASE
)
_ONLY_FIELD = re.compile(rf"""^\W*?(?:json\s*)?\{{\s*["'][^"'\n]{{1,60}}{_VALUE}\s*\}}\W*$""")


class AnswerPlace(NamedTuple):
    """Text in which the answer stands.

    In a tag, a box or a field the answer is all of the text; behind a label it is at its beginning,
    in a line at its end.
    """

    kind: Literal["tag", "box", "json", "label", "line"]
    text: str


def answer_places(text: str) -> Iterator[AnswerPlace]:
    """Yield the places of a text (see `tidy.tidy`) where its answer may stand, the best first.

    Text before a phrase that takes it back, such as "no, wait", counts for nothing.
    """
    corrections = list(_CORRECTION.finditer(text))
    if corrections:
        text = text[corrections[-1].end() :].lstrip(" ,.:;\n")
    text = without_denied_tags(text)
    tags = [tag for tag in TAG.findall(text) if tag.strip()]
    if tags:
        inner_place = next((p for p in answer_places(tags[-1]) if p.kind != "line"), None)
        yield inner_place or AnswerPlace("tag", tags[-1].strip())
        return
    text = _without_denied_boxes(text)
    boxes = _join_lists(text, _find_boxes(text), _is_alternative)
    if boxes:
        box = boxes[-1]
        if not _FINAL.search(text, box.end):
            if box.contents:
                yield AnswerPlace("box", box.contents)
            return
        text = text[box.end :]  # a "final answer" behind the box counts instead
    field = _read_json_field(text)
    if field is not None:
        yield AnswerPlace("json", field)
        return
    labels = [label for label in LABEL.finditer(text) if not _is_denied_label(text, label)]
    behind = text[labels[-1].end() :][:LINE].strip() if labels else ""
    if behind:
        yield AnswerPlace("label", behind)
    lines = [line for line in text.split("\n") if re.search(r"\w", line)]
    for line in reversed(lines[-1 - CLOSING_LINES :]):
        statement = _QUESTION.sub("", line.strip()[-LINE:]).strip()
        if statement:
            yield AnswerPlace("line", statement)


def find_answer(text: str, *, last_line: bool = True) -> tuple[str | None, str]:
    """Find the final answer in a text without reasoning. Returns it and the prose around it.

    Args:
        last_line: without tag, box, field and label, read the last formula or number of the last
            line that has one.

    Returns:
        The answer, None where there is none; and the prose that it stands in, "" where it is all of
        a tag, a box or a field.
    """
    text = tidy(text)
    for place in answer_places(text):
        if place.kind == "label":
            line = _QUESTION.sub("", place.text.split("\n", 1)[0]).strip()
            return leading_answer(line), line
        if place.kind != "line":
            return _without_label(place.text), ""
        if last_line:
            line = _BULLET.sub("", place.text)
            answer = trailing_answer(line)
            if answer is not None or re.search(r"\d", line):
                opening_line, _, other_lines = text.strip().partition("\n")
                if other_lines and len(opening_line) < SHORT:  # which may be the answer as well
                    return answer, f"{opening_line} {line}"
                return answer, line
    return None, ""


def _is_denied_label(text: str, label: re.Match[str]) -> bool:
    """Tell whether a label says what the answer is not, or the words before it do."""
    before = text[max(0, label.start() - DENIAL) : label.start()]
    is_wrong_list = _WRONG_LIST.search(before) and text.startswith("\n", label.end())
    denied = is_wrong_list or _DENIAL.search(label[0]) or _DENIED_LABEL.search(before)
    return bool(denied) or _is_in_address(text, label.start())


def _without_label(contents: str) -> str:
    """Take a label out of the contents of a box or tag: "\\text{Answer: } 18" → "18"."""
    answer = bare(contents)
    label = LABEL.search(answer) or _NAME.match(answer)
    if label is None or _DENIAL.search(answer[: label.end()]):
        return contents
    return answer[label.end() :]


def _read_json_field(text: str) -> str | None:
    """Value of a JSON object's answer field, or of its only field; 1,080 may be grouped."""
    values = _FIELD.findall(text) or _ONLY_FIELD.findall(text)
    value = "".join(values[-1]) if values else ""
    # models escape the backslashes of LaTeX or forget to
    return value.replace("\\\\", "\\").strip() or None


class _Span(NamedTuple):
    """A box, formula or number in a text; `contents` is "" for a box that does not close."""

    start: int
    end: int
    contents: str


# a box with its brace, or with the single token that LaTeX takes without one; any other brace
_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|[^\s$\\{}]*)|\\[\\{}](?!(?:boxed|fbox)\b)|[{}]"
)
_LINE_COMMENT = re.compile(r"(?<!\\)%[^\n]*")  # of LaTeX, in a box that begins with one
# text between two boxes, or two formulas, that are one answer: "$1$ and $2$"
_MATH_MARKS = r"(?:\s|\$|\\[()\[\]]|\\q?quad)*"
_CONJUNCTION = re.compile(
    rf"{_MATH_MARKS}"
    r"(?:,|;|,?(?:\b|\\text\s*\{\s*)(?:for part \(\w\) |[a-z]+ )?(?:and|or)\b\s*\}?)?"
    rf"{_MATH_MARKS}(?:[A-Za-z][\w{{}}]*\s*=\s*)?"
)
DENIAL = 40  # characters beside a box in which it may be denied
# words that call what stands before them wrong
VERDICT = r"(?:false|incorrect|wrong|rejected|not (?:correct|right))"
# behind an answer, and all that its line says of it: "18: False", "18 (wrong)"
_CALLED_WRONG = (
    r"[ \t$*)}\],`_]*+(?:\\[)\]])?[ \t*]*+(?:[:([–—-]|[=-]>|→)+"
    rf"[\s$*_]*+{VERDICT}[ \t.!)\]*_`]*(?:\n|\Z)"
)
_ADDRESS = re.compile(r"\b(?:(?:https?|ftp|file)://|www\.|mailto:)")
_DENIES_NEXT = re.compile(
    r"(?:\b(?:not|never|neither|nor|unlike|except|excluding|instead of|rather than|as opposed to"
    r"|anything but|by no means)\b|n['’]t\b|\\(?:ne|neq|not|nRightarrow)(?![A-Za-z])|!=|≠"
    rf"|(?:^|:)\W*{CROSS}"
    # a heading; an "incorrect option" may be what is asked for
    r"|^\W*(?:wrong|incorrect|false) (?:answers?|solutions?|options|choices)[ \t*_:]*\n[\s*_-]*)"
    r"(?:\s|[$*({}]|\\[(\[]|\\[a-z]*box|\\text)*\Z",
    re.IGNORECASE | re.MULTILINE,
)
_DENIES_LAST = re.compile(
    r"(?:[\s$*)},]|\\[)\]])*+(?:(?:(?:which|that)\s)?(?:is|was|are|would be|must be)"
    r"(?:\s+(?:clearly|also|then|now))?"
    r"(?:\s+(?:wrong|incorrect|false|too \w+)|(?:\s+not|n['’]t)\s+(?:right|correct|true|it"
    r"|possible|(?:the|an?) (?:\w+ )?(?:answer|solution)))\b"
    # in a sentence of its own
    r"|[\s.;:!—-]*+(?:(?:actually|wait|no|sorry|oops|hmm|but)\b[\s,.!]*+)*+(?:that|this|it)"
    r"(?: answer)? (?:is|was) (?:wrong|not (?:right|correct))(?=\s*(?:[.;,!]|\Z)))"
    # on its line: a cross, or a question that stays open or is answered with no
    rf"|(?:[ \t$*)}},]|\\[)\]])*+(?:{CROSS}|\?\s*(?:no\b|\Z))|{_CALLED_WRONG}",
    re.IGNORECASE,
)
# between two boxes: another sentence or line, a step or a correction
_NEXT_STATEMENT = re.compile(
    r"[\n=]|[.!?:](?:\s|\Z)|\\(?:implies|to|[A-Za-z]*[Rr]ightarrow)(?![A-Za-z])|[→⇒]|->"
    r"|\b(?:is|are|was|be|equals|becomes|gives?|giving|yields?|makes?|gets?|so|thus|hence|then"
    r"|therefore|now|no|wait|actually|correct(?:ed|ion)?|finally)\b",
    re.IGNORECASE,
)


def last_boxes(text: str) -> str | None:
    """Contents of the last box, joined with the boxes before it that belong to the same list.

    None where there is no box, "" where the last one is empty or does not close.
    """
    text = _without_denied_boxes(text)
    boxes = _join_lists(text, _find_boxes(text), _is_alternative)
    return boxes[-1].contents if boxes else None


def without_denied_tags(text: str) -> str:
    """Take tags out of a text that denies them: "<answer>5</answer> is wrong"."""
    return TAG.sub(lambda tag: "" if is_denied(text, *tag.span()) else tag[0], text)


def _without_denied_boxes(text: str) -> str:
    """Take boxes out of a text that denies them: "not \\boxed{5}", "\\boxed{5} is wrong"."""
    parts: list[str] = []
    end = 0
    for box in _find_boxes(text):
        if is_denied(text, box.start, box.end):
            parts.append(text[end : box.start])
            end = box.end
    return "".join(parts) + text[end:]


def is_denied(text: str, start: int, end: int) -> bool:
    """Tell whether the words right before or right behind an answer deny it."""
    before = text[max(0, start - DENIAL) : start]
    denied_before = _DENIES_NEXT.search(before) or _DENIED_LABEL.search(before)
    denied = denied_before or _DENIES_LAST.match(text, end)
    return bool(denied) or _is_in_address(text, start)


def _is_in_address(text: str, start: int) -> bool:
    """Tell whether a place is right behind the address of a page, file or mailbox: a part of it."""
    word = re.split(r"[\s<>]", text[max(0, start - LINE) : start])[-1]
    address = _ADDRESS.search(word)
    # "https://a.b: 5" is an address and an answer
    return address is not None and (address.end() == len(word) or word[-1] not in ".,:;)]")


def _is_alternative(between: str) -> bool:
    """Tell whether the text between two boxes lets both of them stand: "and", or "or maybe".

    Such a text is a few words in one sentence, without a conclusion.
    """
    if _CONJUNCTION.fullmatch(between):
        return True
    few_words = len(between) <= DENIAL and len(re.findall(r"\w+", between)) <= 4
    return few_words and not _NEXT_STATEMENT.search(between)


def _find_boxes(text: str) -> Iterator[_Span]:
    """Yield the boxes of a text that are not inside another one, with balanced braces inside."""
    start = 0
    contents_start = 0
    depth = 0
    for token in _BOX_OR_BRACE.finditer(text):
        opens_brace = "{" in (token[0], token[1])
        is_box = token[1] is not None
        if depth:
            if opens_brace:
                depth += 1
            elif token[0] == "}":
                depth -= 1
            if not depth:
                contents = text[contents_start : token.start()].strip()
                if contents.startswith("%") and "\n" in contents:
                    contents = _LINE_COMMENT.sub("", contents).strip()
                yield _Span(start, token.end(), contents)
        elif is_box and opens_brace:
            start = token.start()
            contents_start = token.end()
            depth = 1
        elif is_box:
            yield _Span(token.start(), token.end(), token[1])
    if depth:
        yield _Span(start, len(text), "")


def _join_lists(
    text: str, spans: Iterable[_Span], joins: Callable[[str], object] = _CONJUNCTION.fullmatch
) -> list[_Span]:
    """Join spans into one that holds a list where `joins` accepts the text between them."""
    joined: list[_Span] = []
    for span in spans:
        previous = joined[-1] if joined else span
        both_read = previous.contents and span.contents
        if joined and both_read and joins(text[previous.end : span.start]):
            contents = previous.contents
            if span.contents != previous.contents:
                contents = f"{previous.contents}, {span.contents}"
            joined[-1] = _Span(previous.start, span.end, contents)
        else:
            joined.append(span)
    return joined


# marks before the answer of a line: bullets, "1.", "(a)", "A:", "A -", "=>"
_BULLET = re.compile(
    r"^(?:[>#|`\s]|\*\*|[-+*]\s+(?=[^\d\s$\\]))*(?:[(\[]?(?:[A-Za-z]|\d{1,2})[.)\]]+\s+)?"
    r"(?:(?:[A-Za-z]\d?)?[*_]*\s*(?:->|=>|:)[*_]*\s*|[Aa]\s*-\s+)*"
)
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)"
)
# a remark behind the answer: "(12 on Monday)"
_REMARK = re.compile(r"\s*\([^()$\\]*[A-Za-z]{2}[^()$\\]*\)[\s.!]*$")
_DENIED = re.compile(  # "not 5 but 6", "6 instead of 5"
    r"(?:(?:\b(?:not|nicht|pas|не|instead of|rather than|anything but|except)|n't(?: be)?)\s+"
    r"|不是\s*)[$*]*[+-]?\d[\d.,]*",
    re.IGNORECASE,
)
# words before or behind a number that make it another one, or one that is not meant
_BEFORE = re.compile(
    r"\b(?:twice|double|triple|half(?: of)?|root of|log|than|nearly|almost|over|under|at least|"
    r"at most|up to|minus|negative|or|oder|ou|или|lub|veya|atau|eller)\s\W*$",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    r"[\s$*]*(?:(?:squared|cubed|factorial|at most|at least)\b|,?\s*or\b(?! so\b)|"
    r"(?:times|plus|minus|choose)\s\W*\d|(?:is|was|would be)(?: not|n't| too| wrong| incorrect)\b|"
    rf"(?i:{_CALLED_WRONG})|"
    r"이상|이하|이 아니)"
)
_NUMBER = re.compile(
    r"(?=[-+.\d$€£¥₹₽\\U])"  # passes over most places at once
    rf"(?:(?:(?<![A-Za-z0-9_)])[+-])?(?:{MONEY})?(?:\d+\s*)?"
    rf"\\[dtc]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|{NUMBER})"
    rf"(?:\s?\\?%|\s(?:percent|{'|'.join(SCALES)})s?\b)?"
    rf"[A-Za-z0-9_]*(?:\^\{{?-?\w+\}}?)?{UNITS}"
)
_COMMAND = re.compile(
    r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\(?:begin|end)\{[a-z]*\}|_\{[^{}]*\}|\\[A-Za-z]+"
)
# words that formulas contain
_TRIGONOMETRY = frozenset(
    f"{prefix}{function}" for function in ("sin", "cos", "tan") for prefix in ("", "a", "arc")
) | {"sinh", "cosh", "tanh", "cot", "sec", "csc"}
_MATH_WORDS = _TRIGONOMETRY | frozenset(
    {"and", "or", "log", "ln", "exp", "sqrt", "abs", "pi", "inf", "oo", "frac", "text"}
)
# words of two letters, which are not products of two variables
_SMALL_WORDS = frozenset(
    {"it", "we", "he", "my", "us", "me", "is", "of", "to", "so", "as", "be", "by", "on", "if"}
    | {"at", "in", "an", "no", "do", "am"}
)


def numbers_beside(answer: str, prose: str) -> list[str]:
    """Find the other numbers in the prose that an answer was read from."""
    before, _, behind = prose.rpartition(answer)
    return [number.group() for number in _NUMBER.finditer(f"{before} {behind}")]


def leading_answer(line: str) -> str | None:
    """Find the answer at the beginning of a line that follows a label, or else at its end."""
    if reads_as_math(line):
        return line
    line = line.lstrip(" *_`'\",:")
    formulas = _find_formulas(line)
    if formulas and formulas[0].start == 0:
        return formulas[0].contents
    numbers = _find_numbers(line)
    if numbers and numbers[0].start == 0:
        return _number_as_meant(line, numbers[0])
    return trailing_answer(line)


def trailing_answer(line: str) -> str | None:
    """Find the last formula or number of a line, before a remark in brackets if there is one."""
    if reads_as_math(line):
        return line
    line = _DENIED.sub(" ", line)
    return _last_expression(_REMARK.sub("", line)) or _last_expression(line)


def _last_expression(line: str) -> str | None:
    """Find the formula or number that ends last."""
    formulas = _find_formulas(line)
    numbers = _find_numbers(line)
    if formulas and (not numbers or numbers[-1].end <= formulas[-1].end):
        return formulas[-1].contents
    return _number_as_meant(line, numbers[-1]) if numbers else None


def _find_formulas(line: str) -> list[_Span]:
    """Find formulas in math delimiters; those of a list are one."""
    formulas: list[_Span] = []
    for match in _FORMULA.finditer(line):
        if reads_as_math(match.group()):
            formulas.append(_Span(*match.span(), match[match.lastindex or 0].strip()))
    return _join_lists(line, formulas)


def _find_numbers(line: str) -> list[_Span]:
    """Find the numbers of a line."""
    return [_Span(*match.span(), match.group()) for match in _NUMBER.finditer(line)]


def _number_as_meant(line: str, number: _Span) -> str | None:
    """Text of a number; None if a word beside it changes it or adds another: "twice 17"."""
    changed = _BEFORE.search(line[: number.start]) or _BEHIND.match(line, number.end)
    return None if changed else number.contents


def reads_as_math(text: str) -> bool:
    """Tell whether a text holds no words other than those of formulas."""
    if not any(character.isalnum() for character in text):
        return False
    words: list[str] = re.findall(r"[^\W\d_]+", _COMMAND.sub(" ", text))
    return all(word.lower() in _MATH_WORDS or _reads_as_product(word) for word in words)


def _reads_as_product(word: str) -> bool:
    """Tell whether a word is one variable or the product of two: "x", "AB", but not "is"."""
    if not word.isascii() or len(word) > 2:
        return False
    return word.isupper() or word.lower() not in _SMALL_WORDS
