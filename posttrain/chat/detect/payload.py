"""What follows a marker that opens a call: JSON, XML, a name with arguments, a Python-style call.

    read_payload(Reader('{"name": "f", "arguments": {}}</tool_call>'), 0)
        → Payload("json", (Asked("f", {}),), end=30)
    read_payload(Reader("is the tag that opens a call"), 0) → None

A payload that is cut off or malformed is one as long as it begins like one: the attempt counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from posttrain.chat.detect.reading import NOTHING, TextReader
from posttrain.chat.detect.requested import (
    UNREAD,
    RequestedCall,
    blank_name,
    read_arguments,
    requested_in,
    toolish,
)

PayloadKind = Literal["json", "xml", "invoke", "glm", "named", "python", "blank"]
_NAME = r"[A-Za-z_$][\w.\-:/]{0,127}"
_JSON_NAME = re.compile(
    rf"[\[{{\s]*[\"'](?:name|tool|tool_name|function)[\"']\s*:\s*[\"']({_NAME})[\"']"
)
_JSON_BLANK = re.compile(
    r"[\[{\s]*[\"']?\w*[\"']?\s*:\s*[\"']?(?:<[^<>\"]{0,80}>|\.\.\.|…|\$|\{\{|(?<=[\"'])\{)|"
    r"[\[{\s]*(?:\.\.\.|…)|[^\n]{0,160}[:\s]\{?\s*(?:\.\.\.|…)\s*\}"
)
_JSON_START = re.compile(r"[\[{]\s*(?:[\"'}\]{\[]|$)|[\[{]\s*\w+\s*:")
# a tool's name before its arguments, with what other notations put between the two
_NAMED = re.compile(
    rf"(?:function\s?<｜tool▁sep｜>\s?|call:|name\s?[:=]\s?)?[\"'`]?({_NAME}?)[\"'`]?(?::\d+)?"
    r"(?:(?=\()|\s{0,4}(?:<[|｜][\w▁|｜:]{2,60}>|\[ARGS\]|\[CALL_ID\][\w\-]{0,64}\[ARGS\]|```\w*|"
    r"✿ARGS✿:?|args\s?[:=])?\s{0,4}(?=(<(?:\w{1,20}_)?arg_key>|<parameter|<arg|<param)|\{))"
)
_FUNCTION = re.compile(
    r"\s*(?:[\"'`]?)<(?P<prefix>\w{1,20}:|[|｜]?DSML[|｜]?)?(?P<tag>function|invoke|tool|call)"
    r"(?:=\s*[\"']?(?P<name>[^<>\n\"']{1,128})[\"']?|"
    r"\s+name\s*=\s*[\"']?(?P<named>[^<>\n\"']{1,128})[\"']?[^<>\n]*)(?:>|\n|$)"
)
# a name in an element of its own; its arguments are not read
_SPELT = re.compile(
    r"\s*(?:<invoke>\s*|<server_name>[^<\n]{0,80}</server_name>\s*)?"
    r"<(?:tool_name|function_name|name|tool)>([^<>\n]{1,128})</"
)
_PARAMETER = re.compile(
    r"<(/?)(?:\w{1,20}[:_]|[|｜]?DSML[|｜]?)?(parameter|param|arg_key|arg_value|arg|argument)"
    r"(?:=\s*[\"']?([^<>\n\"']{1,128})[\"']?|\s+name\s*=\s*[\"']([^<>\n\"']{1,128})[\"'][^<>\n]*)?>"
)
_FENCE = re.compile(r"```\w*")
_PARAMETER_END = re.compile(
    r"</(?:\w{1,20}[:_]|[|｜]?DSML[|｜]?)?(?:parameter|param|arg|argument|arg_key|arg_value)>"
)


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload; `blank` is a form to fill in, such as `{"name": <function-name>, …}`."""

    kind: PayloadKind
    requested: tuple[RequestedCall, ...]
    end: int


def read_payload(reader: TextReader, position: int) -> Payload | None:
    """The payload at a position (white space before it is skipped), None where there is none."""
    text, at = reader.text, reader.skip(position)
    if fence := _FENCE.match(text, at):
        at = reader.skip(fence.end())
    if text[at : at + 1] in ("{", "["):
        return _json(reader, at)
    if text[at : at + 1] == "<":
        return _xml(reader, at)
    named = _NAMED.match(text, at)
    return _named(reader, at, named) if named else None


