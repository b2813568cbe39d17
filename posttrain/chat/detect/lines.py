"""Calls written out in lines of plain text.

Action: search\\nAction Input: tallest mountain            ReAct, also `Action: Search[query]`
Action:\\n```json\\n[{"tool_name": "f", "parameters": {}}]   Command-R
tool_call: f\\narguments: {"x": 1}                          and `Function: f`, `Tool: f`
Calling tool f with arguments {"x": 1}
"""

from __future__ import annotations

import re

from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.page import Page
from posttrain.chat.detect.reading import NOTHING, TextReader
from posttrain.chat.detect.requested import (
    UNREAD,
    Arguments,
    RequestedCall,
    read_arguments,
    requested_in,
    toolish,
)

_S = r"[ \t]{0,8}"
_BOLD = r"\*{0,2}"
_NAME = r"[`\"']?(?P<{}>[A-Za-z_][\w.\-:/ ]{{0,80}}?)[`\"']?"
_NEXT_LINE = rf"{_S}\n\s{{0,8}}{_BOLD}"
_REACT = rf"{_NAME.format('react')}{_NEXT_LINE}Action[ _]?Input(?: \d+)?{_BOLD}{_S}:"
_LOOKS_UP = (
    "search|lookup|look_up|retrieve|query|wikipedia|google|browse|calculator|calculate|python"
)
_BRACKET = (
    rf"(?P<bracket>(?:{_LOOKS_UP})\w{{0,30}}|[A-Za-z]+_\w{{0,60}})"
    rf"\[(?P<query>[^\]\n]{{1,400}})\]{_S}$"
)
_COHERE = r"\s{0,4}```(?:json)?\s{0,4}(?P<cohere>(?=[\[{]))"
_PLAIN = (
    rf"(?:tool|function|action)(?P<said>[ _-]?(?:calls?|to[ _]call))?(?:[ _]name)?"
    rf"{_BOLD}{_S}[:=]{_BOLD}{_S}{_NAME.format('plain')}{_NEXT_LINE}"
    r"(?:(?:tool|function|action)[ _-]?)?(?:arguments|parameters|args|params|input)"
    rf"{_BOLD}{_S}[:=]{_BOLD}"
)
_LINE = re.compile(
    rf"^{_S}(?:[>*#\-]{_S})?{_BOLD}(?:"
    rf"Action(?: \d+)?{_BOLD}{_S}:{_S}{_BOLD}{_S}(?:{_REACT}|{_BRACKET}|{_COHERE})|{_PLAIN})",
    re.M | re.I,
)
# the whole message: a name above its arguments (older GLM), or behind "Call:" (NexusRaven)
_NAME_ABOVE = re.compile(r"\A\s*([A-Za-z]\w*[_.]\w{1,100}|[a-z]+[A-Z]\w{0,100})\n\s{0,4}(?=\{)")
_CALL = re.compile(
    r"^(?:Call|Function call|Tool call):[ \t]*(?=[A-Za-z_][\w.]{0,127}\()", re.M | re.I
)
_VERB = r"\b(?:call(?:ing)?|invok(?:e|ing)|execut(?:e|ing)|us(?:e|ing)|tool call|function call)\b"
_SPOKEN = re.compile(
    rf"{_VERB}{_S}(?:the{_S})?(?:tool|function)?{_S}:?{_S}[`\"']?(?P<name>[A-Za-z_][\w.]{{0,80}})"
    rf"[`\"']?{_S}(?:tool{_S}|function{_S})?(?:with{_S})?(?:the{_S})?"
    rf"(?:arguments|parameters|args|input)?{_S}:?{_S}(?=\{{\s{{0,8}}[\"'}}])",
    re.I,
)


def written(page: Page, reader: TextReader, start: int) -> Candidate | None:
    """The first candidate from `start` on."""
    finders = (_first, _spoken, _above, _called)
    found = [c for finder in finders if (c := finder(page, reader, start))]
    return min(found, key=lambda c: c.start, default=None)


def _first(page: Page, reader: TextReader, start: int) -> Candidate | None:
    for match in _LINE.finditer(page.text, start):
        found = _line(match, page, reader)
        if found is not None:
            return found
    return None


def _line(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    if match["cohere"] is not None:
        value, end = reader.json(match.start("cohere"))
        requested = requested_in(value) if value is not NOTHING else ()
        return Candidate("cohere", match.start(), end, requested) if requested else None
    if match["bracket"]:
        if not toolish(match["bracket"]):
            return None
        requested_one = RequestedCall(match["bracket"], {"query": match["query"]})
        return Candidate("react", match.start(), match.end(), (requested_one,))
    name = (match["react"] or match["plain"]).strip()
    if not toolish(name):
        return None
    at = reader.skip(match.end())
    value, end = reader.json(at)
    arguments: Arguments | None = read_arguments(value) if value is not NOTHING else None
    if match["plain"]:
        if reader.text[at : at + 1] != "{":
            return None
    elif arguments is None:
        arguments = {"": UNREAD}
    end = max(end, page.line_end(match.end()))
    form = "react" if match["react"] else "text_lines"
    plain = match["react"] is None and match["said"] is None
    return Candidate(form, match.start(), end, (RequestedCall(name, arguments),), plain)


def _spoken(page: Page, reader: TextReader, start: int) -> Candidate | None:
    for match in _SPOKEN.finditer(page.text, start):
        value, end = reader.json(match.end())
        said = isinstance(value, dict) and toolish(match["name"]) and "_" in match["name"]
        if said and not page.after(end).strip(" .;`*"):
            return Candidate(
                "text_lines",
                match.start(),
                end,
                (RequestedCall(match["name"], read_arguments(value)),),
            )
    return None


def _above(page: Page, reader: TextReader, start: int) -> Candidate | None:
    match = _NAME_ABOVE.match(page.text) if start == 0 else None
    if match is None:
        return None
    value, end = reader.json(match.end())
    arguments = read_arguments(value) if value is not NOTHING else None
    if arguments is None or re.sub(r"<\|\w+\|>|\s", "", page.text[end : end + 200]):
        return None
    return Candidate("glm", match.start(1), end, (RequestedCall(match[1], arguments),), plain=True)


def _called(page: Page, reader: TextReader, start: int) -> Candidate | None:
    for match in _CALL.finditer(page.text, start):
        call, end = reader.python_call(match.end())
        if call is not None and not any(key.isdecimal() for key in call.arguments or {}):
            return Candidate("text_lines", match.start(), end, (call,), plain=True)
    return None
