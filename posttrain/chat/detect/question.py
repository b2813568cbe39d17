"""What the prompt asks for, as far as it changes how an answer is to be read.

    read_question("What does a Hermes tool call look like?")
        → Question(about_calls=True, wants_example=True, wants_data=False, wants_code=False, …)
    read_question("Call the weather tool for Paris.") → all False

Only words are looked at, sentence by sentence; a prompt that merely asks for a tool to be *used*
asks nothing *about* calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
_VERB = (
    r"(?:show|giv(?:e|ing)|writ(?:e|ing)|provide|produce|generate|draft|convert|translate|format|"
    r"demonstrate|illustrate|sketch|render|examples?|samples?|print|express|fill in|complete|quote|"
    r"repeat|reproduce|turn (?:this|it|the))"
)
# to write *a call*, not to write something *with* one
_SHOWING = re.compile(
    rf"\b{_VERB}\b(?:(?!\b(?:using|use|with|via|through|by|and|then|from|if)\b)[^.\n]){{0,80}}{_CALLS}|"
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


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, read.

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

    def names(self, *keys: str) -> bool:
        """Whether the prompt speaks of each of these fields."""
        return all(re.search(rf"\b{key}s?\b", self.text, re.I) for key in keys)


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
