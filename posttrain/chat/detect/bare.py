"""Calls that no marker opens: their shape and their place must both be right.

{"name": "get_weather", "parameters": {"city": "Paris"}}      llama's; any wrapper of it
[get_weather(city="Paris"), get_time(zone="CET")]              llama 4's, olmo's
functions.get_weather({"city": "Paris"})
Action: search\\nAction Input: tallest mountain                ReAct, also `Action: Search[query]`
tool_call: f\\narguments: {"x": 1}                             and `Function: f`, `Tool: f`
Calling tool f with arguments {"x": 1}
"""

from __future__ import annotations

import re
from typing import Any, cast

from posttrain.chat.detect.context import Candidate, Context
from posttrain.chat.detect.markers import Reader, builtin_call, function_like
from posttrain.chat.detect.requested import (
    UNREAD,
    Builtin,
    RequestedCall,
    calls_in,
    read_arguments,
    to_fill_in,
    toolish,
)
from posttrain.chat.detect.shapes import NOTHING, TextReader, read_payload

_KEYS = (
    "name|tool|tool_name|toolName|function|function_name|action|recipient_name|api_name|"
    "arguments|parameters|args|params|input|tool_input|action_input|type|id|index|role|thoughts?|"
    "reasoning|tool_calls?|function_calls?|functionCalls?|tool_uses|toolUse|calls|search_query|content"
)
_S = r"[ \t]{0,8}"
_BOLD = r"\*{0,2}"
_NAME = r"[`\"']?(?P<{}>[A-Za-z_][\w.\-:/ ]{{0,80}}?)[`\"']?"
_NEXT_LINE = rf"{_S}\n\s{{0,8}}{_BOLD}"
_ARGUMENTS = r"(?:arguments|parameters|args|params|input)"
_REACT = rf"{_NAME.format('react')}{_NEXT_LINE}Action[ _]?Input(?: \d+)?{_BOLD}{_S}:"
_LOOKS_UP = (
    "search|lookup|look_up|retrieve|query|wikipedia|google|browse|calculator|calculate|python"
)
_BRACKET = (
    rf"(?P<bracket>(?:{_LOOKS_UP})\w{{0,30}}|[A-Za-z]+_\w{{0,60}})"
    rf"\[(?P<query>[^\]\n]{{1,400}})\]{_S}$"
)
_PLAIN = (
    rf"(?:tool|function|action)(?P<calls>[ _-]?(?:calls?|to[ _]call))?(?:[ _]name)?"
    rf"{_BOLD}{_S}[:=]{_BOLD}{_S}{_NAME.format('plain')}{_NEXT_LINE}"
    rf"(?:(?:tool|function|action)[ _-]?)?{_ARGUMENTS}{_BOLD}{_S}[:=]{_BOLD}"
)
_SPOKEN = (
    rf"\b(?:call(?:ing)?|invok(?:e|ing)|execut(?:e|ing)|us(?:e|ing)|tool call|function call)\b"
    rf"{_S}(?:the{_S})?(?:tool|function)?{_S}:?{_S}[`\"']?(?P<title>[A-Za-z_][\w.]{{0,80}})[`\"']?"
    rf"{_S}(?:tool{_S}|function{_S})?(?:with{_S})?(?:the{_S})?{_ARGUMENTS}?{_S}:?{_S}"
    r"(?=\{\s{0,8}[\"'}])"
)
_ENGINES = (
    r"brave_search|wolfram_alpha|web_search|google_search|bing_search|search_web|browser\.search|"
    r"google\.search|duckduckgo_search"
)
SHAPES = re.compile(
    rf"(?=[{{\[fciuetCIUET])(?:(?P<json>\{{\s{{0,40}}[\"'](?:{_KEYS})[\"']\s{{0,4}}:)"
    r"|(?P<listed>(?P<list>\[)\s{0,40}[A-Za-z_][\w.\-/ ]{0,127}(?<! )\()"
    r"|(?P<functions>(?<![\w.])functions\.[A-Za-z_][\w.]{0,127}(?=\(|:\d|\s{0,4}\{))"
    rf"|(?P<spoken>(?i:{_SPOKEN})))"
)
LINES = re.compile(
    rf"^(?:(?P<worded>(?i:{_S}(?:[>*#\-]{_S})?{_BOLD}(?:Action(?: \d+)?{_BOLD}{_S}:{_S}{_BOLD}{_S}"
    rf"(?:{_REACT}|{_BRACKET})|{_PLAIN})))"
    r"|(?P<called>(?i:(?:Call|Function call|Tool call):[ \t]*(?=[A-Za-z_][\w.]{0,127}\()))"
    r"|(?P<block>[ \t]*(?P<fence>`{3,}|~{3,})(?:tool_code|tool_calls?|function_call|tool_use|"
    r"code_interpreter|json tool_call)[ \t]*\n)"
    r"|(?P<run>```(?:python|py)[ \t]*\n|[ \t]*```<end_code>)"
    rf"|(?P<engine>(?: {{0,3}}|[>*-] )(?=(?:(?:{_ENGINES})(?:\.call|\.search|\.run)?|search)"
    r"\(\s*(?:query|q|queries)?\s?=?\s?[\"']))"
    r"|(?P<alone>[ \t]*(?:print\()?(?=default_api\.[A-Za-z_]\w{0,127}\(|tool_call\())"
    r"|(?P<whole>\A\s*(?:print\()?(?=(?!functions\.)[A-Za-z_][\w.]{0,127}\(\s{0,4}[A-Za-z_]\w{0,60}\s?=(?!=)))"
    r"|\A\s*(?P<above>(?P<title>[A-Za-z]\w*[_.]\w{1,100}|[a-z]+[A-Z]\w{0,100})\n\s{0,4}(?=\{))"
    r"|(?P<request>[ \t]*(?P<name>python|ipython|code_interpreter|browser|web_search|search)"
    r"[ \t]*\n[ \t]*(?=\{\s*[\"'](?:code|query|q|search_query|command|input)[\"'])))",
    re.M,
)
_BROKEN = re.compile(
    r"\{\s*[\"'](?:name|tool|tool_name|function|function_name)[\"']\s*:\s*[\"']([\w.\-]{1,128})[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters|args|tool_input|input)[\"']\s*:\s*(?:[{]|[\"']\s*\{|$)"
)
_OUTPUT = re.compile(r"[ \t]*`{3,}[ \t]*\n\s{0,4}`{3,}(?:output|tool_output|execution_result)\b")
_VERB = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:get|fetch|search|find|look|query|calculate|compute|convert|run|"
    r"execute|exec|send|create|add|update|delete|remove|set|list|read|write|open|load|save|book|"
    r"cancel|check|call|translate|generate|solve|plot|browse|retrieve|schedule|order|play|start|"
    r"stop|track|verify|analy[sz]e)(?=_|[A-Z]|\d|$)"
)
MANY = 12  # a longer list of "calls" is a data set


