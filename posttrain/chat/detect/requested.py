"""What a call asks for, as far as it can be read, and which JSON values are calls.

asked_in({"name": "get_weather", "arguments": {"city": "Paris"}})
    → (Asked("get_weather", {"city": "Paris"}),)
asked_in({"name": "get_weather", "parameters": {"type": "object", "properties": {}}}) → ()
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from posttrain.jsontext import load_json

Request = Literal["python", "search"]
Arguments = Mapping[str, Any]
UNREAD = object()  # an argument that is there and whose value cannot be read

_NAMES = ("name", "tool", "tool_name", "toolName", "function", "function_name", "functionName",
          "action", "recipient_name", "api_name", "tool_call")  # fmt: skip
_ARGUMENTS = ("arguments", "parameters", "args", "params", "input", "inputs", "tool_input",
              "toolInput", "action_input", "tool_args", "tool_arguments", "tool_parameters",
              "kwargs", "function_args", "function_arguments")  # fmt: skip
_LOOSE = frozenset({"input", "inputs", "params", "kwargs"})  # with "name", any data has these
_TEXT_INPUT = frozenset({"action_input", "tool_input", "toolInput"})
_BESIDE = frozenset({"id", "type", "index", "thought", "thoughts", "reasoning", "reason", "call_id",
                     "tool_call_id", "status", "explanation", "description_of_call", "role",
                     "content", "tool_use_id"})  # fmt: skip
_WRAPPERS = ("tool_calls", "function_call", "functionCall", "function_calls", "functionCalls",
             "tool_call", "tool_uses", "toolUse", "toolCalls", "calls")  # fmt: skip
_TOOLISH = re.compile(r"[A-Za-z_$][\w.\-:/]{0,127}\Z")
_PLACEHOLDER = re.compile(
    r"(?:example_function_name|(?:your|the|some|my|a)?[_ -]?(?:function|tool|func|method|api)"
    r"(?:[_ -]?(?:name|call|id))?[_ -]?\d*|name|foo|bar|x{3,}|\W*(?:\.\.\.|…)\W*|[<\[{$].*)\Z",
    re.I | re.S,
)
_EMPTY_VALUE = re.compile(
    r"(?:\.\.\.|…|<[^<>]*>|\{[a-z_ \-]*\}|\[[a-z _]*\]|value[_ -]?\d*|values?|string|your[_ -].*|"
    r"(?:arg|argument|param|parameter)[_ -]?(?:name|value)?[_ -]?\d*)\Z",
    re.I | re.S,
)
_VERB = re.compile(
    r"(?:^|_|(?<=[a-z])(?=[A-Z]))(?i:get|fetch|search|find|look|query|calculate|compute|convert|run|execute|exec|send|create|"
    r"add|update|delete|remove|set|list|read|write|open|load|save|book|cancel|check|call|translate|"
    r"generate|solve|plot|browse|retrieve|schedule|order|play|start|stop|track|verify|analy[sz]e)"
    r"(?=_|[A-Z]|\d|$)"
)
_NOT_TOOLS = frozenset({"none", "null", "n/a", "finish", "final_answer", "final", "answer", "n"})


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """One call's request.

    Attributes:
        name: the tool's name where it can be read.
        arguments: by name; None where they cannot be read. `UNREAD` stands for unreadable values.
        textual: values are text whose type the notation does not show (XML).
        request: the built-in that the notation itself stands for.
    """

    name: str | None
    arguments: Arguments | None = None
    textual: bool = False
    request: Request | None = None


def toolish(name: object) -> bool:
    """Whether this can be a tool's name."""
    return (
        isinstance(name, str)
        and _TOOLISH.match(name) is not None
        and name.lower() not in _NOT_TOOLS
    )


def tool_name(name: str | None) -> str | None:
    """A tool's own name, without the namespace that some notations put before it."""
    return name and name.removeprefix("functions.").removeprefix("default_api.")


def function_like(name: str) -> bool:
    """Whether a name looks like a function's rather than like a word: `get_x`, `getX`, `a.b`."""
    return re.search(r"[_.]|[a-z][A-Z]", name) is not None


def acts(name: str) -> bool:
    """Whether a name has a verb, as a function's does: `get_weather`, `notes_readAll`, `a.b`."""
    return "." in name or _VERB.search(name) is not None


def placeholder(requested: RequestedCall) -> bool:
    """Whether a call is a blank form: a made-up name, or nothing but blanks for values."""
    if requested.name is not None and _PLACEHOLDER.match(requested.name.rpartition(".")[2]):
        return True
    values = list((requested.arguments or {}).values())
    return bool(values) and all(isinstance(v, str) and _EMPTY_VALUE.match(v) for v in values)


def blank_name(value: Any) -> bool:
    """Whether a JSON value has a blank where a call has its name: `{"name": "<tool_name>", …}`."""
    name = cast(dict[str, Any], value).get("name") if isinstance(value, dict) else None
    return isinstance(name, str) and _PLACEHOLDER.match(name.strip()) is not None


def requested_in(value: Any, depth: int = 0) -> tuple[RequestedCall, ...]:
    """The calls that a JSON value is: one call, a list of calls, or either in its usual wrapper.

    () where it is none: a tool's *declaration*, a list of which one item is no call, other data.
    """
    if isinstance(value, list):
        found = (
            [requested_in(item, depth + 1) for item in cast(list[Any], value)] if depth < 3 else []
        )
        return tuple(a for item in found for a in item) if found and all(found) else ()
    if not isinstance(value, dict) or depth > 4:
        return ()
    fields = cast(dict[str, Any], value)
    for wrapper in _WRAPPERS:
        inner = fields.get(wrapper)
        if isinstance(inner, dict | list) and set(fields) - {wrapper} <= _BESIDE:
            return requested_in(inner, depth + 1)
    function = fields.get("function", fields.get("tool"))
    if isinstance(function, dict) and set(fields) - {"function", "tool"} <= _BESIDE:
        return requested_in(function, depth + 1)
    one = _one(fields)
    return (one,) if one else ()


def _one(fields: dict[str, Any]) -> RequestedCall | None:
    names = [key for key in _NAMES if isinstance(fields.get(key), str)]
    given = [key for key in _ARGUMENTS if key in fields]
    if not names or len(given) != 1 or set(fields) - {names[0], given[0]} > _BESIDE | set(_NAMES):
        return None
    if any(key not in _BESIDE and key not in (names[0], given[0]) for key in fields):
        return None
    name = fields[names[0]].strip()
    arguments = read_arguments(fields[given[0]], free=given[0] in _TEXT_INPUT)
    if not toolish(name) or arguments is None or _declaration(arguments):
        return None
    return RequestedCall(name, arguments)


def read_arguments(value: Any, *, free: bool = False) -> Arguments | None:
    """Arguments as a mapping: an object, its JSON text or nothing; None where they are no such.

    With `free`, any text is one unnamed argument, as ReAct agents give it.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        text = value.strip()
        try:
            value = load_json(text) if text[:1] == "{" else ({} if not text else None)
        except ValueError:
            value = None
        if value is None and free:
            return {"": UNREAD}
    return cast(Arguments, value) if isinstance(value, dict) else None


def _declaration(arguments: Arguments) -> bool:
    """Whether "arguments" is a JSON schema: then a tool is described, not called."""
    if arguments.get("type") in ("object", "dict") and "properties" in arguments:
        return True
    schemas = [cast(dict[str, Any], v) for v in arguments.values() if isinstance(v, dict)]
    described = [s for s in schemas if "type" in s and ("description" in s or len(s) == 1)]
    return bool(arguments) and len(described) == len(arguments)
