"""The four shapes of a call: JSON, a name before its arguments, Python, XML; bounded, on any text.

A payload that is cut off or malformed is one as long as it begins like one: the attempt counts.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from posttrain.chat.detect.requested import (
    NAME,
    UNREAD,
    RequestedCall,
    calls_in,
    read_arguments,
)

NOTHING = object()

_DECODER = json.JSONDecoder(strict=False)  # raw newlines in strings are common in calls
_WINDOW = 4096
_SPACE = re.compile(r"\s*")
_OPEN_FENCE = re.compile(r"```\s*(?:json\s*)?")
_CALL_HEAD = re.compile(r"([A-Za-z_][\w.\-/ ]{0,127})(?<! )\(")  # [Market Trends API(country="us")]
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w{0,127})\s*=(?!=)\s*")
_CONSTANTS = {"True": True, "False": False, "None": None}
_PYTHON_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'|[()\[\]{},\"']", re.S)

# a form to fill in: {"name": <function-name>, …}, {...}
_JSON_BLANK = re.compile(
    r"[\[{\s]{0,40}[\"']?\w{0,40}[\"']?\s*:\s*[\"']?(?:<[^<>\"]{0,80}>|\.\.\.|…|\$|\{\{|(?<=[\"'])\{)|"
    r"[\[{\s]{0,40}(?:\.\.\.|…)"
)
_JSON_START = re.compile(  # of an object that is cut off or malformed, and its name
    rf"[\[{{\s]*[\"'](?:name|tool|tool_name|function)[\"']\s*:\s*[\"']({NAME})[\"']|"
    r"[\[{]\s*(?:[\"'}\]{\[]|$|\w+\s*:)"
)
_PREFIX = r"(?:\w{1,20}[:_|]|[|｜]?DSML[|｜]?)?"  # <minimax:…>, <ifm|…>, <｜DSML｜…>
# a tool's name and what notations put between it and its arguments
_NAMED = re.compile(
    rf"(?:function\s?<｜tool▁sep｜>\s?|(?:call)?:|name\s?[:=]\s?)?[\"'`]?({NAME}?)[\"'`]?(?::\d+)?"
    r"(?:(?=\()|\s{0,4}(?:<[|｜]?[\w▁|｜:]{0,40}(?:sep|begin|content|message|json)[|｜]?>|"
    r"\[ARGS\]|\[CALL_ID\][\w\-]{0,64}\[ARGS\]|```\w*|✿ARGS✿:?|args\s?[:=])?\s{0,4}"
    rf"(?=(<{_PREFIX}(?:arg_key|parameter|arg|param)\b)|\{{))"
)
_LONE = re.compile(rf"({NAME}?)\s{{0,4}}(?:<tool_sep>)?\s{{0,4}}(?=</|<\|?(?:end|tool_call\|))")
_NAME = r"(?:=|[\sĠ]*name\s*=)\s*[\"']?(?P<name>[^<>\n\"']{1,128})[\"']?[^<>\n]*"
_FUNCTION = re.compile(
    rf"[\"'`]?<(?P<prefix>{_PREFIX})(?P<tag>function|invoke|tool|call){_NAME}(?:>|\n|$)"
)
_PARAMETER = re.compile(
    rf"<(?P<closing>/?){_PREFIX}(?P<tag>parameter|param|arg_(?:key|type|value)|argument|arg)"
    rf"(?:{_NAME})?>"
)


@dataclass(frozen=True, slots=True)
class Payload:
    """What follows a marker; "lone" is a name without arguments."""

    kind: Literal["json", "xml", "invoke", "glm", "named", "python", "lone"]
    requested: tuple[RequestedCall, ...]
    end: int
    broken: bool = False  # nothing behind it is read: that would go through the rest once a sign


class TextReader:
    """A text and how much work that comes to nothing may still be spent on it.

    It is a few times the text's length, so that hostile text takes linear time.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.budget = 8 * len(text) + 20_000
        self._next: dict[str, tuple[int, int]] = {}

    def skip(self, position: int) -> int:
        """The next position that is no white space."""
        match = _SPACE.match(self.text, position)
        return match.end() if match else position

    def find(self, needle: str, position: int) -> int:
        """`text.find`, which searches no stretch of the text twice for the same needle."""
        since, at = self._next.get(needle, (len(self.text) + 1, -1))
        if position < since or 0 <= at < position:
            at = self.text.find(needle, position)
            self._next[needle] = position, at
        return at

    def json(self, position: int) -> tuple[Any, int]:
        """The JSON value at a position and its end; (NOTHING, position) where there is none."""
        if self.budget <= 0 or self.text[position : position + 1] not in ("{", "["):
            return NOTHING, position
        # an error counts the lines before it, so the text is handed over in a window
        for size in (_WINDOW, len(self.text)):
            stop = min(position + size, len(self.text))
            try:
                value, end = _DECODER.raw_decode(self.text[position:stop])
                self.budget -= end
                return value, position + end
            except json.JSONDecodeError as error:
                self.budget -= max(error.pos, 16)
                # a string that never ends is reported where it began
                cut_off = error.pos >= stop - position or error.msg.startswith("Unterminated")
                if stop == len(self.text) or not cut_off or self.budget <= 0:
                    break
                self.budget -= len(self.text) - position
            except (RecursionError, ValueError):  # ValueError: a number with too many digits
                self.budget -= 20_000
                break
        return NOTHING, position

    def python(self, position: int) -> tuple[tuple[RequestedCall, ...], int]:
        """The call `f(key=value, …)` or list of calls `[f(…), …]` at a position; () if none."""
        listed, at = self.text.startswith("[", position), position
        calls: list[RequestedCall] = []
        while head := _CALL_HEAD.match(self.text, self.skip(at + listed)):
            arguments, at = self._arguments(head.end())
            if arguments is None:
                break
            calls.append(RequestedCall(head[1], arguments))
            if not listed:
                return tuple(calls), at
            at = self.skip(at)
            if self.text[at : at + 1] == "]":
                return tuple(calls), at + 1
            if self.text[at : at + 1] not in (",", ";"):
                break
        self.budget -= at - position
        return (), position

    def _arguments(self, at: int) -> tuple[dict[str, Any] | None, int]:
        """Arguments up to the parenthesis that closes them; None where none does."""
        depth, arguments, start = 1, dict[str, Any](), at
        for token in _PYTHON_TOKEN.finditer(self.text, at) if self.budget > 0 else ():
            mark = token[0]
            depth += (mark in "([{") - (mark in ")]}")
            if depth == 0 or (mark == "," and depth == 1):
                piece, at = self.text[at : token.start()], token.end()
                if keyword := _KEYWORD.match(piece):
                    arguments[keyword[1]] = literal(piece[keyword.end() :])
                elif piece.strip():
                    arguments[str(len(arguments))] = literal(piece)
            if depth == 0:
                only = arguments.get("0")  # f({"x": 1})
                alone = isinstance(only, dict) and len(arguments) == 1
                return cast(dict[str, Any], only) if alone else arguments, at
        self.budget -= len(self.text) - start
        return None, start


