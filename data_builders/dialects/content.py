"""A message's content and calls, and declared tools: from the forms in the wild to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from data_builders.dialects.columns import is_more_than_a_switch, refuse_media
from data_builders.dialects.reading import RowProblem, decoded, encoded
from posttrain.jsontext import load_json
from posttrain.records import Role, ToolCall

_TEXT_PARTS = ("text", "input_text", "output_text")
_TRACE_PARTS = ("thinking", "reasoning")
_CALL_PARTS = ("tool_call", "tool_calls", "tool_use")
_MEDIA = ("image", "audio", "video", "file", "document")
_JSON_STARTS = ("[", "{", " ", "\n")
_PARTS_AS_TEXT = re.compile(r"\s{0,20}\[?\s{0,20}\{\s{0,20}\"(?:type|text|thinking)\"")


class Content(NamedTuple):
    """Text, trace and calls of one message's content."""

    text: str
    trace: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read_content(value: Any, role: Role | str, location: str) -> Content:
    """Read text, parts, one part, nothing (the empty text) or a number (its JSON text).

    A tool's result may be any JSON value: one that is neither text nor text parts is kept as JSON
    text.

    Raises:
        RowProblem: `unsupported_content` for media, `malformed_message` for any other part that is
            not read or lacks its text.
    """
    if isinstance(value, Mapping) and (
        _is_text_part(value) or (role != "tool" and "type" in value)
    ):
        return _read_parts([value], location)  # MCP's single part
    if isinstance(value, list) and (role != "tool" or any(map(_is_text_part, value))):
        return _read_parts(value, location)
    if role == "tool" and not isinstance(value, str) and value is not None:
        _refuse_media_parts(value, location)
        return Content(encoded(value, "malformed_message", location))
    text = read_text(value, location)
    if text[:1] in _JSON_STARTS and role != "tool" and _PARTS_AS_TEXT.match(text):
        _refuse_parts_as_text(text, location)
    return Content(text)


def _refuse_media_parts(value: Any, location: str) -> None:
    """Refuse a tool's result that lists pictures or sound: as JSON text it would be their bytes."""
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if _is_media_type(kind) and any(part.get(key) for key in ("source", "data", kind)):
            path = f"{location}[{index}]"
            raise RowProblem("unsupported_content", path, f"a part of type {kind!r:.40}")


def _is_media_type(kind: Any) -> bool:
    """True if a part's type names pictures, sound or a file."""
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def _refuse_parts_as_text(text: str, location: str) -> None:
    """Refuse a text that is the JSON of content parts: trained as it stands, it would be JSON."""
    try:
        value = load_json(text)
    except ValueError:
        return
    parts = value if isinstance(value, list) else [value]
    part_types = (*_TEXT_PARTS, *_TRACE_PARTS, *_CALL_PARTS)
    if parts and all(isinstance(p, Mapping) and p.get("type") in part_types for p in parts):
        detail = "the JSON text of content parts: store them as a list"
        raise RowProblem("malformed_message", location, detail)


def read_text(value: Any, location: str) -> str:
    """Read text as it is, a number as text, null as the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return encoded(value, "malformed_message", location)
    raise RowProblem("malformed_message", location, f"expected text, found {value!r:.80}")


def _is_text_part(part: Any) -> bool:
    """True if a part has the type of a text, whether or not it holds one."""
    return isinstance(part, Mapping) and _part_type(part) in _TEXT_PARTS


def _part_type(part: Mapping[str, Any]) -> Any:
    """Type of a content part; one with nothing but `text` is text."""
    return part.get("type", "text" if set(part) == {"text"} else None)


def _part_text(part: Mapping[str, Any], keys: tuple[str, ...], location: str) -> str:
    """Text under the first of `keys` that a part fills, else its empty text, else RowProblem.

    OpenAI's Assistants store an object with the text under `value`.
    """
    values = [part[key] for key in keys if part.get(key) is not None]
    filled_values = [value for value in values if value]
    # an empty text only where no key has more
    value = next(iter(filled_values or values), None)
    text = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        return text
    # read as empty, whole prompts would be gone
    raise RowProblem(
        "malformed_message", location, f"a content part without its text: {part!r:.80}"
    )


def _read_parts(parts: list[Any], location: str) -> Content:
    """Content of a list of parts: texts joined without a separator, traces with a line end."""
    texts: list[str] = []
    traces: list[str] = []
    calls: tuple[ToolCall, ...] = ()
    for index, part in enumerate(parts):
        path = f"{location}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RowProblem("malformed_message", path, f"a content part is {part!r:.80}")
        refuse_media(part, f"{path}.")
        kind = _part_type(part)
        if part.get("thought") is True:  # Gemini's
            traces.append(_part_text(part, ("text",), path))
        elif kind in _TEXT_PARTS:
            texts.append(_part_text(part, ("text", "value"), path))
        elif kind in _TRACE_PARTS:
            traces.append(_part_text(part, (kind, "text", "value"), path))
        elif kind in _CALL_PARTS:
            value = part if kind == "tool_use" else part.get("value", part.get(kind))
            calls += read_calls(value, path)
        else:
            reason = "unsupported_content" if _is_media_type(kind) else "malformed_message"
            raise RowProblem(reason, path, f"a content part that is not read: {part!r:.80}")
    return Content("".join(texts), "\n".join(traces) or None, calls)


_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
# other keys that a call may have; a cache's mark is no part of the call
_CALL_KEYS = {"name", *_ARGUMENT_KEYS, "id", "type", "index", "function", "cache_control"}


def read_calls(value: Any, location: str) -> tuple[ToolCall, ...]:
    """Read a message's calls: a list of calls, one call, the JSON text of either, or nothing."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        value = decoded(value, "malformed_tool_call", location)
    if value is None:
        return ()
    if not isinstance(value, list):
        return (read_call(value, location),)
    return tuple(read_call(item, f"{location}[{i}]") for i, item in enumerate(value))


