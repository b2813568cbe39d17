"""The table of notations: what opens a call in each, and how the call behind it is read.

Tags and special tokens are known by what their name says (a *tool*, *function* or *action* that is
*called*, *used* or *requested*), so a dialect that nobody has listed is found too. A marker is no
call by itself: it needs a payload, or a line of its own. Where there is no marker, the shape of a
call (bare JSON, Python's, ReAct's lines) and its position must both be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

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

Match = re.Match[str]
Reader = Callable[[Match, Context], Candidate | None]

# A tag opens calls when its name matches the first and not the second.
_CALL_WORDS = re.compile(
    r"(?:tool|function|plugin)s?_?(?:call|us|request|invo|prefix)|python_start|"
    r"(?:call|use|invoke|run|execute|request)_?(?:mcp_)?(?:tool|function|plugin)|"
    r"start_action|action_start"
)
_NO_CALL_WORDS = re.compile(
    r"result|respon|output|sep\b|arg|close|stop|user|usage|example|history|(?:^|_)end(?:_|$)|end$|"
    r"schema|config|count"
)
# Part of a tag's name → form. The first that matches counts: the order is from special to general.
_FORM_OF_TAG = {
    "python_start": "pythonic",
    "dsml": "deepseek",
    "minimax": "minimax",
    "section": "kimi",
    "longcat": "longcat",
    "plamo": "plamo",
    "action": "cohere",
    "functioncall": "glaive",
    "start_function_call": "gemma",
    "｜": "deepseek",
}
# `<tool_call>` is common to several forms: there the kind of the payload tells.
_FORM_OF_PAYLOAD = {
    "json": "hermes_json",
    "xml": "nemotron_xml",
    "invoke": "invoke_xml",
    "glm": "glm",
}
_ANY_TAG = re.compile(r"\s*(?:</?[^<>\s/][^<>\n]{0,160}>|\[ARGS\])")
# what may stand between a recipient and its message, with special tokens or without them
_HARMONY_HEADER = re.compile(
    r"(?:\s|<\|(?:channel|constrain)\|>|commentary|analysis|json|code){0,8}(<\|message\|>)?"
)
# roles and targets of a message that are no tools
_NO_RECIPIENTS = frozenset({"user", "self", "all", "assistant", "system", "developer", "final"})
# how code that a model runs begins
_CODE_START = re.compile(
    r"\s{0,8}(?:import |from \w|[#!\d(]|def |for |```|[\w.\[\]\"']{1,80}(?:\(|\s?[+\-*/]?= ?))"
)
# a JSON call that is cut off or malformed behind its name
_BROKEN_JSON = re.compile(
    r"\{\s*[\"'](?:name|tool|tool_name|function|function_name)[\"']\s*:\s*[\"']([\w.\-]{1,128})[\"']"
    r"\s*,\s*[\"'](?:arguments|parameters|args|tool_input|input)[\"']\s*:\s*(?:[{]|[\"']\s*\{|$)"
)
# text right before a JSON value that shows it is part of larger data
_INSIDE_DATA = re.compile(r"[\"']\s*:$|[(=]$|[^}\]],$")
# a function's name has one of these as a word
_VERB = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:get|fetch|search|find|look|query|calculate|compute|convert|run|"
    r"execute|exec|send|create|add|update|delete|remove|set|list|read|write|open|load|save|book|"
    r"cancel|check|call|translate|generate|solve|plot|browse|retrieve|schedule|order|play|start|"
    r"stop|track|verify|analy[sz]e)(?=_|[A-Z]|\d|$)"
)


def has_call_marker(text: str) -> bool:
    """Check a text for any marker that opens or closes calls, even a broken or quoted one."""
    for match in OPENERS.finditer(text.replace("</", "<")):
        marker = match["marker"]
        tag = match["tag"]
        if marker and marker[0] in "[✿":
            return True
        if tag and _opens_calls(_words_of(tag)):
            return True
    return False


def _words_of(tag: str) -> str:
    """A tag's name in lower case, its words joined by underscores."""
    return tag.strip("|｜").replace("▁", "_").replace("-", "_").lower()


def _opens_calls(words: str) -> bool:
    return _CALL_WORDS.search(words) is not None and _NO_CALL_WORDS.search(words) is None


def _looks_like_function(call: RequestedCall) -> bool:
    """Check that a name looks like a function's (`get_x`, `getX`, `a.b`), not like a word."""
    return re.search(r"[_.]|[a-z][A-Z]", call.name or "") is not None


