"""Calls without a marker: JSON of a call's shape, and lists of Python-style calls.

    {"name": "get_weather", "parameters": {"city": "Paris"}}      llama's; any wrapper of it
    [get_weather(city="Paris"), get_time(zone="CET")]              llama 4's, olmo's
    functions.get_weather({"city": "Paris"})

Nothing but its shape and its place tells such a call from data, so both must be right.
"""

from __future__ import annotations

import re
from typing import Any, cast

from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.mention import Ground
from posttrain.chat.detect.reading import NOTHING, TextReader
from posttrain.chat.detect.requested import (
    Arguments,
    RequestedCall,
    acts,
    function_like,
    placeholder,
    read_arguments,
    requested_in,
    toolish,
)

_KEYS = (
    "name|tool|tool_name|toolName|function|function_name|action|recipient_name|api_name|"
    "arguments|parameters|args|params|input|tool_input|action_input|type|id|index|role|thoughts?|"
    "reasoning|tool_calls?|function_calls?|functionCalls?|tool_uses|toolUse|calls|search_query|content"
)
_HEAD = re.compile(
    rf"(?P<json>\{{\s{{0,40}}[\"'](?:{_KEYS})[\"']\s{{0,4}}:)"
    r"|^[ \t>*\-]*(?P<list>\[)\s{0,40}[A-Za-z_][\w.\-/ ]{0,127}(?<! )\("
    r"|^[ \t]*(?:print\()?(?P<default>default_api\.[A-Za-z_]\w{0,127}|tool_call)\("
    r"|\A\s*(?P<lone>(?:print\()?(?!functions\.)[A-Za-z_][\w.]{0,127}\()\s{0,4}[A-Za-z_]\w{0,60}\s?=(?!=)"
    r"|(?<![\w.])(?P<functions>functions\.[A-Za-z_][\w.]{0,127})(?=\(|:\d|\s{0,4}\{)",
    re.M,
)
_BROKEN = re.compile(
    r"\{\s*[\"'](?:name|tool|tool_name|function|function_name)[\"']\s*:\s*[\"']([\w.\-]{1,128})[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters|args|tool_input|input)[\"']\s*:\s*(?:[{]|[\"']\s*\{|$)"
)
MANY = 12  # a longer list of "calls" is a data set
_TOOL = r"(?:tool|function|action|api|method)"
_PARAMETERS = r"(?:argument|parameter|arg|param|input)"


def bare(ground: Ground, reader: TextReader, start: int) -> Candidate | None:
    """The first candidate from `start` on."""
    position = start
    while match := _HEAD.search(reader.text, position):
        position = match.end()
        if match["json"]:
            found, position = _json(match.start("json"), start, ground, reader)
            position = max(position, match.end())
        elif match["list"]:
            found = _list(match.start("list"), ground, reader)
        elif match["default"] or match["lone"]:
            found = _lone(match, ground, reader)
        else:
            found = _functions(match, ground, reader)
        if found is not None and found.start >= start:
            return found
    return None


def _json(
    head: int, start: int, ground: Ground, reader: TextReader
) -> tuple[Candidate | None, int]:
    """The call that begins with this object, and where to go on: behind any value that was read."""
    text = reader.text
    at = _outermost(text, head, start)
    if at < 0:
        return None, head
    value, end = reader.json(at)
    if value is NOTHING:
        broken = _BROKEN.match(text, at)
        if broken is None or not toolish(broken[1]) or ground.page.before(at).strip(" \t>*-"):
            return None, head
        requested: tuple[RequestedCall, ...] = (RequestedCall(broken[1]),)
        end = _broken_end(ground, at)
    else:
        requested = requested_in(value) or _search_query(value)
    if not requested or len(requested) > MANY or _is_data(requested, ground):
        return None, end
    return Candidate("bare_json", at, end, requested), end


def _outermost(text: str, at: int, start: int) -> int:
    """Where the value begins whose first object this is; -1 inside other data or code."""
    for _ in range(4):
        before = text[max(start, at - 60) : at].rstrip()
        if before.endswith("["):
            at = max(start, at - 60) + len(before) - 1
        elif re.search(r"[\"']\s*:$|[(=]$|[^}\]],$", before):
            return -1
        else:
            return at
    return -1


def _broken_end(ground: Ground, at: int) -> int:
    """A call that is no valid JSON ends with its block or paragraph."""
    fence = ground.page.fence(at)
    if fence is not None:
        return fence.end
    blank = ground.page.text.find("\n\n", at)
    return blank if blank >= 0 else len(ground.page.text)


def _search_query(value: object) -> tuple[RequestedCall, ...]:
    """`{"search_query": [{"q": "…"}]}`."""
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    queries = fields.get("search_query")
    if not isinstance(queries, list) or not set(fields) <= {"search_query", "response_length"}:
        return ()
    each = cast(list[Any], queries)
    if not each or not all(isinstance(q, dict) and "q" in q for q in each):
        return ()
    return (RequestedCall("search", {"search_query": each}, request="search"),)


