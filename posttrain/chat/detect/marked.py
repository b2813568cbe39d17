"""Calls that a marker opens: `<tool_call>`, `[TOOL_CALLS]`, `<|python_tag|>` and their like.

    marked(page, reader) → Candidate("hermes_json", 0, 54, (Asked("f", {}),)), …

Markers are known by what their name says (a *tool*, *function* or *action* that is *called*, *used*
or *requested*), so a dialect that nobody has listed is found too. A marker is no call by itself: it
needs a payload, a line of its own, or to be the first thing that is said.
"""

from __future__ import annotations

import re
from typing import cast

from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.page import Page
from posttrain.chat.detect.payload import Payload, read_payload
from posttrain.chat.detect.reading import NOTHING, TextReader
from posttrain.chat.detect.requested import Arguments, Request, RequestedCall, function_like

# a tag or special token; a bracketed or flowered marker; harmony's recipient
_MARKER = re.compile(
    r"^(?P<recipient>(?:<\|recipient\|>|>>>)(?!all\b)"
    r"(?=[A-Za-z_][\w.\-]{0,127}\s{0,2}(?:\{|<\||\n)))"
    r"|(?P<open><\|open\|>call\b)"
    r"|<(?P<tag>[|｜]?[A-Za-z_][\w▁:\-.|｜]{1,60})(?P<rest>=[^<>\n]{1,128}|\s[^<>\n]{0,160})?>"
    r"|\[(?P<square>(?:TOOL|FUNCTION|PLUGIN)[ _]?(?:CALLS?|REQUESTS?|USES?))\]"
    r"|(?P<flower>✿FUNCTION✿:?)"
    r"|(?P<functools>\bfunctools(?=\[\s{0,8}\{))"
    r"|(?<![\w\"'`])(?P<to>to=[A-Za-z_][\w.]{0,127})(?=\s|<\||$)",
    re.M,
)
_CALLS = re.compile(
    r"(?:tool|function|plugin)s?_?(?:call|us|request|invo)|"
    r"(?:call|use|invoke|run|execute|request)_?(?:mcp_)?(?:tool|function|plugin)|"
    r"start_action|action_start"
)
_NOT_CALLS = re.compile(
    r"result|respon|output|sep\b|arg|close|stop|user|usage|example|history|(?:^|_)end(?:_|$)|end$|"
    r"schema|config|count"
)
_NEXT = re.compile(r"\s*<[|｜]?(?:[\w▁:\-.|｜]{2,60})(?:\s[^<>\n]{0,160})?>")
_HARMONY = re.compile(
    r"\s?(?:<\|(?:channel|constrain)\|>)?\s?\w{0,20}\s?(?:<\|constrain\|>)?\s?(?:json|code)?"
    r"\s?<\|message\|>"
)
_CHANNEL = re.compile(r"<\|(?:channel|start)\|>\s?\w{1,20}\s*\Z")
_STRIPPED = re.compile(r"(?:^|\n|\b(?:commentary|analysis|assistant|final))\s*\Z")
_STRIPPED_HEAD = re.compile(r"\s?(?:json|code|commentary(?:\s?json)?)\s?")
_BUILTINS: dict[str, Request] = {"python": "python", "browser": "search"}
# all that is left of a call that was cut off behind its tool's name
_CUT = re.compile(
    r"\s{0,4}(?:function<｜tool▁sep｜>)?([A-Za-z_$][\w.\-:/]{0,127})"
    r"(?:\s{0,4}[<\[`{(][^\s]{0,60})?\s*\Z"
)
_ATTRIBUTE = re.compile(r"[^<>\n]{0,80}?\b(?:name|tool)\s?=\s?\"([^\"\n]{1,128})\"")
_TAG = re.compile(r"\s*</?[^<>\s][^<>\n]{0,80}>")
_KINDS = {"json": "hermes_json", "xml": "nemotron_xml", "invoke": "invoke_xml", "glm": "glm",
          "named": "tool_call_tag", "python": "tool_call_tag"}  # fmt: skip
_BARE_TAGS = frozenset({"function", "invoke"})


def marked(page: Page, reader: TextReader, start: int) -> Candidate | None:
    """The first candidate from `start` on."""
    for match in _MARKER.finditer(page.text, start):
        found = _at(match, page, reader)
        if found is not None:
            return found
    return None


def has_call_marker(text: str) -> bool:
    """Whether any marker that opens or closes calls is in a text, called, broken or spoken of."""
    return any(
        match["square"] or match["flower"] or (match["tag"] and _opens_calls(_word(match["tag"])))
        for match in _MARKER.finditer(text.replace("</", "<"))
    )


def _word(tag: str) -> str:
    return tag.strip("|｜").replace("▁", "_").replace("-", "_").lower()


def _opens_calls(word: str) -> bool:
    return _CALLS.search(word) is not None and _NOT_CALLS.search(word) is None


