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
# fields that stand beside a call in some notations and are no part of it
_METADATA_KEYS = frozenset(
    {
        "id",
        "type",
        "index",
        "thought",
        "thoughts",
        "reasoning",
        "reason",
        "call_id",
        "tool_call_id",
        "status",
        "explanation",
        "role",
        "content",
    }
)
# what ReAct agents write in a tool's place
_NO_TOOLS = frozenset({"none", "null", "n/a", "finish", "final_answer", "final", "answer", "n"})
# a form to fill in, as examples and prompts show it
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
        name: name of the tool where it can be read.
        arguments: name → value, positional ones under "0", "1", …; None where they cannot be
            read, `UNREAD` for an unreadable value.
        textual: true if values are text whose type the notation does not show (XML).
        builtin: tool that the notation itself stands for.
    """

    name: str | None
    arguments: Arguments | None = None
    textual: bool = False
    builtin: Builtin | None = None


def toolish(name: str) -> bool:
    """Check that a text can be the name of a tool."""
    return re.fullmatch(NAME, name) is not None and name.lower() not in _NO_TOOLS


def calls_in(value: Any, *, keyed: bool = False, depth: int = 0) -> tuple[RequestedCall, ...]:
    """Read a JSON value as calls: one call, a list of calls, or either in its usual wrapper.

    Args:
        value: any decoded JSON.
        keyed: read `{"get_weather": {…}}` as a call too, as it is one behind a marker.
        depth: number of wrappers and lists around the value; deep nesting is no call.

    Returns:
        () for a tool's *declaration*, a list of which one item is no call, and other data.
    """
    if isinstance(value, list):
        calls: list[RequestedCall] = []
        for item in cast(list[Any], value) if depth < 3 else ():
            calls_of_item = calls_in(item, keyed=keyed, depth=depth + 1)
            if not calls_of_item:
                return ()
            calls += calls_of_item
        return tuple(calls)
    if not isinstance(value, dict) or depth > 4:
        return ()
    fields = cast(dict[str, Any], value)
    if fields.get("method") == "tools/call":  # the Model Context Protocol's
        return calls_in(fields.get("params"))
    fields_of_call = {key: inner for key, inner in fields.items() if key not in _METADATA_KEYS}
    queries = fields_of_call.get("search_query")
    if isinstance(queries, list) and set(fields_of_call) <= {"search_query", "response_length"}:
        return (RequestedCall("search", {"search_query": queries}, builtin="search"),)
    if len(fields_of_call) == 1:
        ((key, inner),) = fields_of_call.items()
        if _WRAPPER_KEY.fullmatch(key) and isinstance(inner, dict | list):
            return calls_in(cast(Any, inner), keyed=keyed, depth=depth + 1)
    call = _named_call(fields_of_call)
    if call is not None:
        return (call,) if toolish(call.name or "") and call.arguments is not None else ()
    if keyed and fields and all(isinstance(v, dict) and toolish(k) for k, v in fields.items()):
        return tuple(RequestedCall(key, arguments) for key, arguments in fields.items())
    return ()


def _named_call(fields: Mapping[str, Any]) -> RequestedCall | None:
    """Read `{"name": "f", "arguments": {…}}` in any of its spellings; None for another shape.

    The call has no arguments where they cannot be read, or are a schema that *declares* a tool.
    """
    names = [v for k, v in fields.items() if isinstance(v, str) and _NAME_KEY.fullmatch(k)]
    argument_keys = [key for key in fields if _ARGUMENTS_KEY.fullmatch(key)]
    if len(fields) != 2 or not names or not argument_keys:
        return None
    (key, *_) = argument_keys
    arguments = read_arguments(fields[key], free=key.startswith(("tool", "action")))
    if arguments is not None and _is_schema(arguments):
        arguments = None
    return RequestedCall(names[0].strip(), arguments)


def read_arguments(value: Any, *, free: bool = False) -> Arguments | None:
    """Read arguments, an object, its JSON text or nothing, as a mapping; None for anything else.

    Args:
        free: read any text as one unnamed argument, as ReAct agents write it.
    """
    if isinstance(value, str):
        text = value.strip()
        if text[:1] == "{":
            with suppress(ValueError):
                value = load_json(text)
        else:
            value = text or None
        if free and isinstance(value, str):
            return {"": UNREAD}
    if value is None:
        return {}
    return cast(Arguments, value) if isinstance(value, dict) else None


def _is_schema(arguments: Arguments) -> bool:
    """Check if "arguments" is a JSON schema: then a tool is described, not called."""
    if arguments.get("type") in ("object", "dict") and "properties" in arguments:
        return True
    for value in arguments.values():
        if not isinstance(value, dict) or "type" not in value:
            return False
        if "description" not in value and len(cast(dict[str, Any], value)) != 1:
            return False
    return bool(arguments)


def to_fill_in(calls: Iterable[RequestedCall]) -> bool:
    """Check if one of these is a form to fill in: all its values are blanks, or its name is."""
    for call in calls:
        name = call.name or ""
        values = (call.arguments or {}).values()
        if values and all(isinstance(v, str) and _BLANK_VALUE.fullmatch(v) for v in values):
            return True
        has_blank_name = _BLANK_NAME.fullmatch(name.strip().rpartition(".")[2])
        if has_blank_name and (call.arguments is None or not toolish(name)):
            return True
    return False
