"""Tool calls and tool declarations, from the forms they take in the wild to ours.

{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}  and
{"name": "f", "arguments": {"x": 1}}  → ToolCall("f", '{"x":1}', …)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_builders.dialects.reading import RowProblem, decoded, encoded
from posttrain.records import ToolCall

_CALL_KEYS = {"name", "arguments", "parameters", "id", "type", "index"}


def read_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    """The calls of one message: a list of calls, one call, the JSON text of either, or nothing."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        value = decoded(value, "malformed_tool_call", where)
    if value is None:
        return ()
    if not isinstance(value, list):
        return (read_call(value, where),)
    return tuple(read_call(item, f"{where}[{i}]") for i, item in enumerate(value))


def read_call(value: Any, where: str) -> ToolCall:
    """One call, nested under `function` or flat, or its JSON text.

    Raises:
        RowProblem: `malformed_tool_call` or `malformed_arguments`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tool_call", where)
    if not isinstance(value, Mapping):
        raise RowProblem("malformed_tool_call", where, f"a call is an object, found {value!r:.80}")
    function = value.get("function")
    if function is None or isinstance(function, str):
        # flat; `function` as a bare name appears with `arguments` beside it
        function = {"name": function, **value} if function else value
    if not isinstance(function, Mapping):
        raise RowProblem("malformed_tool_call", where, f"function is {function!r:.80}")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tool_call", where, f"the call's name is {name!r:.80}")
    given = next((k for k in ("arguments", "parameters") if function.get(k) is not None), None)
    extra = sorted(set(function) - _CALL_KEYS - {"function"})
    if given is None and extra:
        raise RowProblem("malformed_tool_call", where, f"no arguments, but {extra[0]!r}")
    arguments = _arguments(function[given] if given else None, f"{where}.arguments")
    return ToolCall(name, arguments, read_id(value.get("id"), f"{where}.id"))


def read_id(value: Any, where: str) -> str | None:
    """An identifier or name: text, a whole number, or nothing."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowProblem("malformed_message", where, f"expected text, found {value!r:.80}")


def read_tools(value: Any, where: str = "tools") -> str | None:
    """Declared tools as the JSON text of a list of OpenAI schemas; `None` when none is declared.

    Takes a list, one schema, or JSON text of either; items may be JSON text themselves, bare
    functions, or have Anthropic's `input_schema` or MCP's `inputSchema`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tools", where) if value.strip() else None
    if value is None or value == []:
        return None
    items = value if isinstance(value, list) else [value]
    tools = [_tool(item, f"{where}[{i}]") for i, item in enumerate(items)]
    return encoded(tools, "malformed_tools", where)


def _tool(item: Any, where: str) -> dict[str, Any]:
    if isinstance(item, str):
        item = decoded(item, "malformed_tools", where)
    if not isinstance(item, Mapping):
        raise RowProblem("malformed_tools", where, f"a tool is an object, found {item!r:.80}")
    function = item.get("function")
    if isinstance(function, Mapping):
        kind, tool = item.get("type", "function"), {"type": "function", **item}
    else:
        # flat: OpenAI's Responses say `function`, Anthropic says `custom` or nothing
        kind, bare = item.get("type"), {k: v for k, v in item.items() if k != "type"}
        kind = "function" if kind in (None, "custom") else kind
        for key in ("input_schema", "inputSchema"):
            if key in bare and "parameters" not in bare:
                bare["parameters"] = bare.pop(key)
        function, tool = bare, {"type": "function", "function": bare}
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tools", where, f"the tool's name is {name!r:.80}")
    if kind != "function":
        raise RowProblem("malformed_tools", where, f"a tool of type {kind!r:.80}")
    return tool


def _arguments(value: Any, where: str) -> str:
    if isinstance(value, str) and value.strip():
        value = decoded(value, "malformed_arguments", where)
    elif value is None or isinstance(value, str):
        return "{}"
    if not isinstance(value, Mapping):
        raise RowProblem("malformed_arguments", where, f"not an object: {value!r:.80}")
    return encoded(value, "malformed_arguments", where)
