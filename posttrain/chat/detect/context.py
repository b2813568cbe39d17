"""Judge whether a candidate is called or merely shown, by its surroundings and by the prompt.

A call stands on a line of its own, at a sentence's end, or behind a marker. In inline code or in
quotation marks it is shown; a fenced block holds a call only if it holds nothing else. A prompt
that asks *about* calls is answered with calls that are shown, unless they are of declared tools.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from posttrain.chat.detect.requested import RequestedCall, to_fill_in
from posttrain.chat.detect.shapes import TextReader

_SENTENCE = re.compile(r"[.!?。！？](?=\s|$)|\n")
_CALLS = (
    r"(?:\b(?:tool|function|plugin)s?[-_ ]?(?:call(?:s|ing|ers?)?|us(?:e|age)|invocations?|"
    r"schemas?|definitions?|format)\b|<[|/]?\w*(?:tool|function|python_tag)|\[tool_calls|\bMCP\b|"
    r"\bmodel context protocol\b|\b(?:openai|anthropic|chat completions?|gemini|mistral|llama|"
    r"qwen|hermes|nemotron|deepseek|cohere)\b[^.\n]{0,40}\b(?:api|format|template|tool|function|"
    r"call)s?\b|\bchat[- _]template|\bspecial tokens?\b|\bsystem prompt|(?-i:\bReAct\b)|"
    r"\blangchain\b|\bagent(?:ic)? (?:framework|loop|prompt|format|trace|log)s?\b|"
    r"工具调用|函数调用|系统提示)"
)
_CALLS_TOPIC = re.compile(_CALLS, re.I)
_WRITING = (
    r"(?:show|giv(?:e|ing)|writ(?:e|ing)|provide|produce|generate|draft|convert|translate|format|"
    r"demonstrate|illustrate|render|print|express|fill in|complete|quote|repeat|reproduce)"
)
# questions about calls, or requests to write *a call*, not to write something *with* one
_ASKING = re.compile(
    r"\b(?:what|how|why|which|when|where|explain|describe|document(?:ation)?|tell me about|"
    r"difference|compare|summari[sz]e|tutorial|guide|teach|understand|mean(?:s|ing)?|stands? for|"
    r"correct|valid|review|debug|fix|wrong|bug|parse[rsd]?|parsing|regex|extract|detect|implement|"
    r"code|template|schema|should|can you|looks? like|examples?|samples?)\b|"
    r"什么|如何|怎么|为什么|解释|说明|介绍|示例|例子|展示|"
    rf"\b{_WRITING}\b(?:(?!\b(?:using|use|with|via|through|by|and|then|from|if)\b)"
    rf"[^.\n]){{0,80}}{_CALLS}",
    re.I,
)
_DATA = re.compile(
    r"(?<![\w./-])(?:json|jsonl|ya?ml|toml|payload|manifest|openapi|schema)(?![\w-]|\.\w)",
    re.I,
)
_CODE = re.compile(
    r"\b(?:python|javascript|typescript|java|kotlin|swift|c\+\+|c#|golang|ruby|php|sql|html|css|xml|"
    r"svg|latex|bash|powershell|matlab|regexp?|pseudo-?code|source code|one-liner|"
    r"unit tests?)\b(?!\.\w)|"
    r"\b(?:writ(?:e|ing)|creat(?:e|ing)|implement|define|develop|build|generat(?:e|ing)|show|"
    r"complete|fix|debug|document|example|how (?:do|to|can)|what (?:is|are|does))\b[^.\n]{0,80}"
    r"\b(?:code|scripts?|programs?|functions?|algorithms?|commands?|api|endpoints?|templates?)\b|"
    r"代码|程序|脚本|语句|函数",
    re.I,
)
_OPEN_QUOTE = re.compile(r"[\"'“‘«„「『(=]$")
# what may follow a call on its line: punctuation, a tag, another call
_TRAIL = re.compile(r"[\s,;.\]})]*(?:$|<|\[/?[A-Z]|[\[{]|`{3}|✿)")
_FENCE = re.compile(
    r"^[ \t>]*(`{3,}|~{3,})[^\n`]*(?:\n|\Z)(?P<body>.*?)(?:^[ \t>]*\1[`~]*+[ \t]*+(?!\w)|\Z)",
    re.M | re.S,
)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)\1(?!`)")
_NEARBY = 240  # characters around a candidate that are looked at, so that time stays linear
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text that has the shape of one or more calls, or of data to be passed over.

    Attributes:
        form: notation that it is written in.
        start, end: span in the text.
        requested: the calls, `RequestedCall(None)` where nothing of one can be read; none for data.
        plain: true if ordinary code or markup may look the same.
        marked: true if it stands behind a marker and its name could be read.
    """

    form: str
    start: int
    end: int
    requested: tuple[RequestedCall, ...]
    plain: bool = False
    marked: bool = False


