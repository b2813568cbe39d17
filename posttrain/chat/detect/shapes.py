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

NOTHING = object()  # in place of a JSON value where there is none

_DECODER = json.JSONDecoder(strict=False)  # raw newlines in strings are common in calls
_WINDOW = 4096  # characters that are tried first, as most calls are short
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
# start of a JSON call that is cut off or malformed, and the tool's name
_JSON_START = re.compile(
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
# a tool's name alone, right before the end of its wrapper
_LONE_NAME = re.compile(
    rf"({NAME}?)\s{{0,4}}(?:<tool_sep>)?\s{{0,4}}(?=</|<\|?(?:end|tool_call\|))"
)
_NAME_ATTRIBUTE = r"(?:=|[\sĠ]*name\s*=)\s*[\"']?(?P<name>[^<>\n\"']{1,128})[\"']?[^<>\n]*"
_FUNCTION = re.compile(
    rf"[\"'`]?<(?P<prefix>{_PREFIX})(?P<tag>function|invoke|tool|call){_NAME_ATTRIBUTE}(?:>|\n|$)"
)
_PARAMETER = re.compile(
    rf"<(?P<closing>/?){_PREFIX}(?P<tag>parameter|param|arg_(?:key|type|value)|argument|arg)"
    rf"(?:{_NAME_ATTRIBUTE})?>"
)


@dataclass(frozen=True, slots=True)
class Payload:
    """Calls that follow a marker.

    Attributes:
        kind: shape of the calls; "lone" is a name without arguments.
        requested: the calls.
        end: end of the payload in the text.
        broken: true if it is cut off or malformed. Nothing behind it is read: that would go
            through the rest of the text once for every sign of a call.
    """

    kind: Literal["json", "xml", "invoke", "glm", "named", "python", "lone"]
    requested: tuple[RequestedCall, ...]
    end: int
    broken: bool = False


class TextReader:
    """A text with a budget for reads that fail, a few times its length.

    The budget keeps the time linear on hostile text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.budget = 8 * len(text) + 20_000
        # needle → where its last search began, and what it returned
        self._searches: dict[str, tuple[int, int]] = {}

    def skip(self, position: int) -> int:
        """Next position that is no white space."""
        match = _SPACE.match(self.text, position)
        return match.end() if match else position

    def find(self, needle: str, position: int) -> int:
        """`text.find` that searches no stretch of the text twice for the same needle."""
        searched_from, offset = self._searches.get(needle, (len(self.text) + 1, -1))
        if position < searched_from or 0 <= offset < position:
            offset = self.text.find(needle, position)
            self._searches[needle] = (position, offset)
        return offset

    def json(self, position: int) -> tuple[Any, int]:
        """Read the JSON value at a position: value and end, or (NOTHING, position)."""
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
        """Read `f(key=value, …)` or `[f(…), …]` at a position: calls and end, or ((), position)."""
        in_list = self.text.startswith("[", position)
        offset = position
        calls: list[RequestedCall] = []
        while head := _CALL_HEAD.match(self.text, self.skip(offset + in_list)):
            arguments, offset = self._arguments(head.end())
            if arguments is None:
                break
            calls.append(RequestedCall(head[1], arguments))
            if not in_list:
                return tuple(calls), offset
            offset = self.skip(offset)
            separator = self.text[offset : offset + 1]
            if separator == "]":
                return tuple(calls), offset + 1
            if separator not in (",", ";"):
                break
        self.budget -= offset - position
        return (), position

    def _arguments(self, position: int) -> tuple[dict[str, Any] | None, int]:
        """Read arguments and their end, behind the closing parenthesis; None where none closes."""
        depth = 1
        arguments: dict[str, Any] = {}
        argument_start = position
        for token in _PYTHON_TOKEN.finditer(self.text, position) if self.budget > 0 else ():
            mark = token[0]
            depth += (mark in "([{") - (mark in ")]}")
            if depth == 0 or (mark == "," and depth == 1):
                argument = self.text[argument_start : token.start()]
                argument_start = token.end()
                if keyword := _KEYWORD.match(argument):
                    arguments[keyword[1]] = literal(argument[keyword.end() :])
                elif argument.strip():
                    arguments[str(len(arguments))] = literal(argument)
            if depth == 0:
                first = arguments.get("0")
                if isinstance(first, dict) and len(arguments) == 1:  # f({"x": 1})
                    arguments = cast(dict[str, Any], first)
                return arguments, token.end()
        self.budget -= len(self.text) - position
        return None, position


def literal(text: str) -> Any:
    """Evaluate a Python or JSON literal; `UNREAD` where the text is another expression."""
    text = text.strip()
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1]
    for json_text in (text, text.replace("'", '"')):
        with suppress(ValueError, RecursionError):
            return json.loads(json_text)
    return UNREAD


def read_payload(reader: TextReader, position: int) -> Payload | None:
    """Read the payload at a position, past white space and a code fence; None if there is none."""
    text = reader.text
    position = reader.skip(position)
    if fence := _OPEN_FENCE.match(text, position):
        position = fence.end()
    if text[position : position + 1] in ("{", "["):
        return _read_brackets(reader, position)
    if element := _FUNCTION.match(text, position):
        return _read_xml(reader, element)
    if named := _NAMED.match(text, position):
        return _read_named(reader, named)
    if lone := _LONE_NAME.match(text, position):
        return Payload("lone", (RequestedCall(lone[1], {}),), lone.end())
    return None


def _read_brackets(reader: TextReader, position: int) -> Payload | None:
    """Read JSON or a list of Python calls, also where it is broken behind its beginning."""
    value, end = reader.json(position)
    if value is not NOTHING:
        name = cast(Any, value).get("name") if isinstance(value, dict) else None
        name_alone = RequestedCall(name if isinstance(name, str) else None)
        return Payload("json", calls_in(value, keyed=True) or (name_alone,), end)
    calls, end = reader.python(position)
    if calls:
        return Payload("python", calls, end)
    if _JSON_BLANK.match(reader.text, position):
        return Payload("json", (RequestedCall("…"),), position, broken=True)
    if beginning := _JSON_START.match(reader.text, position):
        return Payload("json", (RequestedCall(beginning[1]),), beginning.end(), broken=True)
    return None


def _read_named(reader: TextReader, named: re.Match[str]) -> Payload:
    """Read a name and its arguments: parentheses, key and value elements, or JSON."""
    name = named[1]
    if named[2] is not None:
        arguments, end = _read_parameters(reader, named.end())
        kind = "glm" if "arg_key" in named[2] else "named"
        return Payload(kind, (RequestedCall(name, arguments, textual=True),), end)
    if reader.text[named.end()] == "(":
        # what is printed is what is called
        start = reader.skip(named.end() + 1) if name == "print" else named.start(1)
        calls, end = reader.python(start)
        if calls:
            return Payload("python", calls, end)
        return Payload("python", (RequestedCall(name),), named.end() + 1, broken=True)
    value, end = reader.json(named.end())
    arguments = None if value is NOTHING else read_arguments(value)
    return Payload("named", (RequestedCall(name, arguments),), max(end, named.end() + 1))


def _read_xml(reader: TextReader, element: re.Match[str]) -> Payload:
    """Read `<function=NAME>` or `<invoke name="NAME">` and its parameters."""
    value, end = reader.json(reader.skip(element.end()))
    arguments = read_arguments(value)
    if value is NOTHING:
        arguments, end = _read_parameters(reader, element.end())
    tag = element["prefix"] + element["tag"]
    closing = reader.find(f"</{tag}>", end)
    next_call = reader.find(f"<{tag}=", end)
    if closing >= 0 and not 0 <= next_call < closing:
        end = closing + len(f"</{tag}>")
    elif next_call >= 0:
        end = next_call
    elif reader.text.startswith(("{", "<"), reader.skip(end)):
        end = len(reader.text)  # cut off
    requested = RequestedCall(element["name"].strip(), arguments, textual=value is NOTHING)
    kind = "xml" if reader.text[element.end("tag")] == "=" else "invoke"
    return Payload(kind, (requested,), end)


def _read_parameters(reader: TextReader, position: int) -> tuple[dict[str, Any], int]:
    """Read parameters that are elements, values as text, and their end; "" is a cut-off one."""
    text = reader.text
    parameters: dict[str, Any] = {}
    key = ""
    while (opening := _PARAMETER.match(text, reader.skip(position))) and not opening["closing"]:
        closing = _PARAMETER.search(text, opening.end())
        if closing is None or not closing["closing"]:
            stop = reader.find("</", opening.end())
            return {**parameters, "": UNREAD}, stop if stop >= 0 else len(text)
        value = text[opening.end() : closing.start()]
        position = closing.end()
        key = opening["name"] or key
        if opening["tag"] == "arg_key":
            key = value.strip()
        elif opening["tag"] != "arg_type":
            value = value.strip("\n").removeprefix("<![CDATA[").removesuffix("]]>")
            parameters[key] = value
    if ">" not in text[position : position + 200]:
        parameters[""] = UNREAD
    return parameters, position
