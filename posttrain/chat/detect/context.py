"""Is it called, or is it shown? What surrounds a candidate, and what the prompt asks for.

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
_TOPIC = re.compile(_CALLS, re.I)
_WRITING = (
    r"(?:show|giv(?:e|ing)|writ(?:e|ing)|provide|produce|generate|draft|convert|translate|format|"
    r"demonstrate|illustrate|render|print|express|fill in|complete|quote|repeat|reproduce)"
)
# to write *a call*, not to write something *with* one
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
_QUOTE = re.compile(r"[\"'“‘«„「『(=]$")
_TRAIL = re.compile(r"[\s,;.\]})]*(?:$|<|\[/?[A-Z]|[\[{]|`{3}|✿)")
_FENCE = re.compile(
    r"^[ \t>]*(`{3,}|~{3,})[^\n`]*(?:\n|\Z)(?P<body>.*?)(?:^[ \t>]*\1[`~]*+[ \t]*+(?!\w)|\Z)",
    re.M | re.S,
)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)\1(?!`)")
_NEAR = 240
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text that has the shape of one or more calls; none where it is data to be passed over.

    Attributes:
        requested: one entry a call, `RequestedCall(None)` where nothing of it can be read.
        plain: ordinary code or markup may look the same.
        marked: it stands behind a marker, and its name could be read.
    """

    form: str
    start: int
    end: int
    requested: tuple[RequestedCall, ...]
    plain: bool = False
    marked: bool = False


class Question:
    """What a prompt, the last user message, asks for: its words in English and a little Chinese."""

    def __init__(self, prompt: str) -> None:
        self.text = prompt if len(prompt) <= 8000 else f"{prompt[:4000]}\n{prompt[-4000:]}"

    @cached_property
    def about_calls(self) -> bool:
        """Whether it asks about tool calls (their notation, an API, a parser, a template) or for
        one to be written out."""
        return any(_TOPIC.search(s) and _ASKING.search(s) for s in _SENTENCE.split(self.text))

    @cached_property
    def wants_data(self) -> bool:
        """Whether it asks for JSON or another structure."""
        return _DATA.search(self.text) is not None

    @cached_property
    def wants_code(self) -> bool:
        """Whether it asks for code or markup."""
        return _CODE.search(self.text) is not None


class Context(TextReader):
    """A part of an output, the question it answers and the names of the declared tools."""

    def __init__(self, text: str, question: Question, declared: Collection[str]) -> None:
        super().__init__(text)
        self.question, self.declared = question, declared

    def before(self, position: int) -> str:
        """What precedes a position on its line (the last few hundred characters)."""
        return self.text[max(0, position - _NEAR) : position].rpartition("\n")[2]

    def after(self, position: int) -> str:
        """What follows a position on its line (the first few hundred characters)."""
        return self.text[position : position + _NEAR].partition("\n")[0]

    def fence(self, position: int) -> Span | None:
        """What the fenced block holds that a position lies in."""
        return _around(position, self._fences)

    def declares(self, requested: Collection[RequestedCall]) -> bool:
        """Whether every one of these calls names a declared tool."""
        return bool(requested) and all(own_name(call.name) in self.declared for call in requested)

    def shows(self, candidate: Candidate, since: int) -> bool:
        """Whether a candidate, behind the call that ended at `since`, is shown and not called."""
        start, requested, question = candidate.start, candidate.requested, self.question
        text_asked_for = candidate.plain and (question.wants_code or question.wants_data)
        about = (question.about_calls or text_asked_for) and not self.declares(requested)
        if to_fill_in(requested) or about:
            return True
        if fence := self.fence(start):  # a block is a call only if it holds nothing else
            begun = self.text[max(fence[0], since, start - _NEAR) : start]
            behind = self.text[candidate.end : min(fence[1], candidate.end + _NEAR)].strip()
            more = behind and not re.match(r"[\[{<,;✿]|[\w.]+\(|tool|function", behind)
            return bool(begun.strip(" \t\r\n,;[") or more)
        if span := _around(start, self._inlines):  # in inline code only as a whole line
            return bool(self.before(span[0]).strip("*- ")) or not _TRAIL.match(self.after(span[1]))
        before = self.before(start).rstrip()
        leads = not before[-1:].isalnum()
        trails = _TRAIL.match(self.after(candidate.end)) is not None
        return bool(_QUOTE.search(before)) or not (leads or trails or candidate.marked)

    @cached_property
    def _inlines(self) -> list[Span]:
        return [match.span() for match in _INLINE.finditer(self.text)]

    @cached_property
    def _fences(self) -> list[Span]:
        """What fenced blocks hold, in order; one that never closes runs to the end."""
        return [match.span("body") for match in _FENCE.finditer(self.text)]


def _around(position: int, spans: list[Span]) -> Span | None:
    k = bisect.bisect_right(spans, position, key=lambda span: span[0]) - 1
    return spans[k] if k >= 0 and position < spans[k][1] else None


def own_name(name: str | None) -> str | None:
    """A tool's own name, without the namespace that some notations put before it."""
    return name and name.removeprefix("functions.").removeprefix("default_api.")
