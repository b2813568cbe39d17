"""Calls that no marker opens: their shape and their place must both be right.

{"name": "get_weather", "parameters": {"city": "Paris"}}      llama's; any wrapper of it
[get_weather(city="Paris"), get_time(zone="CET")]              llama 4's, olmo's
functions.get_weather({"city": "Paris"})
Action: search\\nAction Input: tallest mountain                ReAct, also `Action: Search[query]`
tool_call: f\\narguments: {"x": 1}                             and `Function: f`, `Tool: f`
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

from posttrain.chat.detect.context import Candidate, Context
from posttrain.chat.detect.markers import Reader, function_like
from posttrain.chat.detect.requested import (
    UNREAD,
    RequestedCall,
    calls_in,
    read_arguments,
    toolish,
)
from posttrain.chat.detect.shapes import NOTHING, TextReader, read_payload

_KEYS = (
    "name|tool|tool_name|toolName|function|function_name|action|recipient_name|api_name|"
    "arguments|parameters|args|params|input|tool_input|action_input|type|id|index|role|thoughts?|method|"
    "reasoning|tool_calls?|function_calls?|functionCalls?|tool_uses|toolUse|calls|search_query|content|jsonrpc"
)
_S = r"[ \t]{0,8}"
_BOLD = r"\*{0,2}"
_BRACKET = (
    r"(?P<bracket>(?:search|lookup|look_up|retrieve|query|wikipedia|google|browse|calculat(?:or|e)|"
    rf"python)\w{{0,30}}|[A-Za-z]+_\w{{0,60}})\[(?P<query>[^\]\n]{{1,400}})\]{_S}$"
)
_TWO_LINES = (
    rf"[`\"']?(?P<tool>[A-Za-z_][\w.\-:/ ]{{0,80}}?)[`\"']?{_S}\n\s{{0,8}}{_BOLD}"
    r"(?:(?P<react>Action[ _]?Input(?: \d+)?)|(?:(?:tool|function|action)[ _-]?)?"
    rf"(?:arguments|parameters|args|params|input)){_BOLD}{_S}[:=]{_BOLD}"
)
_ENGINES = (
    r"brave_search|wolfram_alpha|web_search|google_search|bing_search|search_web|browser\.search|"
    r"google\.search|duckduckgo_search"
)
SHAPES = re.compile(
    rf"(?=[{{\[f])(?:(?P<json>\{{\s{{0,40}}[\"'](?:{_KEYS})[\"']\s{{0,4}}:)"
    r"|(?P<listed>(?P<list>\[)\s{0,40}[A-Za-z_][\w.\-/ ]{0,127}(?<! )\()"
    r"|(?P<functions>(?<![\w.])functions\.[A-Za-z_][\w.]{0,127}(?=\()))"
)
LINES = re.compile(
    rf"^(?:(?P<worded>(?i:{_S}(?:[>*#\-]{_S})?{_BOLD}(?:tool|function|action)"
    rf"(?P<calls>[ _-]?(?:calls?|to[ _]call))?(?:[ _]name|[ ]\d+)?{_BOLD}{_S}[:=]{_S}{_BOLD}{_S}"
    rf"(?:{_TWO_LINES}|{_BRACKET})))"
    r"|(?P<block>[ \t]*(?P<fence>`{3,}|~{3,})(?:tool_code|tool_calls?|function_call|tool_use|"
    r"code_interpreter|json tool_call)[ \t]*\n)"
    r"|(?P<lone>[ \t]*(?:(?:print\()?(?=default_api\.)|tool_code\n(?:print\()?|"
    rf"(?i:action|(?:function |tool )?call):[ \t]*|(?=(?:{_ENGINES})[\w.]*\()|"
    r"(?P<whole>\A\s*)(?=(?!functions\.)[\w.]{1,128}\(\s{0,4}[A-Za-z_]\w{0,60}\s?=(?!=)))"
    r"(?=[A-Za-z_][\w.]{0,127}\()))",
    re.M,
)
_BROKEN = re.compile(
    r"\{\s*[\"'](?:name|tool|tool_name|function|function_name)[\"']\s*:\s*[\"']([\w.\-]{1,128})[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters|args|tool_input|input)[\"']\s*:\s*(?:[{]|[\"']\s*\{|$)"
)
_VERB = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:get|fetch|search|find|look|query|calculate|compute|convert|run|"
    r"execute|exec|send|create|add|update|delete|remove|set|list|read|write|open|load|save|book|"
    r"cancel|check|call|translate|generate|solve|plot|browse|retrieve|schedule|order|play|start|"
    r"stop|track|verify|analy[sz]e)(?=_|[A-Z]|\d|$)"
)


def _json(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """JSON of a call's shape; any other value that was read is passed over."""
    text, start = reader.text, _outermost(reader.text, match.start())
    if start < 0:
        return None
    value, end = reader.json(start)
    if value is NOTHING:
        if (broken := _BROKEN.match(text, match.start())) is None:
            return None
        calls: tuple[RequestedCall, ...] = (RequestedCall(broken[1]),)
        fence = context.fence(start)  # a call that is no valid JSON ends with its block
        end = fence[1] if fence else len(text)
    else:
        calls = calls_in(value)
    if _is_data(calls, context):
        calls = ()
    return Candidate("bare_json", start, end, calls)