def _named(reader: TextReader, at: int, named: re.Match[str]) -> Payload:
    """A name and its arguments: GLM's pairs, JSON, or parentheses."""
    if named[2] is not None:
        kind: PayloadKind = "glm" if "arg_key" in named[2] else "named"
        block = _block_end(reader, named.end())
        arguments = _parameters(reader, named.end(), block)
        return Payload(kind, (RequestedCall(named[1], arguments, textual=True),), block)
    if reader.text[named.end()] == "(":
        # what is printed is what is called
        at = reader.skip(named.end() + 1) if named[1] == "print" else at
        call, end = reader.python_call(at)
        return Payload(
            "python", (call or RequestedCall(named[1]),), end if call else named.end() + 1
        )
    value, end = reader.json(named.end())
    arguments = None if value is NOTHING else read_arguments(value)
    return Payload("named", (RequestedCall(named[1], arguments),), max(end, named.end() + 1))


def _json(reader: TextReader, at: int) -> Payload | None:
    text = reader.text
    value, end = reader.json(at)
    if value is not NOTHING:
        requested = requested_in(value)
        if not requested and blank_name(value):
            return Payload("blank", (), at)
        return Payload("json", requested or (_loose(value),), end)
    if text[at] == "[":
        calls, end = reader.python_list(at)
        if calls:
            return Payload("python", calls, end)
    if _JSON_BLANK.match(text, at):
        return Payload("blank", (), at)
    name = _JSON_NAME.match(text, at)
    if name or _JSON_START.match(text, at):
        return Payload("json", (RequestedCall(name[1] if name else None),), at + 1)
    return None


def _loose(value: Any) -> RequestedCall:
    """A JSON value behind a marker that is no call by itself: its name, if it has one."""
    name = cast(dict[str, Any], value).get("name") if isinstance(value, dict) else None
    return RequestedCall(name if isinstance(name, str) and toolish(name) else None)


def _xml(reader: TextReader, at: int) -> Payload | None:
    """`<function=NAME>` or `<invoke name="NAME">` and its parameters."""
    text = reader.text
    opened = _FUNCTION.match(text, at)
    if opened is None:
        spelt = _SPELT.match(text, at)
        requested = RequestedCall(spelt[1].strip()) if spelt else None
        return Payload("xml", (requested,), spelt.end()) if spelt and requested else None
    name = (opened["name"] or opened["named"]).strip()
    closer = f"</{opened['prefix'] or ''}{opened['tag']}>"
    closed = reader.find(closer, opened.end())
    block = closed if closed >= 0 else _block_end(reader, opened.end())
    inner = reader.skip(opened.end())
    if text[inner : inner + 1] == "{":
        value, _ = reader.json(inner)
        requested = RequestedCall(name, None if value is NOTHING else read_arguments(value))
    else:
        requested = RequestedCall(name, _parameters(reader, opened.end(), block), textual=True)
    end = closed + len(closer) if closed >= 0 else block
    return Payload("invoke" if opened["named"] else "xml", (requested,), end)


def _block_end(reader: TextReader, position: int) -> int:
    """Where an unclosed block ends: at its wrapper's closing tag, or with the text."""
    closed = reader.find("</", position)
    while closed >= 0 and reader.budget > 0:
        if not _PARAMETER_END.match(reader.text, closed):
            return closed
        reader.budget -= 16
        closed = reader.find("</", closed + 2)
    return len(reader.text)


def _parameters(reader: TextReader, start: int, end: int) -> dict[str, Any] | None:
    """Parameters of an XML call, values as text; one that is not closed is `UNREAD`."""
    text, found, key = reader.text, dict[str, Any](), None
    reader.budget -= end - start
    if reader.budget <= 0:
        return None
    value_from = start
    for match in _PARAMETER.finditer(text, start, end):
        closing, tag, name = match[1], match[2], match[3] or match[4]
        if not closing:
            key = name if name else key
            value_from = match.end()
        elif tag == "arg_key":
            key = text[value_from : match.start()].strip()
        elif key is not None:
            found[key] = text[value_from : match.start()].strip("\n")
            key = None
    return {**found, key: UNREAD} if key else found
