"""Is it called, or is it shown? What surrounds a candidate, and what the prompt asks for.

read_question("What does a Hermes tool call look like?").about_calls → True
read_question("Call the weather tool for Paris.").about_calls → False
Context(text, question, declared).shows(candidate, since=0) → True: shown or spoken of, not called

A call stands on a line of its own, at a sentence's end, or behind a marker. In inline code, in
quotation marks or in a block that answers a question about calls it is shown. A fenced block holds
a call only if it holds nothing else. A prompt that asks for a tool to be *used* asks nothing
*about* calls.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from posttrain.chat.detect.requested import RequestedCall, to_fill_in

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
_ASKING = re.compile(
    r"\b(?:what|how|why|which|when|where|explain|describe|document(?:ation)?|tell me about|"
    r"difference|compare|summari[sz]e|tutorial|guide|teach|understand|mean(?:s|ing)?|stands? for|"
    r"correct|valid|review|debug|fix|wrong|bug|parse[rsd]?|parsing|regex|extract|detect|implement|"
    r"code|quote|repeat|reproduce|template|schema|should|can you)\b|"
    r"什么|如何|怎么|为什么|解释|说明|介绍",
    re.I,
)
_WRITING = (
    r"(?:show|giv(?:e|ing)|writ(?:e|ing)|provide|produce|generate|draft|convert|translate|format|"
    r"demonstrate|illustrate|sketch|render|examples?|samples?|print|express|fill in|complete|quote|"
    r"repeat|reproduce|turn (?:this|it|the))"
)
# to write *a call*, not to write something *with* one
_SHOWING = re.compile(
    rf"\b{_WRITING}\b(?:(?!\b(?:using|use|with|via|through|by|and|then|from|if)\b)[^.\n]){{0,80}}{_CALLS}|"
    rf"{_CALLS}[^.\n]{{0,60}}(?:\blooks? like\b|\bexamples?\b|示例|例子)|"
    r"(?:示例|例子|写|展示)[^。\n]{0,30}(?:工具调用|函数调用)",
    re.I,
)
_MAKE = (
    r"(?:writ(?:e|ing)|creat(?:e|ing)|implement|develop|build|generat(?:e|ing)|giv(?:e|ing)|show|"
    r"provide|produce|complete|fix|debug|refactor|optimi[sz]e|convert|translate|explain|example|"
    r"return|output|respond|reply|answer|format(?:ted)?|express|represent|describe|design|make|add|"
    r"modify|edit|print|list|how (?:do|to|can|would|should)|what (?:is|are|does))"
)
_DATA = re.compile(
    rf"\b{_MAKE}\b[^.\n]{{0,120}}(?<![\w./])(?:json|jsonl|ya?ml|toml|dictionary|payload|config|"
    r"configuration|manifest|openapi|schema|key[- ]value)(?![\w.-])|"
    r"\b(?:as|in|into|with|using|valid|following|the|a)\s+(?:json|ya?ml)\b|"
    r"(?<![\w./])json (?:object|array|format|output|response|schema|structure|string|data)s?\b|"
    r"(?-i:(?<![\w./-])JSON(?![\w.-]))",
    re.I,
)
_CODE = re.compile(
    r"\b(?:python|javascript|typescript|java|kotlin|swift|c\+\+|c#|golang|ruby|php|sql|html|css|xml|"
    r"svg|latex|bash|powershell|matlab|regex|regexp|code snippet|source code|pseudo-?code|"
    r"one-liner|unit tests?)\b(?!\.\w)|"
    r"\b(?:writ(?:e|ing)|creat(?:e|ing)|implement|define|develop|build|generat(?:e|ing)|giv(?:e|ing)|"
    r"show|provide|complete|fix|debug|refactor|optimi[sz]e|convert|explain|document|example|"
    r"how (?:do|to|can)|what (?:is|are|does))\b[^.\n]{0,80}\b(?:code|scripts?|programs?|functions?|"
    r"algorithms?|snippets?|commands?|regular expressions?|api|endpoints?|markup|templates?)\b|"
    r"代码|程序|脚本|语句|函数",
    re.I,
)


_LEAD_END = re.compile(r"(?:[.!?…:;,。！？：；，)\]>*_`|→\-]|minimax\[>\[|^)$")
_QUOTE = re.compile(r"[\"'“‘«„「『(=]$")
_TRAIL = re.compile(r"[\s,;.\]})]*(?:$|<|\[/?[A-Z]|[\[{]|`{3}|✿)")
_THING = (
    r"(?:call|request|response|format|output|usage|json|payload|invocation|syntax|message|block|"
    r"answer|tool|function)s?"
)
_EXAMPLE = re.compile(
    r"(?:\b(?:for example|for instance|e\.g\.?|such as|like so)|例如|比如|示例)\W*$|"
    r"\bexamples?\s*[:：]\W*$|"
    rf"\b(?:example|sample)\b[^.!?\n]{{0,40}}\b{_THING}\b[^.!?\n]{{0,60}}[:：]\W*$|"
    rf"\b{_THING}\s+(?:example|sample)s?\b[^.!?\n]{{0,60}}[:：]\W*$|"
    r"\b(?:looks?|written|formatted) (?:something |exactly )?(?:like|as)"
    r"(?: this| so| follows)?\W*$",
    re.I,
)
# the words of whoever explains a notation to someone else; nobody who calls speaks so
_INSTRUCTS = re.compile(
    r"\bto (?:call|use|invoke|make) (?:a |an |any |the |one |your )?(?:tool|function|call)|"
    r"\b(?:exact(?:ly)?|this|following|call(?:ing)?) (?:\w+ )?format\b|\bexactly one of\b|"
    r"\b(?:respond|reply|return|output|emit|write|include)\b[^.\n]{0,80}\b(?:format|block|xml|"
    r"tags?|object|json)\b|"
    r"\b(?:the|an?) (?:model|assistant|llm|agent|api|server|response|client|system)\b[^.\n]{0,60}"
    r"\b(?:outputs?|emits?|returns?|responds?|replies|generates?|produces?|sends?|writes?|would|"
    r"will|might|looks?|contains?|calls?|is)\b|"
    r"\byou (?:would|can|could|should|must|need to|might|may|will|have to)\b",
    re.I,
)
_CUE = re.compile(
    r"\b(?:as follows|formats?|syntax|template|structured?|should|would|could|might|is written|"
    r"in the form|using|here(?:'s| is| are)|following|this is|like this|turn|output|emit|write|"
    r"respon[ds])\w*\b|[:：]\s*[*_`]*$",
    re.I,
)


_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^\n`]*)", re.M)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)\1(?!`)")
_NEAR = 240


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text that has the shape of one or more calls; none where it is data to be passed over.

    Attributes:
        requested: one entry a call, `RequestedCall(None)` where nothing of it can be read.
        plain: ordinary code or markup may look the same.
        marked: it stands behind a marker that opens calls, and its name could be read.
    """

    form: str
    start: int
    end: int
    requested: tuple[RequestedCall, ...]
    plain: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What a prompt asks for, read from its words in English and a little Chinese.

    Attributes:
        about_calls: it asks about tool calls: their notation, an API, a parser, a template.
        wants_example: it asks for one to be written out.
        wants_data: it asks for JSON or another structure.
        wants_code: it asks for code or markup.
    """

    text: str
    about_calls: bool
    wants_example: bool
    wants_data: bool
    wants_code: bool


def read_question(prompt: str) -> Question:
    """Read a prompt, the last user message; only its first and last 4,000 characters are read."""
    text = prompt if len(prompt) <= 8000 else prompt[:4000] + "\n" + prompt[-4000:]
    topical = [s for s in _SENTENCE.split(text) if _TOPIC.search(s)]
    return Question(
        text=text,
        about_calls=any(_ASKING.search(s) or _SHOWING.search(s) for s in topical),
        wants_example=any(_SHOWING.search(s) for s in topical),
        wants_data=_DATA.search(text) is not None,
        wants_code=_CODE.search(text) is not None,
    )


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: `start` is its first backtick, [body, end) what it holds."""

    start: int
    body: int
    end: int