def literal(text: str) -> Any:
    """A Python or JSON literal's value, `UNREAD` where the text is another expression."""
    text = text.strip()
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1]
    for written in (text, text.replace("'", '"')):
        with suppress(ValueError, RecursionError):
            return json.loads(written)
    return UNREAD


def read_payload(reader: TextReader, position: int) -> Payload | None:
    """The payload at a position, white space and a code fence before it aside."""
    text, at = reader.text, reader.skip(position)
    if fence := _OPEN_FENCE.match(text, at):
        at = fence.end()
    if text[at : at + 1] in ("{", "["):
        return _json(reader, at)
    if opened := _FUNCTION.match(text, at):
        return _xml(reader, opened)
    if named := _NAMED.match(text, at):
        return _named(reader, at, named)
    lone = _LONE.match(text, at)
    return Payload("lone", (RequestedCall(lone[1], {}),), lone.end()) if lone else None


def _json(reader: TextReader, at: int) -> Payload | None:
    value, end = reader.json(at)
    if value is not NOTHING:
        name = cast(Any, value).get("name") if isinstance(value, dict) else None
        only = RequestedCall(name if isinstance(name, str) else None)
        return Payload("json", calls_in(value, keyed=True) or (only,), end)
    calls, end = reader.python(at)
    if calls:
        return Payload("python", calls, end)
    if _JSON_BLANK.match(reader.text, at):
        return Payload("json", (RequestedCall("…"),), at, broken=True)
    begun = _JSON_START.match(reader.text, at)
    return Payload("json", (RequestedCall(begun[1]),), begun.end(), broken=True) if begun else None


def _named(reader: TextReader, at: int, named: re.Match[str]) -> Payload:
    """A name and its arguments: parentheses, key and value elements, or JSON."""
    if named[2] is not None:
        arguments, end = _parameters(reader, named.end())
        kind = "glm" if "arg_key" in named[2] else "named"
        return Payload(kind, (RequestedCall(named[1], arguments, textual=True),), end)
    if reader.text[named.end()] == "(":
        # what is printed is what is called
        at = reader.skip(named.end() + 1) if named[1] == "print" else named.start(1)
        if (read := reader.python(at))[0]:
            return Payload("python", *read)
        return Payload("python", (RequestedCall(named[1]),), named.end() + 1, broken=True)
    value, end = reader.json(named.end())
    arguments = None if value is NOTHING else read_arguments(value)
    return Payload("named", (RequestedCall(named[1], arguments),), max(end, named.end() + 1))


def _xml(reader: TextReader, opened: re.Match[str]) -> Payload:
    """`<function=NAME>` or `<invoke name="NAME">` and its parameters."""
    value, end = reader.json(reader.skip(opened.end()))
    arguments = read_arguments(value)
    if value is NOTHING:
        arguments, end = _parameters(reader, opened.end())
    element = opened["prefix"] + opened["tag"]
    closed, again = reader.find(f"</{element}>", end), reader.find(f"<{element}=", end)
    if closed >= 0 and not 0 <= again < closed:
        end = closed + len(element) + 3
    elif again >= 0:
        end = again
    elif reader.text.startswith(("{", "<"), reader.skip(end)):
        end = len(reader.text)  # cut off
    requested = RequestedCall(opened["name"].strip(), arguments, textual=value is NOTHING)
    kind = "xml" if reader.text[opened.end("tag")] == "=" else "invoke"
    return Payload(kind, (requested,), end)


def _parameters(reader: TextReader, at: int) -> tuple[dict[str, Any], int]:
    """Parameters as elements, values as text, and their end; "" is one that is cut off."""
    text, parameters, key = reader.text, dict[str, Any](), ""
    while (opened := _PARAMETER.match(text, reader.skip(at))) and not opened["closing"]:
        following = _PARAMETER.search(text, opened.end())
        if following is None or not following["closing"]:
            stop = reader.find("</", opened.end())
            return {**parameters, "": UNREAD}, stop if stop >= 0 else len(text)
        value, at = text[opened.end() : following.start()], following.end()
        key = opened["name"] or key
        if opened["tag"] == "arg_key":
            key = value.strip()
        elif opened["tag"] != "arg_type":
            value = value.strip("\n").removeprefix("<![CDATA[").removesuffix("]]>")
            parameters[key] = value
    return parameters if ">" in text[at : at + 200] else {**parameters, "": UNREAD}, at
