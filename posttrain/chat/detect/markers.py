"""The table of what opens a call, and what is read behind it.

Tags and special tokens are known by what their name says (a *tool*, *function* or *action* that is
*called*, *used* or *requested*), so a dialect that nobody has listed is found too. A marker is no
call by itself: it needs a payload, or a line of its own. Calls that no marker opens are in `bare`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from posttrain.chat.detect.context import Candidate, Context
from posttrain.chat.detect.requested import (
    NAME,
    UNREAD,
    Arguments,
    Builtin,
    RequestedCall,
    toolish,
)
from posttrain.chat.detect.shapes import NOTHING, Payload, TextReader, read_payload

_RUN = (
    "execute|execute_bash|execute_ipython|execute_python|execute_code|code_interpreter|python|"
    "python_code|ipython|jupyter|jupyter_code|interpreter|tool_code|run_code|run_python|bash"
)
_SEEK = "search|web_search|websearch|google_search|google|search_query|browse|wiki|wikipedia"
_TOKENS = (
    "begin_search_query|begin_of_query|search|tool_code|code_interpreter|execute_start|interpreter"
)
# everything that may stand anywhere in a line
MARKERS = re.compile(
    r"(?=[<\[>✿fct])(?:(?P<mistral>\[(?:TOOL|FUNCTION|PLUGIN)[ _]?(?:CALLS?|REQUESTS?|USES?)\])"
    r"|(?P<marker>✿FUNCTION✿:?|\bfunctools(?=\[\s{0,8}\{)|<<function>>|(?<!\w)call:(?=[A-Za-z_][\w.]+\{)"
    rf"|(?:(?<![>\w])|(?<=[.!?:])|(?<=assistant))>>>(?!all\b)(?={NAME}\n?\s?\{{)"
    rf"|^(?:<\|recipient\|>|>>>)(?!all\b)(?=[A-Za-z_][\w.\-]{{0,127}}\s{{0,2}}(?:\{{|<\||\n)))"
    r"|(?P<open><\|open\|>call\b[^<>\n]{0,80}?\b(?:name|tool)\s?=\s?\"(?P<opened>[^\"\n]{1,128})\")"
    rf"|(?P<builtin><(?:(?P<run>{_RUN})|(?P<seek>{_SEEK})|\|(?P<token>{_TOKENS})\|)>)"
    r"|(?P<tagged><(?P<tag>[|｜]?[A-Za-z_][\w▁:\-.|｜]{1,60}?)"
    r"(?P<rest>=[^<>\n]{1,128}|[\sĠ][^<>\n]{0,160}|(?<=function)name=[^<>\n]{1,128})?>)"
    r"|(?P<harmony>(?<![\w\"'`])to=(?P<to>[A-Za-z_][\w.]{0,127})(?=\s|<\||$)))",
    re.M,
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
# the form that a marker's name tells by itself
_FORMS = (
    ("python_start", "pythonic"), ("dsml", "deepseek"), ("minimax", "minimax"),
    ("section", "kimi"), ("longcat", "longcat"), ("plamo", "plamo"), ("action", "cohere"),
    ("functioncall", "glaive"), ("start_function_call", "gemma"),
)  # fmt: skip
_KINDS = {"json": "hermes_json", "xml": "nemotron_xml", "invoke": "invoke_xml", "glm": "glm"}
_NEXT = re.compile(r"\s*(?:<[|｜]?[\w▁:\-.|｜]{2,60}(?:\s[^<>\n]{0,160})?>|\[ARGS\])")
_TAG = re.compile(r"\s*</?[^<>\s][^<>\n]{0,80}>")
_HARMONY = re.compile(
    r"\s?(?:<\|(?:channel|constrain)\|>)?\s?\w{0,20}\s?(?:<\|constrain\|>)?\s?(?:json|code)?"
    r"\s?<\|message\|>"
)
_CHANNEL = re.compile(r"<\|(?:channel|start)\|>\s?\w{1,20}\s*\Z")
# what is left of it where special tokens were taken out of the text
_STRIPPED = re.compile(r"(?:^|\n|commentary|analysis|assistant|final)\s*\Z")
_STRIPPED_HEAD = re.compile(r"\s?(?:json|code|commentary(?:\s?json)?)\s?")
_NO_RECIPIENTS = frozenset({"user", "self", "all", "assistant", "system", "developer", "final"})
_CODE = re.compile(
    r"\s{0,8}(?:import |from \w|print\(|[#!]|def |for |[\w.\[\]\"']{1,64}\s?[+\-*/]?= ?|"
    r"[\w.]{1,80}\(|```|[\d(][\d.\s+\-*/()%]*$)",
    re.M,
)
_LONGEST = 20_000


def has_call_marker(text: str) -> bool:
    """Whether any marker that opens or closes calls is in a text, called, broken or spoken of."""
    return any(
        match["mistral"]
        or (match["marker"] or "").startswith("✿")
        or (match["tag"] and _opens_calls(_word(match["tag"])))
        for match in MARKERS.finditer(text.replace("</", "<"))
    )


def _word(tag: str) -> str:
    return tag.strip("|｜").replace("▁", "_").replace("-", "_").lower()


def _opens_calls(word: str) -> bool:
    return _CALLS.search(word) is not None and _NO_CALLS.search(word) is None


def _tagged(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    tag = match["tag"]
    word = _word(tag)
    if word == "python_tag":
        return _python_tag(match, context, reader)
    if tag.endswith(("|", "｜")) and tag[0] not in "|｜":
        return None  # gemma's closing token
    local = re.split(r"[:|｜]", word)[-1]
    if match["rest"] and local in ("function", "invoke"):
        return _standalone(match, reader, dsml="dsml" in word)
    if not _opens_calls(word):
        return None
    return _opened(match, context, reader)


def _form(tag: str) -> str | None:
    """The form that a tag alone shows; None where its payload does."""
    word = _word(tag)
    if form := next((form for part, form in _FORMS if part in word), None):
        return form
    if "｜" in tag or tag[0] == "|":
        return "deepseek" if "｜" in tag else "special_token"
    return None if word in ("tool_call", "tool_calls") else "tool_tag"


def _opened(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """A call behind its marker, and behind further markers that follow it at once."""
    form = _form(match["tag"]) if match["tag"] else match.lastgroup
    at = match.end()
    payload = read_payload(reader, at)
    for _ in range(3):
        deeper = None if payload else _NEXT.match(reader.text, at)
        if deeper is None:
            break
        at = deeper.end()
        payload = read_payload(reader, at)
    end = _end(match, reader, payload)
    start, recipient = match.start(), match["marker"] is not None
    if payload is None:
        rest = reader.text[at : at + 160].strip()
        name = rest if toolish(rest) else None  # all that is left where it was cut off
        starts = not context.before(start).strip(" \t>*-")
        alone = name or not context.after(match.end()).strip() or reader.skip(0) == start
        if recipient or not (starts and alone):
            return None
        return Candidate(form or "tool_call_tag", start, end, (RequestedCall(name),))
    if payload.kind == "blank":
        return None
    if payload.kind == "lone" and (recipient or end == payload.end):
        return None
    more = [] if payload.broken else _more(reader, payload.end, end)
    requested = (*payload.requested, *more)
    form = form or _KINDS.get(payload.kind, "tool_call_tag")
    adjacent = not context.before(start)[-1:].isspace()
    return Candidate(form, start, end, requested, marked=adjacent or bool(requested[0].name))


def _more(reader: TextReader, position: int, end: int) -> list[RequestedCall]:
    """Further calls behind the first in one wrapper."""
    calls: list[RequestedCall] = []
    while position < end:
        payload = read_payload(reader, position)
        if payload is not None and payload.requested and not payload.broken:
            calls += payload.requested
            position = payload.end
        elif tag := _TAG.match(reader.text, position, end):
            position = tag.end()
        else:
            break
    return calls


def _end(match: re.Match[str], reader: TextReader, payload: Payload | None) -> int:
    """Where the call ends: behind its closing tag, or with its payload, or with the text."""
    start, tag = max(match.end(), payload.end if payload else 0), match["tag"]
    if tag is None:
        return start
    closer = f"</{tag}>" if tag[0] not in "|｜" else f"</{tag[1:]}"
    if (closed := reader.find(closer, start)) >= 0:
        return closed + len(closer)
    again = reader.find(match[0], match.end())
    return start if payload else again if again >= 0 else len(reader.text)


def _standalone(match: re.Match[str], reader: TextReader, *, dsml: bool) -> Candidate | None:
    """`<function=f>…` or `<invoke name="f">…` without a wrapper around it."""
    payload = read_payload(reader, match.start())
    if payload is None or payload.kind not in ("xml", "invoke"):
        return None
    (call,) = payload.requested
    closed = reader.text.startswith("</function>", match.end())
    if payload.kind == "invoke" and not (call.arguments or closed or function_like(call.name)):
        return None  # an element with a name and no parameters is any XML
    form = "deepseek" if dsml else "function_tag" if payload.kind == "xml" else "invoke_xml"
    plain = form == "invoke_xml" and match["tag"].startswith("function")
    marked = bool(call.arguments)
    return Candidate(form, match.start(), payload.end, payload.requested, plain, marked)


def function_like(name: str | None) -> bool:
    """Whether a name looks like a function's rather than like a word: `get_x`, `getX`, `a.b`."""
    return re.search(r"[_.]|[a-z][A-Z]", name or "") is not None