class Context:
    """A part of an output, the question it answers and the names of the declared tools."""

    def __init__(self, text: str, question: Question, declared: Collection[str]) -> None:
        self.text, self.question, self.declared = text, question, declared

    def before(self, position: int) -> str:
        """What precedes a position on its line (the last few hundred characters)."""
        return self.text[max(0, position - _NEAR) : position].rpartition("\n")[2]

    def after(self, position: int) -> str:
        """What follows a position on its line (the first few hundred characters)."""
        return self.text[position : position + _NEAR].partition("\n")[0]

    def fence(self, position: int) -> Fence | None:
        """The fenced block that a position lies in."""
        k = bisect.bisect_right(self._fences, position, key=lambda fence: fence.body) - 1
        return self._fences[k] if k >= 0 and position < self._fences[k].end else None

    def declares(self, requested: Collection[RequestedCall]) -> bool:
        """Whether every one of these calls names a declared tool."""
        return bool(requested) and all(own_name(call.name) in self.declared for call in requested)

    def shows(self, candidate: Candidate, since: int) -> bool:
        """Whether a candidate is shown or spoken of, not called.

        Args:
            candidate: a possible call.
            since: where the call before this one ended.
        """
        start, requested, question = candidate.start, candidate.requested, self.question
        if to_fill_in(requested):
            return True
        if candidate.plain and (question.wants_code or question.wants_data):
            return True
        fence = self.fence(start)
        if fence is not None:
            return self._shown_in(fence, candidate, since)
        span = self._inline(start)
        if span is not None:  # in inline code only as a whole line
            alone = not self.before(span[0]).strip("*- ") and _TRAIL.match(self.after(span[1]))
            return not alone or question.about_calls
        if question.wants_example and not self.declares(requested):
            return True
        return self._amid(candidate) or self._introduced(start)

    def _shown_in(self, fence: Fence, candidate: Candidate, since: int) -> bool:
        """A block is a call only if the question is not about such blocks, and it holds no more."""
        begun = self.text[max(fence.body, min(since, candidate.start)) : candidate.start]
        behind = self.text[candidate.end : fence.end].strip()
        more = behind and not re.match(r"[\[{<,;✿]|[\w.]+\(|tool|function", behind)
        if self.question.about_calls or begun.strip(" \t\n,;") or more:
            return True
        return self._introduced(fence.start)

    def _amid(self, candidate: Candidate) -> bool:
        """Whether it is quoted or stands within a sentence."""
        before = self.before(candidate.start)
        stripped = before.rstrip()
        if _QUOTE.search(stripped):
            return True
        leads = not stripped.strip("-*+>•# \t") or _LEAD_END.search(stripped) is not None
        trails = _TRAIL.match(self.after(candidate.end)) is not None
        if self.question.about_calls:
            return not (leads and trails)
        return not leads and not trails and not (candidate.marked and not _INSTRUCTS.search(before))

    def _introduced(self, start: int) -> bool:
        """Whether the words before it call it an example."""
        lead = self.before(start)
        if not lead.strip(" \t>*-[(`"):
            above = self.text[max(0, start - len(lead) - _NEAR) : start - len(lead)]
            lead = above.rstrip().rpartition("\n")[2]
        if _EXAMPLE.search(lead):
            return True
        if lead.rstrip(" *_`").endswith((":", "：")) and _INSTRUCTS.search(lead):
            return True
        return self.question.about_calls and _CUE.search(lead) is not None

    def _inline(self, position: int) -> tuple[int, int] | None:
        """The span of inline code that a position lies in, backticks included."""
        k = bisect.bisect_right(self._inlines, position, key=lambda span: span[0]) - 1
        return self._inlines[k] if k >= 0 and position < self._inlines[k][1] else None

    @cached_property
    def _inlines(self) -> list[tuple[int, int]]:
        return [match.span() for match in _INLINE.finditer(self.text)]

    @cached_property
    def _fences(self) -> list[Fence]:
        """Fenced blocks in order; one that never closes runs to the end."""
        fences: list[Fence] = []
        opened: re.Match[str] | None = None
        for match in _FENCE.finditer(self.text):
            if opened is None:
                opened = match
            elif match[1].startswith(opened[1]) and not match[2].strip()[:1].isalnum():
                fences.append(Fence(opened.start(1), opened.end() + 1, match.start()))
                opened = None
        if opened is not None:
            body = min(opened.end() + 1, len(self.text))
            fences.append(Fence(opened.start(1), body, len(self.text)))
        return fences


def own_name(name: str | None) -> str | None:
    """A tool's own name, without the namespace that some notations put before it."""
    return name and name.removeprefix("functions.").removeprefix("default_api.")