def _outermost(text: str, at: int) -> int:
    """Where the value begins whose first object this is; -1 inside other data or code."""
    for _ in range(4):
        before = text[max(0, at - 60) : at].rstrip()
        if not before.endswith("["):
            return -1 if re.search(r"[\"']\s*:$|[(=]$|[^}\]],$", before) else at
        at = max(0, at - 60) + len(before) - 1
    return -1


def _is_data(calls: tuple[RequestedCall, ...], context: Context) -> bool:
    """Whether the prompt asked for JSON that happens to look like this."""
    question, names = context.question, [call.name or "" for call in calls]
    if context.declares(calls):
        return False
    if not question.wants_data:
        return any(name.istitle() and not function_like(name) for name in names)
    tools, parameters = "(?:name|tool|function|action|api|method)", "(?:arg|param|input)[a-z]*"
    keyed = all(re.search(rf"\b{key}s?\b", question.text, re.I) for key in (tools, parameters))
    return keyed or not all("." in n or (function_like(n) and _VERB.search(n)) for n in names)


def _listed(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`[f(x=1), g()]` at the end of a line or sentence; each argument has a name."""
    start, before = match.start(), context.before(match.start())
    own = not before.strip(" \t>*-") and not (len(before) > 3 and before.isspace())  # no code
    # behind prose, but for the words that code has there
    led = re.search(r"[\w.:] \Z", before) and not re.search(
        r"\b(?:return|yield|in|is|else) \Z", before
    )
    calls, end = reader.python_list(start) if own or led else ((), start)
    if not calls or not _named_only(calls) or any((c.name or "").istitle() for c in calls):
        return None  # `[Point(x=1)]` is an object as it prints
    functions = all(function_like(call.name) for call in calls)
    if re.match(r"[ \t*]*[^\s<*]", context.after(end)) or not (own or functions):
        return None
    if context.question.wants_code and not ((functions and not before) or context.declares(calls)):
        return None  # a piece of the code that was asked for
    return Candidate("pythonic", start, end, calls)


def _lone(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A line that is a call: gemini's `default_api.f(…)`, `Action: f(x=1)`, a whole message."""
    call, end = reader.python_call(match.end())
    if call is None:
        return None
    rest = context.after(end) if match["whole"] is None else reader.text[end:]
    seeks = re.match(_ENGINES, call.name or "")
    if rest.strip(" .;)`\n") or not (seeks or (function_like(call.name) and _named_only((call,)))):
        return None
    form = "search_request" if seeks else "pythonic"
    call = replace(call, builtin="search") if seeks else call
    return Candidate(form, reader.skip(match.start()), end, (call,), plain=True)


def _named_only(calls: tuple[RequestedCall, ...]) -> bool:
    return all(not key.isdecimal() for call in calls for key in call.arguments or {})


def _functions(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`functions.f(…)`."""
    at = match.start()
    if not re.search(r"(?:^[ \t>*\-]*|[.:!?>]\s*)$", context.before(at)):
        return None
    call, end = reader.python_call(at)
    if call is None:
        return None
    only = (call.arguments or {}).get("0")
    if isinstance(only, dict) and len(call.arguments or {}) == 1:
        call = RequestedCall(call.name, cast(dict[str, Any], only))
    follows = context.fence(at) is None and context.after(end).strip(" \t;.`<")[:1].isalnum()
    if follows or not _named_only((call,)):
        return None
    code = context.question.wants_code and at != reader.skip(0) and not context.declares((call,))
    return None if code else Candidate("functions_dot", at, end, (call,))


def _worded(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A name in a line and its arguments in the next."""
    start, name, react = match.start(), (match["bracket"] or match["tool"]).strip(), match["react"]
    if not toolish(name):
        return None
    if match["bracket"]:
        call = RequestedCall(name, {"query": match["query"]})
        return Candidate("react", start, match.end(), (call,))
    at = reader.skip(match.end())
    if not react and reader.text[at : at + 1] != "{":
        return None
    value, end = reader.json(at)
    arguments = None if value is NOTHING else read_arguments(value)
    if react and arguments is None:
        arguments = {"": UNREAD}
    end = max(end, match.end() + len(context.after(match.end())))
    plain = not react and match["calls"] is None
    call = RequestedCall(name, arguments)
    return Candidate("react" if react else "text_lines", start, end, (call,), plain)


def _block(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A block whose info string says that it is a call."""
    fence = context.fence(match.end())
    if fence is None or not context.text[slice(*fence)].strip():
        return None
    payload = read_payload(reader, fence[0])
    calls = payload.requested if payload else (RequestedCall(None, builtin="python"),)
    return Candidate("tool_code", match.start("fence"), fence[1], calls)


READERS: dict[str, Reader] = {
    "json": _json, "listed": _listed, "functions": _functions, "worded": _worded, "block": _block,
    "lone": _lone,
}  # fmt: skip
