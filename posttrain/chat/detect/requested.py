"""What a call asks for, and which JSON values are calls.

calls_in({"name": "get_weather", "arguments": {"city": "Paris"}})
    → (RequestedCall("get_weather", {"city": "Paris"}),)
calls_in({"name": "get_weather", "parameters": {"type": "object", "properties": {}}}) → ()
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from posttrain.jsontext import load_json

Arguments = Mapping[str, Any]
Builtin = Literal["python", "search"]
UNREAD = object()  # an argument that is there and whose value cannot be read

NAME = r"[A-Za-z_$][\w.\-:/]{0,127}"
_NAME_KEY = re.compile(
    r"(?:(?:tool|function|api|recipient)_?)?name|tool|function|action|tool_call", re.I
)
_ARGUMENTS_KEY = re.compile(
    r"(?:(?:tool|function|action)_?)?(?:arg(?:ument)?s|param(?:eter)?s|inputs?)|kwargs", re.I
)
_WRAPPER_KEY = re.compile(r"(?:tool|function)(?:_?(?:call|use)s?)?|calls|action|command", re.I)
_BESIDE = frozenset({"id", "type", "index", "thought", "thoughts", "reasoning", "reason", "call_id",
                     "tool_call_id", "status", "explanation", "role", "content"})  # fmt: skip
_NO_TOOLS = frozenset({"none", "null", "n/a", "finish", "final_answer", "final", "answer", "n"})
_BLANK_NAME = re.compile(
    r"(?:\W*(?:\.\.\.|…)\W*|[<\[{$].*|foo|bar|name|x{3,}|(?:\w{1,20}_)?example_function_name|"
    r"(?:your|the|some|my|a)?[_ -]?(?:function|tool|func|method|api)(?:[_ -]?(?:name|call|id))?"
    r"[_ -]?\d*)",
    re.I | re.S,
)
_BLANK_VALUE = re.compile(
    r"(?:\.\.\.|…|<[^<>]*>|\{[a-z_ \-]*\}|\$\w+|\[[a-z _]*\]|value[_ -]?\d*|values?|string|"
    r"your[_ -].*|(?:arg|argument|param|parameter)[_ -]?(?:name|value)?[_ -]?\d*)",
    re.I | re.S,
)


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """One call, as far as it can be read.

    Attributes:
        name: the tool's name where it can be read.
        arguments: by name, positional ones under "0", "1", …; None where they cannot be read,
            `UNREAD` for an unreadable value.
        textual: values are text whose type the notation does not show (XML).
        builtin: the tool that the notation itself stands for.
    """

    name: str | None
    arguments: Arguments | None = None
    textual: bool = False
    builtin: Builtin | None = None


def toolish(name: str) -> bool:
    """Whether this can be a tool's name."""
    return re.fullmatch(NAME, name) is not None and name.lower() not in _NO_TOOLS


def calls_in(value: Any, *, keyed: bool = False, depth: int = 0) -> tuple[RequestedCall, ...]:
    """The calls that a JSON value is: one call, a list of calls, or either in its usual wrapper.

    () where it is none: a tool's *declaration*, a list of which one item is no call, other data.
    With `keyed`, as behind a marker, `{"get_weather": {…}}` is a call too.
    """
    if isinstance(value, list):
        items = cast(list[Any], value) if depth < 3 else []
        each = [calls_in(item, keyed=keyed, depth=depth + 1) for item in items]
        return tuple(call for calls in each for call in calls) if each and all(each) else ()
    if not isinstance(value, dict) or depth > 4:
        return ()
    fields = cast(dict[str, Any], value)
    if fields.get("method") == "tools/call":  # MCP's
        return calls_in(fields.get("params"))
    rest = {key: inner for key, inner in fields.items() if key not in _BESIDE}
    queries = rest.get("search_query")
    if isinstance(queries, list) and set(rest) <= {"search_query", "response_length"}:
        return (RequestedCall("search", {"search_query": queries}, builtin="search"),)
    for key, inner in rest.items() if len(rest) == 1 else ():
        if _WRAPPER_KEY.fullmatch(key) and isinstance(inner, dict | list):
            return calls_in(cast(Any, inner), keyed=keyed, depth=depth + 1)
    named = [v for k, v in rest.items() if isinstance(v, str) and _NAME_KEY.fullmatch(k)]
    given = [k for k in rest if _ARGUMENTS_KEY.fullmatch(k)]
    if len(rest) == 2 and named and given:
        name, free = named[0].strip(), given[0].startswith(("tool", "action"))
        arguments = read_arguments(rest[given[0]], free=free)
        if toolish(name) and arguments is not None and not _declares(arguments):
            return (RequestedCall(name, arguments),)
    elif keyed and fields and all(isinstance(v, dict) and toolish(k) for k, v in fields.items()):
        return tuple(RequestedCall(key, arguments) for key, arguments in fields.items())
    return ()


def read_arguments(value: Any, *, free: bool = False) -> Arguments | None:
    """Arguments as a mapping: an object, its JSON text or nothing; None where they are no such.

    With `free`, any text is one unnamed argument, as ReAct agents give it.
    """
    if isinstance(value, str):
        text = value.strip()
        with suppress(ValueError):
            value = load_json(text) if text[:1] == "{" else text or None
        if free and isinstance(value, str):
            return {"": UNREAD}
    return {} if value is None else cast(Arguments, value) if isinstance(value, dict) else None


def _declares(arguments: Arguments) -> bool:
    """Whether "arguments" is a JSON schema: then a tool is described, not called."""
    if arguments.get("type") in ("object", "dict") and "properties" in arguments:
        return True
    schemas = [cast(dict[str, Any], v) for v in arguments.values() if isinstance(v, dict)]
    described = [s for s in schemas if "type" in s and ("description" in s or len(s) == 1)]
    return bool(arguments) and len(described) == len(arguments)


def to_fill_in(calls: Iterable[RequestedCall]) -> bool:
    """Whether one of these is a form to fill in: blanks for all values, or a blank for its name."""
    for call in calls:
        name, values = call.name or "", (call.arguments or {}).values()
        if values and all(isinstance(v, str) and _BLANK_VALUE.fullmatch(v) for v in values):
            return True
        blank = _BLANK_NAME.fullmatch(name.strip().rpartition(".")[2])
        if blank and (call.arguments is None or not toolish(name)):
            return True
    return False