def _read_tag(match: Match, context: Context) -> Candidate | None:
    """Read a call behind `<tag>` or `<function=NAME>`; None for tags that open no calls."""
    tag = match["tag"]
    words = _words_of(tag)
    if match["rest"] and re.split(r"[:|｜]", words)[-1] in ("function", "invoke"):
        return _read_function_element(match, context, words)
    gemma_closing = tag.endswith(("|", "｜")) and tag[0] not in "|｜"
    if gemma_closing or not _opens_calls(words):
        return None
    return _read_marked(match, context)


def _read_function_element(match: Match, context: Context, words: str) -> Candidate | None:
    """Read `<function=NAME>` or `<invoke name="NAME">` that stands without a wrapper around it."""
    payload = read_payload(context, match.start())
    if payload is None:
        return None
    (call,) = payload.requested
    is_invoke = payload.kind == "invoke"
    if is_invoke and not call.arguments and not _looks_like_function(call):
        closes_at_once = context.text.startswith("</function>", match.end())
        if not closes_at_once:
            return None  # an element with a name and no parameters is any XML
    form = "invoke_xml"
    if "dsml" in words:
        form = "deepseek"
    elif payload.kind == "xml":
        form = "function_tag"
    return Candidate(
        form,
        match.start(),
        payload.end,
        payload.requested,
        plain=is_invoke and words == "function",
        marked=bool(call.arguments) and payload.end > match.end(),
    )


def _read_marked(match: Match, context: Context) -> Candidate | None:
    """Read the calls behind a marker, past further markers that follow it at once."""
    text = context.text
    start = match.start()
    position = match.end()
    payload = read_payload(context, position)
    # a wrapper and the marker of its first call often follow each other
    while payload is None and (inner_tag := _ANY_TAG.match(text, position)):
        if inner_tag.end() >= match.end() + 100:
            break
        position = inner_tag.end()
        payload = read_payload(context, position)
    end = max(match.end(), payload.end if payload else 0)
    if tag := match["tag"]:
        closing_tag = f"</{tag.lstrip('|｜')}>"
        closing = context.find(closing_tag, end)
        if closing >= 0:
            end = closing + len(closing_tag)
    form = _form_of_marker(match, payload)
    if payload is None:
        return _read_cut_off_name(match, context, form, position, end)
    requested = list(payload.requested)
    position = end if payload.broken else payload.end
    while position < end:  # further calls in the same wrapper
        following = read_payload(context, position)
        if following and not following.broken:
            requested += following.requested
            position = following.end
        elif (inner_tag := _ANY_TAG.match(text, position)) and inner_tag.end() <= end:
            position = inner_tag.end()
        else:
            break
    return Candidate(form, start, end, tuple(requested), marked=True)


def _read_cut_off_name(
    match: Match, context: Context, form: str, position: int, end: int
) -> Candidate | None:
    """Read a marker without a payload: a call if it stands alone or only a tool's name is left."""
    if match["recipient"] is not None:
        return None
    rest = context.text[position : position + 160].strip()
    name = rest if toolish(rest) else None
    begins_line = not context.before(match.start()).strip(" \t>*-")
    ends_line = not context.after(match.end()).strip()
    begins_text = context.skip(0) == match.start()
    if not (begins_line and (name or ends_line or begins_text)):
        return None
    return Candidate(form, match.start(), end, (RequestedCall(name),))


def _form_of_marker(match: Match, payload: Payload | None) -> str:
    """Form that a marker shows, or that its payload shows where the marker is common to several."""
    tag = match["tag"]
    if not tag:
        return "mistral" if match[0][0] == "[" else "marker"
    if _words_of(tag) in ("tool_call", "tool_calls") and tag[0] not in "|｜":
        return _FORM_OF_PAYLOAD.get(payload.kind if payload else "", "tool_call_tag")
    for part, form in _FORM_OF_TAG.items():
        if part in tag.lower():
            return form
    return "special_token" if tag[0] == "|" else "tool_tag"


def _read_kimi(match: Match, context: Context) -> Candidate:
    """Read `<|open|>call name="f" …<|sep|>…<|close|>call<|sep|>`."""
    end = max(match.end(), context.find("<|close|>call", match.end()))
    return Candidate("kimi", match.start(), end, (RequestedCall(match["opened"]),))


_HARMONY_BUILTINS: dict[str, Builtin] = {"python": "python", "browser": "search"}