def _at(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    if match["to"]:
        return _harmony(match, reader)
    if match["open"]:
        return _attributed(match, page)
    if not match["tag"]:
        return _opened(match, page, reader, "mistral" if match["square"] else "marker")
    tag, rest = match["tag"], match["rest"] or ""
    word = _word(tag)
    if tag.endswith(("|", "｜")) and tag[0] not in "|｜":
        return None  # gemma's closing token
    local = word.rpartition(":")[2].rpartition("｜")[2].rpartition("|")[2]
    if local in _BARE_TAGS and rest:
        return _standalone(match, page, reader, dsml="dsml" in word)
    if _opens_calls(word):
        return _opened(match, page, reader, _form(tag, word))
    return None


def _form(tag: str, word: str) -> str | None:
    """The form that a marker alone tells; None where its payload does."""
    known = (
        ("python_tag", "llama_python_tag"), ("dsml", "deepseek"), ("minimax", "minimax"),
        ("section", "kimi"), ("longcat", "longcat"), ("plamo", "plamo"), ("action", "cohere"),
        ("functioncall", "glaive"), ("start_function_call", "gemma"),
    )  # fmt: skip
    for part, form in known:
        if part in word:
            return form
    if "｜" in tag:
        return "deepseek"
    if tag.startswith("|"):
        return "special_token"
    return None if word in ("tool_call", "tool_calls") else "tool_tag"


def _opened(
    match: re.Match[str], page: Page, reader: TextReader, form: str | None
) -> Candidate | None:
    """A call behind its marker, and behind further markers that follow it at once."""
    at = match.end()
    payload = read_payload(reader, at)
    for _ in range(3):
        deeper = None if payload else _NEXT.match(page.text, at)
        if deeper is None:
            break
        at = deeper.end()
        payload = read_payload(reader, at)
    end = _end(match, page, reader, payload)
    if payload is None:
        rest = page.text[at : at + 200]
        cut = _CUT.match(rest) if at + 200 > len(page.text) else None
        starts = not page.before(match.start()).strip(" \t>*-")
        alone = cut or not page.after(match.end()).strip() or not page.text[: match.start()].strip()
        if match["recipient"] or not (starts and alone):
            return None
        return Candidate(
            form or "tool_call_tag", match.start(), end, (RequestedCall(cut and cut[1]),)
        )
    if payload.kind == "blank":
        return None
    requested = (*payload.requested, *_more(reader, payload.end, end))
    return Candidate(form or _KINDS[payload.kind], match.start(), end, requested)


def _more(reader: TextReader, position: int, end: int) -> list[RequestedCall]:
    """Further calls behind the first in one wrapper."""
    found: list[RequestedCall] = []
    while position < end:
        tag = _TAG.match(reader.text, position, end)
        payload = read_payload(reader, position)
        if payload is None or payload.end > end or payload.kind == "blank":
            if tag is None:
                break
            position = tag.end()
        else:
            found += payload.requested
            position = payload.end
    return found


def _attributed(match: re.Match[str], page: Page) -> Candidate:
    """`<|open|>call name="f" …<|sep|>…<|close|>call<|sep|>`."""
    name = _ATTRIBUTE.match(page.text, match.end())
    closed = page.text.find("<|close|>call", match.end(), match.end() + 20_000)
    end = closed + len("<|close|>call") if closed >= 0 else match.end()
    return Candidate("kimi", match.start(), end, (RequestedCall(name[1] if name else None),))


def _end(match: re.Match[str], page: Page, reader: TextReader, payload: Payload | None) -> int:
    """Where the call ends: behind its closing tag, or with its payload, or with the text."""
    start = max(match.end(), payload.end if payload else 0)
    tag = match["tag"]
    if tag is None:
        return start
    closer = f"</{tag}>" if tag[0] not in "|｜" else f"</{tag[1:]}"
    closed = reader.find(closer, start)
    again = reader.find(match[0], match.end())
    if closed >= 0 and (again < 0 or closed < again):
        return closed + len(closer)
    if payload is not None:
        return start
    return again if again >= 0 else len(page.text)


def _standalone(
    match: re.Match[str], page: Page, reader: TextReader, *, dsml: bool
) -> Candidate | None:
    """`<function=f>…` or `<invoke name="f">…` without a wrapper around it."""
    payload = read_payload(reader, match.start())
    if payload is None or payload.kind not in ("xml", "invoke"):
        return None
    (requested,) = payload.requested
    if payload.kind == "invoke" and not (
        requested.arguments or function_like(requested.name or "")
    ):
        return None  # an element with a name and no parameters is any XML
    form = "deepseek" if dsml else "function_tag" if payload.kind == "xml" else "invoke_xml"
    plain = form == "invoke_xml" and match["tag"] == "function"
    return Candidate(form, match.start(), payload.end, payload.requested, plain)


def _harmony(match: re.Match[str], reader: TextReader) -> Candidate | None:
    """`to=functions.f<|channel|>commentary json<|message|>{…}`, or as plain text `to=f {…}`."""
    name = match["to"].removeprefix("to=")
    text, start = reader.text, match.start()
    opened = text.rfind("<|", max(0, start - 60), start)
    channel = _CHANNEL.match(text, opened, start) if opened >= 0 else None
    head = _HARMONY.match(text, match.end())
    at = head.end() if head else reader.skip(match.end())
    value, end = reader.json(at)
    if head is None and not isinstance(value, dict):
        # its special tokens were taken out of the text
        spoken = _STRIPPED.search(text, max(0, start - 40), start)
        head = _STRIPPED_HEAD.match(text, match.end()) if spoken else None
        if head is None:
            return None
        value, end = reader.json(head.end())
        at = head.end()
    if value is NOTHING:
        stop = reader.find("<|", at)
        end = stop if stop >= 0 else len(text)
    request = _BUILTINS.get(name.split(".")[0])
    arguments = cast(Arguments, value) if isinstance(value, dict) else None
    requested = RequestedCall(name, arguments, request=request)
    return Candidate("harmony", opened if channel else start, end, (requested,))