def read_call(value: Any, location: str) -> ToolCall:
    """Read one call, nested under `function` or flat, or its JSON text.

    Raises:
        RowProblem: `malformed_tool_call` or `malformed_arguments`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tool_call", location)
    if not isinstance(value, Mapping):
        raise RowProblem(
            "malformed_tool_call", location, f"a call is an object, found {value!r:.80}"
        )
    function = value.get("function")
    if function is None or isinstance(function, str):
        # flat; `function` as a bare name appears with `arguments` beside it
        function = {"name": function, **value} if function else value
    if not isinstance(function, Mapping):
        raise RowProblem("malformed_tool_call", location, f"function is {function!r:.80}")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tool_call", location, f"the call's name is {name!r:.80}")
    arguments_key = next((key for key in _ARGUMENT_KEYS if function.get(key) is not None), None)
    unknown_keys = sorted(set(function) - _CALL_KEYS)
    if arguments_key is None and unknown_keys:
        raise RowProblem("malformed_tool_call", location, f"no arguments, but {unknown_keys[0]!r}")
    for key, stored in (*value.items(), *function.items()):
        has_content = isinstance(stored, list | Mapping) or is_more_than_a_switch(stored)
        if key not in _CALL_KEYS and has_content:
            path = f"{location}.{key:.80}"
            raise RowProblem("malformed_tool_call", path, f"not read: {stored!r:.60}")
    stored_arguments = function[arguments_key] if arguments_key else None
    arguments = _read_arguments(stored_arguments, f"{location}.arguments")
    return ToolCall(name, arguments, read_id(value.get("id"), f"{location}.id"))


def read_id(value: Any, location: str) -> str | None:
    """Read an identifier or name: text, a whole number, or nothing."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowProblem("malformed_message", location, f"expected text, found {value!r:.80}")


def read_tools(value: Any, location: str = "tools") -> str | None:
    """Read declared tools as the JSON text of a list of OpenAI schemas; `None` without any.

    Takes a list, one schema, or JSON text of either; items may be JSON text themselves, bare
    functions, or have Anthropic's `input_schema` or MCP's `inputSchema`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tools", location) if value.strip() else None
    if value is None or value == []:
        return None
    items = value if isinstance(value, list) else [value]
    tools = [_read_tool(item, f"{location}[{i}]") for i, item in enumerate(items)]
    return encoded(tools, "malformed_tools", location)


def _read_tool(item: Any, location: str) -> dict[str, Any]:
    """Read one declared tool as an OpenAI schema."""
    if isinstance(item, str):
        item = decoded(item, "malformed_tools", location)
    if not isinstance(item, Mapping):
        raise RowProblem("malformed_tools", location, f"a tool is an object, found {item!r:.80}")
    function = item.get("function")
    if isinstance(function, Mapping):
        kind = item.get("type", "function")
        tool = {"type": "function", **item}
    else:
        # flat: OpenAI's Responses say `function`, Anthropic says `custom` or nothing
        kind = item.get("type")
        if kind in (None, "custom"):
            kind = "function"
        function = {key: value for key, value in item.items() if key != "type"}
        for key in ("input_schema", "inputSchema"):
            if key in function and "parameters" not in function:
                function["parameters"] = function.pop(key)
        tool = {"type": "function", "function": function}
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tools", location, f"the tool's name is {name!r:.80}")
    if kind != "function":
        raise RowProblem("malformed_tools", location, f"a tool of type {kind!r:.80}")
    return tool


def _read_arguments(value: Any, location: str) -> str:
    """Read a call's arguments as the JSON text of an object."""
    if isinstance(value, str) and value.strip():
        value = decoded(value, "malformed_arguments", location)
        if isinstance(value, str) and value.lstrip()[:1] == "{":  # some rows encode them twice
            value = decoded(value, "malformed_arguments", location)
    elif value is None or isinstance(value, str):
        return "{}"
    if not isinstance(value, Mapping):
        raise RowProblem("malformed_arguments", location, f"not an object: {value!r:.80}")
    return encoded(value, "malformed_arguments", location)