def _read_harmony(match: Match, context: Context) -> Candidate | None:
    """Read `to=functions.f<|channel|>commentary json<|message|>{…}`, or as text `to=f {…}`."""
    name = match["to"]
    header = _HARMONY_HEADER.match(context.text, match.end())
    if name in _NO_RECIPIENTS or header is None:
        return None
    value, end = context.json(context.skip(header.end()))
    arguments = read_arguments(value) if isinstance(value, dict) else None
    if arguments is None:
        has_message_token = header[1] is not None
        begins_json = header[0].strip() and context.text.startswith("{", header.end())
        if not (has_message_token or begins_json):
            return None
    if value is NOTHING:
        next_token = context.find("<|", header.end())
        end = next_token if next_token >= 0 else len(context.text)
    builtin = _HARMONY_BUILTINS.get(name.split(".")[0])
    requested = RequestedCall(name, arguments, builtin=builtin)
    return Candidate("harmony", match.start(), end, (requested,))


def _read_code(match: Match, context: Context) -> Candidate | None:
    """Read code to run or a query: `<execute>…</execute>`, `<|python_tag|>…`, a tool_code block."""
    text = context.text
    tag = match["code"] or ""
    start = match.start()
    position = match.end()
    is_token = tag[:1] == "|"
    is_llama = tag == "|python_tag|"
    fence = context.fence(position) if match["fence"] else None
    calls: tuple[RequestedCall, ...] = ()
    if fence or is_llama or tag == "tool_code":
        payload = read_payload(context, position)
        calls = payload.requested if payload else ()
        first_name = (calls[0].name or "") if calls else ""
        reads_as_call = first_name.endswith(".call") or (
            first_name and payload is not None and payload.kind == "json"
        )
        if payload and is_llama and reads_as_call:
            calls = tuple(
                replace(call, name=(call.name or "").removesuffix(".call")) for call in calls
            )
            return Candidate("llama_python_tag", start, payload.end, calls)

    if fence:
        stop = fence[1]
    else:
        closing = context.find("<|e" if is_token else f"</{tag}>", position)
        stop = closing if closing >= 0 else len(text)
    code = text[position : min(stop, position + 4000)]
    if not code.strip(" .…\n") or (match["fence"] and fence is None):
        return None
    before = text[max(0, start - 80) : start].rstrip()
    if tag and before.endswith(">") and not before.endswith(("|>", "think>")):
        return None  # an element inside another one is part of a document
    if is_llama and not _CODE_START.match(code):
        return None

    builtin: Builtin = "python"
    if re.search("search|query|wiki|google|browse", tag):
        builtin = "search"
    if builtin == "search" and code.lstrip()[:1] == "<":
        return None  # an element that holds elements is a document
    if is_llama or not calls:
        name = "bash" if "bash" in tag else builtin
        calls = (RequestedCall(name, {"input": UNREAD}, builtin=builtin),)
    return Candidate(
        "tool_code" if match["fence"] else f"{builtin}_request",
        start,
        stop if fence else text.find(">", stop) + 1 or len(text),
        calls,
        plain=bool(tag) and not is_token and tag != "tool_code",
    )


def _read_bare_json(match: Match, context: Context) -> Candidate | None:
    """Read JSON of a call's shape; the candidate for any other JSON value requests no calls."""
    text = context.text
    start = match.start()
    value, end = context.json(start)
    inside_data = _INSIDE_DATA.search(text[max(0, start - 60) : start].rstrip()) is not None
    if value is not NOTHING:
        calls = () if inside_data else calls_in(value)
    else:
        broken = None if inside_data else _BROKEN_JSON.match(text, start)
        if broken is None:
            return None
        calls = (RequestedCall(broken[1]),)
        fence = context.fence(start)  # a call that is no valid JSON ends with its block
        end = fence[1] if fence else len(text)
    if _is_requested_data(calls, context):
        calls = ()
    return Candidate("bare_json", start, end, calls)


_TOOL_KEYS = re.compile(r"\b(?:name|tool|function|action|api|method)s?\b", re.I)
_PARAMETER_KEYS = re.compile(r"\b(?:arg|param|input)[a-z]*s?\b", re.I)


def _is_requested_data(calls: tuple[RequestedCall, ...], context: Context) -> bool:
    """Check if the prompt asked for JSON that happens to look like these calls."""
    if context.declares(calls):
        return False
    names = [call.name or "" for call in calls]
    question = context.question
    if not question.wants_data:
        return any(name.istitle() and "_" not in name for name in names)
    if _TOOL_KEYS.search(question.text) and _PARAMETER_KEYS.search(question.text):
        return True
    return not all("." in name or ("_" in name and _VERB.search(name)) for name in names)