def _is_data(requested: tuple[RequestedCall, ...], ground: Ground) -> bool:
    """Whether the prompt asked for JSON that happens to look like this."""
    question = ground.question
    if ground.declares(requested):
        return False
    names = [a.name or "" for a in requested]
    if question.wants_data:
        keyed = question.names("name", _PARAMETERS) or question.names(_TOOL, _PARAMETERS)
        return keyed or not all(function_like(name) and acts(name) for name in names)
    return any(name.istitle() and not function_like(name) for name in names)


def _list(at: int, ground: Ground, reader: TextReader) -> Candidate | None:
    """`[f(x=1), g()]` on lines of its own; each argument has a name."""
    requested, end = reader.python_list(at)
    if not requested or any(placeholder(a) for a in requested) or not _named_only(requested):
        return None
    if any(" " in (a.name or "") and not a.arguments for a in requested):
        return None
    page = ground.page
    if len(page.before(at)) > 3 and not page.before(at).strip():
        return None  # code is indented
    if page.after(end).strip(" \t*") and not re.match(r"\s*<", page.after(end)):
        return None
    coded = ground.question.wants_code and not ground.declares(requested)
    if coded and not _alone(at, end, ground) and not _unlike_code(requested, at, ground):
        return None
    if not any(a.arguments for a in requested) and not all(
        function_like(a.name or "") for a in requested
    ):
        return None
    return Candidate("pythonic", at, end, requested)


def _unlike_code(requested: tuple[RequestedCall, ...], at: int, ground: Ground) -> bool:
    """Whether a list of calls is hardly a piece of the code that was asked for."""
    outside = ground.page.fence(at) is None and not ground.page.before(at)
    return outside and all(re.match(r"[a-z]\w*[_.A-Z]", a.name or "") for a in requested)


def _lone(match: re.Match[str], ground: Ground, reader: TextReader) -> Candidate | None:
    """`f_x(key="value")` as the whole message, or gemini's `default_api.f(…)`."""
    text, at = reader.text, reader.skip(match.start())
    wrapped = text.startswith("print(", at)
    call, end = reader.python_call(at + len("print(") if wrapped else at)
    if call is None or not _named_only((call,)):
        return None
    end += wrapped and text.startswith(")", end)
    if match["default"] == "tool_call":  # ChatGLM's; the tool's name is in the line above
        return Candidate("glm", at, end, (RequestedCall(None, call.arguments),), plain=True)
    if match["default"]:
        return Candidate("pythonic", at, end, (call,), plain=True)
    if not function_like(call.name or "") or text[end:].strip():
        return None
    return Candidate("pythonic", at, end, (call,), plain=True)


def _alone(start: int, end: int, ground: Ground) -> bool:
    """Whether nothing else is said, special tokens and fences aside."""
    text = ground.page.text
    around = text[max(0, start - 200) : start] + text[end : end + 200]
    return end - start > len(text) - 400 and not re.sub(r"<\|\w+\|>\w*|```\w*|\s", "", around)


def _named_only(requested: tuple[RequestedCall, ...]) -> bool:
    return all(not key.isdecimal() for a in requested for key in a.arguments or {})


def _functions(match: re.Match[str], ground: Ground, reader: TextReader) -> Candidate | None:
    """`functions.f(…)`, `functions.f:0{…}`."""
    page, at = ground.page, match.start()
    name = match["functions"]
    if page.before(at).strip(" \t>*-") and not re.search(r"[.:!?>]\s*$", page.before(at)):
        return None
    if reader.text[match.end() : match.end() + 1] == "(":
        call, end = reader.python_call(at)
        if call is None or (
            page.fence(at) is None and page.after(end).strip(" \t;.`<")[:1].isalnum()
        ):
            return None
        if ground.question.wants_code and not (_alone(at, end, ground) or ground.declares((call,))):
            return None
        only = (call.arguments or {}).get("0")
        if not (isinstance(only, dict) or _named_only((call,))):
            return None
        return Candidate("functions_dot", at, end, (_unwrapped(call),))
    brace = reader.text.find("{", match.end(), match.end() + 8)
    value, end = reader.json(brace) if brace >= 0 else (NOTHING, match.end())
    if value is NOTHING:
        return None
    requested = RequestedCall(name, read_arguments(value))
    return Candidate("functions_dot", at, end, (requested,))


def _unwrapped(call: RequestedCall) -> RequestedCall:
    """`f({"x": 1})` has the arguments of the object it is given."""
    arguments = call.arguments or {}
    only = arguments.get("0")
    if set(arguments) != {"0"} or not isinstance(only, dict):
        return call
    return RequestedCall(call.name, cast(Arguments, only))