class Question:
    """The request of a prompt, its last user message, read by English and some Chinese words."""

    def __init__(self, prompt: str) -> None:
        self.text = prompt if len(prompt) <= 8000 else f"{prompt[:4000]}\n{prompt[-4000:]}"

    @cached_property
    def about_calls(self) -> bool:
        """True if it asks about tool calls (notation, API, parser, template) or for one to show."""
        for sentence in _SENTENCE.split(self.text):
            if _CALLS_TOPIC.search(sentence) and _ASKING.search(sentence):
                return True
        return False

    @cached_property
    def wants_data(self) -> bool:
        """True if it asks for JSON or another structure."""
        return _DATA.search(self.text) is not None

    @cached_property
    def wants_code(self) -> bool:
        """True if it asks for code or markup."""
        return _CODE.search(self.text) is not None


class Context(TextReader):
    """A part of an output, the question it answers and the names of the declared tools."""

    def __init__(self, text: str, question: Question, declared: Collection[str]) -> None:
        super().__init__(text)
        self.question = question
        self.declared = declared

    def before(self, position: int) -> str:
        """Text of the line before a position (the last few hundred characters)."""
        return self.text[max(0, position - _NEARBY) : position].rpartition("\n")[2]

    def after(self, position: int) -> str:
        """Text of the line behind a position (the first few hundred characters)."""
        return self.text[position : position + _NEARBY].partition("\n")[0]

    def fence(self, position: int) -> Span | None:
        """Body of the fenced block around a position."""
        return _span_around(position, self._fenced_bodies)

    def declares(self, requested: Collection[RequestedCall]) -> bool:
        """Check that there are calls and that each names a declared tool."""
        return bool(requested) and all(own_name(call.name) in self.declared for call in requested)

    def shows(self, candidate: Candidate, previous_end: int) -> bool:
        """Check if a candidate is shown and not called.

        Args:
            candidate: text of a call's shape.
            previous_end: end of the call before it.
        """
        start = candidate.start
        question = self.question
        asks_for_text = candidate.plain and (question.wants_code or question.wants_data)
        asks_to_show = question.about_calls or asks_for_text
        if to_fill_in(candidate.requested):
            return True
        if asks_to_show and not self.declares(candidate.requested):
            return True
        if fence := self.fence(start):  # a block is a call only if it holds nothing else
            before = self.text[max(fence[0], previous_end, start - _NEARBY) : start]
            behind = self.text[candidate.end : min(fence[1], candidate.end + _NEARBY)].strip()
            goes_on = behind and not re.match(r"[\[{<,;✿]|[\w.]+\(|tool|function", behind)
            return bool(before.strip(" \t\r\n,;[") or goes_on)
        if inline := _span_around(start, self._inline_codes):  # called only as a whole line
            begins_line = not self.before(inline[0]).strip("*- ")
            return not begins_line or not _TRAIL.match(self.after(inline[1]))
        before = self.before(start).rstrip()
        if _OPEN_QUOTE.search(before):
            return True
        follows_no_word = not before[-1:].isalnum()
        ends_line = _TRAIL.match(self.after(candidate.end)) is not None
        return not (follows_no_word or ends_line or candidate.marked)

    @cached_property
    def _inline_codes(self) -> list[Span]:
        return [match.span() for match in _INLINE.finditer(self.text)]

    @cached_property
    def _fenced_bodies(self) -> list[Span]:
        """Bodies of fenced blocks, in order; one that never closes runs to the end."""
        return [match.span("body") for match in _FENCE.finditer(self.text)]


def _span_around(position: int, spans: list[Span]) -> Span | None:
    """The span that holds a position, of spans in order and without overlap."""
    k = bisect.bisect_right(spans, position, key=lambda span: span[0]) - 1
    return spans[k] if k >= 0 and position < spans[k][1] else None


def own_name(name: str | None) -> str | None:
    """Strip the namespace that some notations put before a tool's name."""
    return name and name.removeprefix("functions.").removeprefix("default_api.")