def _read_python(match: Match, context: Context) -> Candidate | None:
    """Read calls in Python's shape that stand alone: a list, `functions.f(…)`, `Action: f(x=1)`."""
    notation = match.lastgroup or ""
    payload = read_payload(context, match.end())
    if payload is None or payload.kind != "python" or payload.broken:
        return None
    start = context.skip(match.start())
    end = payload.end
    calls = payload.requested
    before = context.before(start)
    behind = context.text[end:] if notation == "whole_text" else context.after(end)
    if behind.strip(" \t\r\n.;)`*")[:1] not in ("", "<"):
        return None
    # on a line of its own, or behind prose (and behind no word that code has there)
    begins_line = re.fullmatch(r"\s{0,3}(?:[>*-]\s{0,3})*", before)
    follows_prose = re.search(r"(?:\w |[.:!?>] ?)(?<!return )(?<!yield )(?<!else )\Z", before)
    like_functions = all(_looks_like_function(call) for call in calls)
    if not begins_line and not (follows_prose and like_functions):
        return None
    positional = any(key.isdecimal() for call in calls for key in call.arguments or {})
    if notation != "search_engine":
        if positional and notation != "labelled_python":
            return None
        if not like_functions and notation != "python_list":
            return None
    if any((call.name or "").istitle() for call in calls):
        return None  # `[Point(x=1)]` is an object as it prints
    if notation == "search_engine":
        calls = tuple(replace(call, builtin="search") for call in calls)
    form = {"search_engine": "search_request", "functions_namespace": "functions_dot"}.get(
        notation, "pythonic"
    )
    plain = notation not in ("python_list", "functions_namespace") or not begins_line
    return Candidate(form, start, end, calls, plain)


def _read_labelled_lines(match: Match, context: Context) -> Candidate | None:
    """Read a name in a labelled line (`Action: f`) and its arguments in the next."""
    start = match.start()
    is_react = bool(match["react"])
    name = (match["bracket"] or match["tool"]).strip()
    if not toolish(name):
        return None
    if match["bracket"]:
        call = RequestedCall(name, {"query": match["query"]})
        return Candidate("react", start, match.end(), (call,))
    position = context.skip(match.end())
    if not is_react and context.text[position : position + 1] != "{":
        return None
    value, end = context.json(position)
    arguments = None if value is NOTHING else read_arguments(value)
    if is_react and arguments is None:
        arguments = {"": UNREAD}
    end_of_line = match.end() + len(context.after(match.end()))
    return Candidate(
        "react" if is_react else "text_lines",
        start,
        max(end, end_of_line),
        (RequestedCall(name, arguments),),
        plain=not (is_react or match["calls"]),
    )


@dataclass(frozen=True, slots=True)
class Notation:
    """One way of writing a call.

    Attributes:
        opener: pattern of what opens the call, in verbose syntax. Openers share one namespace of
            groups.
        read: reader of what follows the opener; None from it where there is no call after all.
    """

    opener: str
    read: Reader