def _json(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """JSON of a call's shape; any other value that was read is passed over."""
    text, start = reader.text, _outermost(reader.text, match.start())
    if start < 0:
        return None
    value, end = reader.json(start)
    if value is NOTHING:
        broken = _BROKEN.match(text, start)
        if broken is None or not toolish(broken[1]) or context.before(start).strip(" \t>*-"):
            return None
        calls: tuple[RequestedCall, ...] = (RequestedCall(broken[1]),)
        fence = context.fence(start)  # a call that is no valid JSON ends with its block
        paragraph = reader.find("\n\n", start)
        end = fence.end if fence else paragraph if paragraph >= 0 else len(text)
    else:
        calls = calls_in(value)
    if len(calls) > MANY or _is_data(calls, context):
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
    if context.declares(calls) or any(call.builtin for call in calls):
        return False
    if not question.wants_data:
        return any(name.istitle() and not function_like(name) for name in names)
    tools, parameters = "(?:name|tool|function|action|api|method)", "(?:arg|param|input)[a-z]*"
    keyed = all(re.search(rf"\b{key}s?\b", question.text, re.I) for key in (tools, parameters))
    return keyed or not all(function_like(n) and ("." in n or _VERB.search(n)) for n in names)


def _listed(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`[f(x=1), g()]` at the end of a line or sentence; each argument has a name."""
    start, before = match.start(), context.before(match.start())
    own = not before.strip(" \t>*-") and not (len(before) > 3 and before.isspace())  # no code
    calls, end = reader.python_list(start) if own or before.endswith((". ", ": ")) else ((), start)
    if not calls or to_fill_in(calls) or not _named_only(calls):
        return None
    functions = all(function_like(call.name) for call in calls)
    if re.match(r"[ \t*]*[^\s<*]", context.after(end)) or not (own or functions):
        return None
    if not all(call.arguments or function_like(call.name) for call in calls):
        return None
    if context.question.wants_code and not context.declares(calls):
        outside = context.fence(start) is None and not before and functions
        if not outside and not _alone(start, end, context):
            return None  # a piece of the code that was asked for
    return Candidate("pythonic", start, end, calls)


def _lone(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`f_x(key="value")` as the whole message, gemini's `default_api.f(…)`, `Call: f(x=1)`."""
    text, start, shape = reader.text, reader.skip(match.start()), match.lastgroup
    call, end = reader.python_call(match.end())
    if call is None:
        return None
    if shape == "engine":  # `web_search("…")` in a line
        others = text[: match.start()] + text[end:] if call.name == "search" else ""
        if others.strip() or context.after(end).strip(" .;`)"):
            return None
        call = RequestedCall(call.name, call.arguments, builtin="search")
        return Candidate("search_request", match.end(), end, (call,), plain=True)
    end += match[0].endswith("print(") and text.startswith(")", end)
    partial = shape == "whole" and (not function_like(call.name) or text[end:].strip())
    if partial or not _named_only((call,)):
        return None
    form = "text_lines" if shape == "called" else "pythonic"
    if call.name == "tool_call":  # ChatGLM's; the tool's name is in the line above
        form, call = "glm", RequestedCall(None, call.arguments)
    return Candidate(form, start, end, (call,), plain=True)


def _alone(start: int, end: int, context: Context) -> bool:
    """Whether nothing else is said, special tokens and fences aside."""
    text = context.text
    around = text[max(0, start - 200) : start] + text[end : end + 200]
    return end - start > len(text) - 400 and not re.sub(r"<\|\w+\|>\w*|```\w*|\s", "", around)


def _named_only(calls: tuple[RequestedCall, ...]) -> bool:
    return all(not key.isdecimal() for call in calls for key in call.arguments or {})


def _functions(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`functions.f(…)`, `functions.f:0{…}`."""
    at = match.start()
    if not re.search(r"(?:^[ \t>*\-]*|[.:!?>]\s*)$", context.before(at)):
        return None
    if reader.text[match.end()] != "(":
        value, end = reader.json(reader.text.find("{", match.end(), match.end() + 8))
        call = RequestedCall(match["functions"], read_arguments(value))
        return None if value is NOTHING else Candidate("functions_dot", at, end, (call,))
    call, end = reader.python_call(at)
    if call is None:
        return None
    only = (call.arguments or {}).get("0")
    if isinstance(only, dict) and len(call.arguments or {}) == 1:
        call = RequestedCall(call.name, cast(dict[str, Any], only))
    follows = context.fence(at) is None and context.after(end).strip(" \t;.`<")[:1].isalnum()
    if follows or not _named_only((call,)):
        return None
    if context.question.wants_code and not (_alone(at, end, context) or context.declares((call,))):
        return None
    return Candidate("functions_dot", at, end, (call,))


def _worded(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A name in a line and its arguments in the next."""
    start, name = match.start(), (match["bracket"] or match["react"] or match["plain"]).strip()
    if not toolish(name):
        return None
    if match["bracket"]:
        call = RequestedCall(name, {"query": match["query"]})
        return Candidate("react", start, match.end(), (call,))
    at = reader.skip(match.end())
    value, end = reader.json(at)
    arguments = None if value is NOTHING else read_arguments(value)
    if match["plain"] and reader.text[at : at + 1] != "{":
        return None
    if match["react"] and arguments is None:
        arguments = {"": UNREAD}
    end = max(end, match.end() + len(context.after(match.end())))
    form = "react" if match["react"] else "text_lines"
    plain = match["react"] is None and match["calls"] is None
    return Candidate(form, start, end, (RequestedCall(name, arguments),), plain)


def _titled(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A name and its JSON object to the end of the line, or as the whole message (older GLM)."""
    value, end = reader.json(match.end())
    whole, name = match.lastgroup == "above", match["title"]
    rest = reader.text[end : end + 200] if whole else context.after(end).strip(" .;`*")
    if not isinstance(value, dict) or re.sub(r"<\|\w+\|>|\s", "", rest) or not function_like(name):
        return None
    call = RequestedCall(name, cast(dict[str, Any], value))
    form, start = ("glm" if whole else "text_lines"), match.start(match.lastgroup or 0)
    return Candidate(form, start, end, (call,), plain=whole)


def _run(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A Python block with its output right behind it, or closed by smolagents' token."""
    start, end = match.start(), match.end()
    if not match[0].endswith("<end_code>"):
        fence = context.fence(end)
        if fence is None or not _OUTPUT.match(context.text, fence.end):
            return None
        end = fence.end
    return Candidate("python_request", start, end, (builtin_call("python", "python"),), plain=True)


def _request(match: re.Match[str], context: Context, reader: TextReader) -> Candidate:
    value, end = reader.json(match.end())
    kind: Builtin = "python" if re.search("py|code", match["name"]) else "search"
    end = len(context.text) if value is NOTHING else end
    return Candidate(f"{kind}_request", match.start(), end, (builtin_call(kind, match["name"]),))


def _block(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A block whose info string says that it is a call."""
    fence = context.fence(match.end())
    if fence is None or not context.text[fence.body : fence.end].strip():
        return None
    payload = read_payload(reader, fence.body)
    calls = payload.requested if payload else (RequestedCall(None, builtin="python"),)
    return Candidate("tool_code", match.start("fence"), fence.end, calls)


READERS: dict[str, Reader] = {
    "json": _json, "listed": _listed, "functions": _functions, "spoken": _titled,
    "worded": _worded, "called": _lone, "block": _block, "run": _run, "request": _request,
    "engine": _lone, "alone": _lone, "whole": _lone, "above": _titled,
}  # fmt: skip