def _open(match: re.Match[str], context: Context, reader: TextReader) -> Candidate:
    """`<|open|>call name="f" …<|sep|>…<|close|>call<|sep|>`."""
    end = max(match.end(), reader.find("<|close|>call", match.end()))
    return Candidate("kimi", match.start(), end, (RequestedCall(match["opened"]),))


def _harmony(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`to=functions.f<|channel|>commentary json<|message|>{…}`, or as plain text `to=f {…}`."""
    text, start, name = reader.text, match.start(), match["to"]
    if name in _NO_RECIPIENTS:
        return None
    opened = text.rfind("<|", max(0, start - 60), start)
    channel = _CHANNEL.match(text, opened, start) if opened >= 0 else None
    head = _HARMONY.match(text, match.end())
    bare = None if head else _STRIPPED_HEAD.match(text, match.end())
    at = (head or bare or match).end()
    value, end = reader.json(reader.skip(at))
    stripped = bare and _STRIPPED.search(text, max(0, start - 40), start)
    if not (head or stripped or isinstance(value, dict)):
        return None
    if value is NOTHING:
        stop = reader.find("<|", at)
        end = stop if stop >= 0 else len(text)
    builtins: dict[str, Builtin] = {"python": "python", "browser": "search"}
    arguments = cast(Arguments, value) if isinstance(value, dict) else None
    requested = RequestedCall(name, arguments, builtin=builtins.get(name.split(".")[0]))
    return Candidate("harmony", opened if channel else start, end, (requested,))


def builtin_call(kind: Builtin, name: str, arguments: Arguments | None = None) -> RequestedCall:
    return RequestedCall(name, arguments or {"input": UNREAD}, builtin=kind)


def _python_tag(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """Llama's: a JSON call, `tool.call(…)`, or Python to be run."""
    start, text = match.start(), reader.text
    payload = read_payload(reader, match.end())
    first = payload.requested[0] if payload and payload.requested else None
    if payload and first and first.name and (
        payload.kind == "json" or first.name.endswith(".call")
    ):  # fmt: skip
        calls = [RequestedCall(c.name and c.name.removesuffix(".call"), c.arguments)
                 for c in payload.requested]  # fmt: skip
        return Candidate("llama_python_tag", start, payload.end, tuple(calls))
    if not _CODE.match(text[match.end() : match.end() + 400]):
        return None
    stop = reader.find("<|e", match.end())
    end = stop if stop >= 0 else len(text)
    return Candidate("python_request", start, end, (builtin_call("python", "python"),))


def _builtin(match: re.Match[str], context: Context, reader: TextReader) -> Candidate | None:
    """`<search>…</search>` and `<execute>…</execute>`: never inside another element."""
    tag, text = match["run"] or match["seek"] or match["token"], reader.text
    closer = f"</{tag}>" if not match["token"] else "<|end"
    closed = reader.find(closer, match.end())
    stop = closed if closed >= 0 else len(text)
    inner = text[match.end() : min(stop, match.end() + _LONGEST)]
    before = text[max(0, match.start() - 80) : match.start()].rstrip()
    nested = before.endswith(">") and not before.endswith(("|>", "think>"))
    again = inner[:4000].find(match[0])
    if not inner.strip(" .…\n") or nested or again >= 0 or len(inner) == _LONGEST:
        return None
    token = match["token"] or ""
    seeks = bool(match["seek"]) or "query" in token or "search" in token
    if seeks and (inner.lstrip()[:1] == "<" or inner.count("\n") > 8):
        return None  # an element that holds elements is a document
    kind: Builtin = "search" if seeks else "python"
    payload = read_payload(reader, match.end()) if tag == "tool_code" else None
    name = "bash" if tag in ("bash", "execute_bash") else kind
    calls = payload.requested if payload else (builtin_call(kind, name),)
    end = closed + len(closer) if closed >= 0 else len(text)
    if token and closed >= 0:
        end = text.find(">", closed) + 1 or end
    plain = not token and tag != "tool_code"
    return Candidate(f"{kind}_request", match.start(), end, calls, plain)


Reader = Callable[[re.Match[str], Context, TextReader], Candidate | None]
READERS: dict[str, Reader] = {
    "mistral": _opened, "marker": _opened, "open": _open, "builtin": _builtin,
    "tagged": _tagged, "harmony": _harmony,
}  # fmt: skip