# Notations that begin a line. They are tried first: they hold what the others would see a part of.
LINE_NOTATIONS: dict[str, Notation] = {
    # `Action: f` with arguments in the next line, or `Search[query]`
    "labelled_lines": Notation(
        r"""(?i:[ \t]{0,8}(?:[>*\#\-][ \t]{0,8})?\*{0,2}(?:tool|function|action)
            (?P<calls>[ _-]?(?:calls?|to[ _]call))?(?:[ _]name|[ ]\d+)?\*{0,2}
            [ \t]{0,8}[:=][ \t*]{0,18}
            (?:[`"']?(?P<tool>[A-Za-z_][\w.\-:/ ]{0,80}?)[`"']?[ \t]{0,8}\n\s{0,8}\*{0,2}
                (?:(?P<react>Action[ _]?Input(?:[ ]\d+)?)
                |(?:(?:tool|function|action)[ _-]?)?(?:arguments|parameters|args|params|input))
                \*{0,2}[ \t]{0,8}[:=]\*{0,2}
            |(?P<bracket>(?:search|lookup|look_up|retrieve|query|wikipedia|google|browse|calculat(?:or|e)
                |python)\w{0,30}|[A-Za-z]+_\w{0,60})\[(?P<query>[^\]\n]{1,400})\][ \t]{0,8}$))""",
        _read_labelled_lines,
    ),
    # ```tool_code
    "code_fence": Notation(
        r"""[ \t]*(?P<fence>`{3,}|~{3,})
            (?:tool_code|tool_calls?|function_call|tool_use|code_interpreter|json[ ]tool_call)
            [ \t]*\n""",
        _read_code,
    ),
    # `default_api.f(…)`, `Action: f(…)`
    "labelled_python": Notation(
        r"""[ \t]*(?:(?=(?:print\()?default_api\.)|tool_code\n
            |(?i:action|(?:function[ ]|tool[ ])?call):[ \t]*)(?=[A-Za-z_][\w.]{0,127}\()""",
        _read_python,
    ),
    # `brave_search(…)`, Llama's search engines
    "search_engine": Notation(
        r"""[ \t]*(?=(?:(?:brave|web|google|bing|duckduckgo)_search|wolfram_alpha|search_web
            |(?:browser|google)\.search)[\w.]{0,64}\()""",
        _read_python,
    ),
    # `f(x=1)` as the whole text
    "whole_text": Notation(
        r"\A\s*(?=(?!functions\.)[A-Za-z_][\w.]{0,127}\(\s{0,4}[A-Za-z_]\w{0,60}\s?=(?!=))",
        _read_python,
    ),
}
# Notations that begin anywhere, with one of the characters of `_FIRST_CHARACTERS`.
INLINE_NOTATIONS: dict[str, Notation] = {
    # `[TOOL_CALLS]`, `functools[…]`, `>>>f`, `<<function>>`
    "marker": Notation(
        r"""\[(?:TOOL|FUNCTION|PLUGIN)[ _]?(?:CALLS?|REQUESTS?|USES?)\]
            |(?P<recipient>✿FUNCTION✿:?|\bfunctools(?=\[\s{0,8}\{)|<<function>>|(?<!\w)call:(?=[A-Za-z_][\w.]+\{)
                |(?:(?<![>\w])|(?<=[.!?:])|(?<=assistant))>>>(?!all\b)(?=[A-Za-z_][\w.\-]{0,127}\n?\s?\{)
                |^(?:<\|recipient\|>|>>>)(?!all\b)(?=[A-Za-z_][\w.\-]{0,127}\s{0,2}(?:\{|<\||\n)))""",
        _read_marked,
    ),
    # `<|open|>call name=…`
    "kimi_open": Notation(
        r'<\|open\|>call\b[^<>\n]{0,80}?\b(?:name|tool)\s?=\s?"(?P<opened>[^"\n]{1,128})"',
        _read_kimi,
    ),
    # `<execute>`, `<|python_tag|>`, `<search>`
    "code_tag": Notation(
        r"""<(?P<code>execute(?:_bash|_i?python|_code)?|i?python|python_code|jupyter(?:_code)?
            |run_(?:code|python)|(?:code_)?interpreter|tool_code|bash|(?:web_?|google_)?search|search_query
            |google|browse|wiki(?:pedia)?
            |\|(?:begin_search_query|begin_of_query|search|tool_code|(?:code_)?interpreter|execute_start
            |python_tag)\|)>""",
        _read_code,
    ),
    # `to=functions.f`
    "harmony": Notation(
        r"""(?:<\|(?:channel|start)\|>\s?\w{1,20}\s{0,4})?
            (?<![\w"'`])to=(?P<to>[A-Za-z_][\w.]{0,127})(?=\s|<\||$)""",
        _read_harmony,
    ),
    # `<tool_call>`, `<function=f>`, `<|tool_call_begin|>`
    "tagged": Notation(
        r"""<(?P<tag>[|｜]?[A-Za-z_][\w▁:\-.|｜]{1,60}?)
            (?P<rest>=[^<>\n]{1,128}|[\sĠ][^<>\n]{0,160}|(?<=function)name=[^<>\n]{1,128})?>""",
        _read_tag,
    ),
    # `{"name": …`
    "bare_json": Notation(
        r"""(?:\[\s{0,40}){0,3}\{\s{0,40}["']\w{1,40}["']\s{0,4}:""",
        _read_bare_json,
    ),
    # `[f(x=1), …]`
    "python_list": Notation(
        r"(?=\[\s{0,40}[A-Za-z_][\w.\-/ ]{0,127}(?<![ ])\()",
        _read_python,
    ),
    # `functions.f(…)`
    "functions_namespace": Notation(
        r"(?<![\w.])(?=functions\.[A-Za-z_][\w.]{0,127}\()",
        _read_python,
    ),
}
NOTATIONS = {**LINE_NOTATIONS, **INLINE_NOTATIONS}
# a cheap test that keeps the long alternation away from most positions of a text
_FIRST_CHARACTERS = r"(?=[<\[>✿fct{])"


def _alternatives(notations: dict[str, Notation]) -> str:
    """Pattern of any of these openers, each in a group of its notation's name."""
    return "|".join(f"(?P<{name}>{notation.opener})" for name, notation in notations.items())


# The last group of a match is the name of its notation.
OPENERS = re.compile(
    f"^(?:{_alternatives(LINE_NOTATIONS)})|{_FIRST_CHARACTERS}(?:{_alternatives(INLINE_NOTATIONS)})",
    re.MULTILINE | re.VERBOSE,
)
