"""The table of what opens a call, and how a call is read behind it.

Tags and special tokens are known by what their name says (a *tool*, *function* or *action* that is
*called*, *used* or *requested*), so a dialect that nobody has listed is found too. A marker is no
call by itself: it needs a payload, or a line of its own. Where there is no marker, the shape of a
call (bare JSON, Python's, ReAct's lines) and its place must both be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from posttrain.chat.detect.context import Candidate, Context
from posttrain.chat.detect.requested import (
    UNREAD,
    Builtin,
    RequestedCall,
    calls_in,
    read_arguments,
    toolish,
)
from posttrain.chat.detect.shapes import NOTHING, Payload, read_payload

# every way in which a call may open; `READERS` says how each is read
OPENERS = re.compile(
    r"""
^(?:  # line forms first: they hold what the others would see a part of
(?P<worded>(?i:[ \t]{0,8}(?:[>*\#\-][ \t]{0,8})?\*{0,2}(?:tool|function|action)
    (?P<calls>[ _-]?(?:calls?|to[ _]call))?(?:[ _]name|[ ]\d+)?\*{0,2}[ \t]{0,8}[:=][ \t*]{0,18}
    (?:[`"']?(?P<tool>[A-Za-z_][\w.\-:/ ]{0,80}?)[`"']?[ \t]{0,8}\n\s{0,8}\*{0,2}
        (?:(?P<react>Action[ _]?Input(?:[ ]\d+)?)
        |(?:(?:tool|function|action)[ _-]?)?(?:arguments|parameters|args|params|input))
        \*{0,2}[ \t]{0,8}[:=]\*{0,2}
    |(?P<bracket>(?:search|lookup|look_up|retrieve|query|wikipedia|google|browse|calculat(?:or|e)
        |python)\w{0,30}|[A-Za-z]+_\w{0,60})\[(?P<query>[^\]\n]{1,400})\][ \t]{0,8}$)))
|(?P<block>[ \t]*(?P<fence>`{3,}|~{3,})
    (?:tool_code|tool_calls?|function_call|tool_use|code_interpreter|json[ ]tool_call)[ \t]*\n)
|(?P<lone>[ \t]*(?:(?=(?:print\()?default_api\.)|tool_code\n
    |(?i:action|(?:function[ ]|tool[ ])?call):[ \t]*)(?=[A-Za-z_][\w.]{0,127}\())
|(?P<engine>[ \t]*(?=(?:(?:brave|web|google|bing|duckduckgo)_search|wolfram_alpha|search_web
    |(?:browser|google)\.search)[\w.]{0,64}\())
|(?P<whole>\A\s*(?=(?!functions\.)[A-Za-z_][\w.]{0,127}\(\s{0,4}[A-Za-z_]\w{0,60}\s?=(?!=)))
)
|(?=[<\[>✿fct{])(?:
(?P<marker>\[(?:TOOL|FUNCTION|PLUGIN)[ _]?(?:CALLS?|REQUESTS?|USES?)\]
    |(?P<recipient>✿FUNCTION✿:?|\bfunctools(?=\[\s{0,8}\{)|<<function>>|(?<!\w)call:(?=[A-Za-z_][\w.]+\{)
        |(?:(?<![>\w])|(?<=[.!?:])|(?<=assistant))>>>(?!all\b)(?=[A-Za-z_][\w.\-]{0,127}\n?\s?\{)
        |^(?:<\|recipient\|>|>>>)(?!all\b)(?=[A-Za-z_][\w.\-]{0,127}\s{0,2}(?:\{|<\||\n))))
|(?P<open><\|open\|>call\b[^<>\n]{0,80}?\b(?:name|tool)\s?=\s?"(?P<opened>[^"\n]{1,128})")
|(?P<coded><(?P<code>execute(?:_bash|_i?python|_code)?|i?python|python_code|jupyter(?:_code)?
    |run_(?:code|python)|(?:code_)?interpreter|tool_code|bash|(?:web_?|google_)?search|search_query
    |google|browse|wiki(?:pedia)?
    |\|(?:begin_search_query|begin_of_query|search|tool_code|(?:code_)?interpreter|execute_start
    |python_tag)\|)>)
|(?P<harmony>(?:<\|(?:channel|start)\|>\s?\w{1,20}\s{0,4})?
    (?<![\w"'`])to=(?P<to>[A-Za-z_][\w.]{0,127})(?=\s|<\||$))
|(?P<tagged><(?P<tag>[|｜]?[A-Za-z_][\w▁:\-.|｜]{1,60}?)
    (?P<rest>=[^<>\n]{1,128}|[\sĠ][^<>\n]{0,160}|(?<=function)name=[^<>\n]{1,128})?>)
|(?P<json>(?:\[\s{0,40}){0,3}\{\s{0,40}["']\w{1,40}["']\s{0,4}:)
|(?P<listed>(?=\[\s{0,40}[A-Za-z_][\w.\-/ ]{0,127}(?<![ ])\())
|(?P<functions>(?<![\w.])(?=functions\.[A-Za-z_][\w.]{0,127}\())
)""",
    re.M | re.X,
)
_CALLS = re.compile(
    r"(?:tool|function|plugin)s?_?(?:call|us|request|invo|prefix)|python_start|"
    r"(?:call|use|invoke|run|execute|request)_?(?:mcp_)?(?:tool|function|plugin)|"
    r"start_action|action_start"
)
_NO_CALLS = re.compile(
    r"result|respon|output|sep\b|arg|close|stop|user|usage|example|history|(?:^|_)end(?:_|$)|end$|"
    r"schema|config|count"
)
# the form that a tag's name tells by itself, and that its payload tells behind <tool_call>
_FORMS = (
    ("python_start", "pythonic"), ("dsml", "deepseek"), ("minimax", "minimax"),
    ("section", "kimi"), ("longcat", "longcat"), ("plamo", "plamo"), ("action", "cohere"),
    ("functioncall", "glaive"), ("start_function_call", "gemma"), ("｜", "deepseek"),
)  # fmt: skip
_KINDS = {"json": "hermes_json", "xml": "nemotron_xml", "invoke": "invoke_xml", "glm": "glm"}
_TAG = re.compile(r"\s*(?:</?[^<>\s/][^<>\n]{0,160}>|\[ARGS\])")
# what may stand between a recipient and its message, with special tokens or without them
_HARMONY = re.compile(
    r"(?:\s|<\|(?:channel|constrain)\|>|commentary|analysis|json|code){0,8}(<\|message\|>)?"
)
_NO_RECIPIENTS = frozenset({"user", "self", "all", "assistant", "system", "developer", "final"})
_CODE = re.compile(
    r"\s{0,8}(?:import |from \w|[#!\d(]|def |for |```|[\w.\[\]\"']{1,80}(?:\(|\s?[+\-*/]?= ?))"
)
_BROKEN = re.compile(
    r"\{\s*[\"'](?:name|tool|tool_name|function|function_name)[\"']\s*:\s*[\"']([\w.\-]{1,128})[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters|args|tool_input|input)[\"']\s*:\s*(?:[{]|[\"']\s*\{|$)"
)
_IN_DATA = re.compile(r"[\"']\s*:$|[(=]$|[^}\]],$")
_VERB = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:get|fetch|search|find|look|query|calculate|compute|convert|run|"
    r"execute|exec|send|create|add|update|delete|remove|set|list|read|write|open|load|save|book|"
    r"cancel|check|call|translate|generate|solve|plot|browse|retrieve|schedule|order|play|start|"
    r"stop|track|verify|analy[sz]e)(?=_|[A-Z]|\d|$)"
)


def has_call_marker(text: str) -> bool:
    """Whether any marker that opens or closes calls is in a text, called, broken or spoken of."""
    return any(
        (match["marker"] or "x")[0] in "[✿" or (match["tag"] and _opens_calls(_word(match["tag"])))
        for match in OPENERS.finditer(text.replace("</", "<"))
    )


def _word(tag: str) -> str:
    return tag.strip("|｜").replace("▁", "_").replace("-", "_").lower()


def _opens_calls(word: str) -> bool:
    return _CALLS.search(word) is not None and _NO_CALLS.search(word) is None


def _tagged(match: re.Match[str], context: Context) -> Candidate | None:
    tag, word = match["tag"], _word(match["tag"])
    if match["rest"] and re.split(r"[:|｜]", word)[-1] in ("function", "invoke"):
        payload = read_payload(context, match.start())  # without a wrapper around it
        if payload is None:
            return None
        (call,), empty = payload.requested, context.text.startswith("</function>", match.end())
        if payload.kind == "invoke" and not (call.arguments or empty or _function_like(call)):
            return None  # an element with a name and no parameters is any XML
        form = "function_tag" if payload.kind == "xml" else "invoke_xml"
        form = "deepseek" if "dsml" in word else form
        plain = payload.kind == "invoke" and word == "function"
        marked = bool(call.arguments) and payload.end > match.end()
        return Candidate(form, match.start(), payload.end, payload.requested, plain, marked)
    closes = tag.endswith(("|", "｜")) and tag[0] not in "|｜"  # gemma's
    return _marked(match, context) if _opens_calls(word) and not closes else None


def _marked(match: re.Match[str], context: Context) -> Candidate | None:
    """A call behind its marker, and behind further markers that follow it at once."""
    text, start, at = context.text, match.start(), match.end()
    payload = read_payload(context, at)
    while not payload and (other := _TAG.match(text, at)) and other.end() < match.end() + 100:
        at = other.end()
        payload = read_payload(context, at)
    end = max(match.end(), payload.end if payload else 0)
    if tag := match["tag"]:
        closer = f"</{tag.lstrip('|｜')}>"
        closed = context.find(closer, end)
        end = closed + len(closer) if closed >= 0 else end
    form, recipient = _form(match, payload), match["recipient"] is not None
    if payload is None:
        rest = text[at : at + 160].strip()
        name = rest if toolish(rest) else None  # all that is left where it was cut off
        starts = not context.before(start).strip(" \t>*-")
        alone = name or not context.after(match.end()).strip() or context.skip(0) == start
        if recipient or not (starts and alone):
            return None
        return Candidate(form, start, end, (RequestedCall(name),))
    requested = list(payload.requested)
    at = end if payload.broken else payload.end
    while at < end:  # further calls in one wrapper
        more = read_payload(context, at)
        if more and not more.broken:
            requested += more.requested
            at = more.end
        elif (other := _TAG.match(text, at)) and other.end() <= end:
            at = other.end()
        else:
            break
    return Candidate(form, start, end, tuple(requested), marked=True)


def _form(match: re.Match[str], payload: Payload | None) -> str:
    """The form that a marker shows, or its payload where the marker is common to several."""
    if not (tag := match["tag"]):
        return "mistral" if match[0][0] == "[" else "marker"
    if _word(tag) in ("tool_call", "tool_calls") and tag[0] not in "|｜":
        return _KINDS.get(payload.kind if payload else "", "tool_call_tag")
    default = "special_token" if tag[0] == "|" else "tool_tag"
    return next((form for part, form in _FORMS if part in tag.lower()), default)


def _function_like(call: RequestedCall) -> bool:
    """Whether a name looks like a function's rather than like a word: `get_x`, `getX`, `a.b`."""
    return re.search(r"[_.]|[a-z][A-Z]", call.name or "") is not None


def _open(match: re.Match[str], context: Context) -> Candidate:
    """`<|open|>call name="f" …<|sep|>…<|close|>call<|sep|>`."""
    end = max(match.end(), context.find("<|close|>call", match.end()))
    return Candidate("kimi", match.start(), end, (RequestedCall(match["opened"]),))


def _harmony(match: re.Match[str], context: Context) -> Candidate | None:
    """`to=functions.f<|channel|>commentary json<|message|>{…}`, or as plain text `to=f {…}`."""
    name, head = match["to"], _HARMONY.match(context.text, match.end())
    if name in _NO_RECIPIENTS or head is None:
        return None
    value, end = context.json(context.skip(head.end()))
    arguments = read_arguments(value) if isinstance(value, dict) else None
    begun = head[0].strip() and context.text.startswith("{", head.end())
    if arguments is None and not (head[1] or begun):
        return None
    if value is NOTHING:
        stop = context.find("<|", head.end())
        end = stop if stop >= 0 else len(context.text)
    builtins: dict[str, Builtin] = {"python": "python", "browser": "search"}
    requested = RequestedCall(name, arguments, builtin=builtins.get(name.split(".")[0]))
    return Candidate("harmony", match.start(), end, (requested,))


def _code(match: re.Match[str], context: Context) -> Candidate | None:
    """Code to run or a query: `<execute>…</execute>`, `<|python_tag|>…`, a block "tool_code"."""
    text, tag, start, at = context.text, match["code"] or "", match.start(), match.end()
    token, llama = tag[:1] == "|", tag == "|python_tag|"
    fence = context.fence(at) if match["fence"] else None
    payload = read_payload(context, at) if fence or llama or tag == "tool_code" else None
    calls = payload.requested if payload else ()
    first = calls[0].name or "" if calls else ""
    if payload and llama and (first.endswith(".call") or (first and payload.kind == "json")):
        calls = tuple(replace(c, name=(c.name or "").removesuffix(".call")) for c in calls)
        return Candidate("llama_python_tag", start, payload.end, calls)
    closed = fence[1] if fence else context.find("<|e" if token else f"</{tag}>", at)
    stop = closed if closed >= 0 else len(text)
    inner, before = text[at : min(stop, at + 4000)], text[max(0, start - 80) : start].rstrip()
    nested = tag and before.endswith(">") and not before.endswith(("|>", "think>"))
    blank = not inner.strip(" .…\n") or (match["fence"] and fence is None)
    if blank or nested or (llama and not _CODE.match(inner)):
        return None
    kind: Builtin = "search" if re.search("search|query|wiki|google|browse", tag) else "python"
    if kind == "search" and inner.lstrip()[:1] == "<":
        return None  # an element that holds elements is a document
    if llama or not calls:
        name = "bash" if "bash" in tag else kind
        calls = (RequestedCall(name, {"input": UNREAD}, builtin=kind),)
    end = stop if fence else text.find(">", stop) + 1 or len(text)
    form = "tool_code" if match["fence"] else f"{kind}_request"
    return Candidate(form, start, end, calls, plain=bool(tag) and not token and tag != "tool_code")


def _json(match: re.Match[str], context: Context) -> Candidate | None:
    """JSON of a call's shape; any other value that was read is passed over."""
    text, start = context.text, match.start()
    value, end = context.json(start)
    inside = _IN_DATA.search(text[max(0, start - 60) : start].rstrip()) is not None
    if value is not NOTHING:
        calls = () if inside else calls_in(value)
    elif inside or (broken := _BROKEN.match(text, start)) is None:
        return None
    else:
        calls = (RequestedCall(broken[1]),)
        fence = context.fence(start)  # a call that is no valid JSON ends with its block
        end = fence[1] if fence else len(text)
    return Candidate("bare_json", start, end, () if _is_data(calls, context) else calls)


def _is_data(calls: tuple[RequestedCall, ...], context: Context) -> bool:
    """Whether the prompt asked for JSON that happens to look like this."""
    question, names = context.question, [call.name or "" for call in calls]
    if context.declares(calls):
        return False
    if not question.wants_data:
        return any(name.istitle() and "_" not in name for name in names)
    tools, parameters = "(?:name|tool|function|action|api|method)", "(?:arg|param|input)[a-z]*"
    keyed = all(re.search(rf"\b{key}s?\b", question.text, re.I) for key in (tools, parameters))
    return keyed or not all("." in n or ("_" in n and _VERB.search(n)) for n in names)


def _python(match: re.Match[str], context: Context) -> Candidate | None:
    """Calls in Python's shape that stand alone: a list, `functions.f(…)`, `Action: f(x=1)`."""
    payload, row = read_payload(context, match.end()), match.lastgroup
    if payload is None or payload.kind != "python" or payload.broken:
        return None
    start, end, calls = context.skip(match.start()), payload.end, payload.requested
    before = context.before(start)
    rest = context.text[end:] if row == "whole" else context.after(end)
    # on a line of its own, or behind prose (and behind no word that code has there)
    own = re.fullmatch(r"\s{0,3}(?:[>*-]\s{0,3})*", before)
    led = re.search(r"(?:\w |[.:!?>] ?)(?<!return )(?<!yield )(?<!else )\Z", before)
    functions = all(_function_like(call) for call in calls)
    if not (own or (led and functions)) or rest.strip(" \t\r\n.;)`*")[:1] not in ("", "<"):
        return None
    named = not any(key.isdecimal() for call in calls for key in call.arguments or {})
    if row != "engine" and not ((named or row == "lone") and (functions or row == "listed")):
        return None
    if any((call.name or "").istitle() for call in calls):
        return None  # `[Point(x=1)]` is an object as it prints
    if row == "engine":
        calls = tuple(replace(call, builtin="search") for call in calls)
    form = {"engine": "search_request", "functions": "functions_dot"}.get(row or "", "pythonic")
    return Candidate(form, start, end, calls, plain=row not in ("listed", "functions") or not own)


def _worded(match: re.Match[str], context: Context) -> Candidate | None:
    """A name in a line and its arguments in the next."""
    start, name, react = match.start(), (match["bracket"] or match["tool"]).strip(), match["react"]
    if not toolish(name):
        return None
    if match["bracket"]:
        call = RequestedCall(name, {"query": match["query"]})
        return Candidate("react", start, match.end(), (call,))
    at = context.skip(match.end())
    if not react and context.text[at : at + 1] != "{":
        return None
    value, end = context.json(at)
    arguments = None if value is NOTHING else read_arguments(value)
    if react and arguments is None:
        arguments = {"": UNREAD}
    end = max(end, match.end() + len(context.after(match.end())))
    form, plain = "react" if react else "text_lines", not (react or match["calls"])
    return Candidate(form, start, end, (RequestedCall(name, arguments),), plain)


# lastgroup of a match → how it is read
READERS: dict[str, Callable[[re.Match[str], Context], Candidate | None]] = {
    "worded": _worded, "block": _code, "lone": _python, "engine": _python, "whole": _python,
    "marker": _marked, "open": _open, "coded": _code, "harmony": _harmony, "tagged": _tagged,
    "json": _json, "listed": _python, "functions": _python,
}  # fmt: skip
