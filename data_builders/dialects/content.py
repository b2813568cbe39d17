"""A message's content and calls, and declared tools: from the forms in the wild to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from data_builders.dialects.columns import refuse_media, speaks
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
    """Text, trace and calls in one message's content."""

    text: str
    trace: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read_content(value: Any, role: Role | str, where: str) -> Content:
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
        return _read_parts([value], where)  # MCP's single part
    if isinstance(value, list) and (role != "tool" or any(map(_is_text_part, value))):
        return _read_parts(value, where)
    if role == "tool" and not isinstance(value, str) and value is not None:
        _refuse_media_parts(value, where)
        return Content(encoded(value, "malformed_message", where))
    text = read_text(value, where)
    if text[:1] in _JSON_STARTS and role != "tool" and _PARTS_AS_TEXT.match(text):
        _refuse_parts_as_text(text, where)
    return Content(text)


def _refuse_media_parts(value: Any, where: str) -> None:
    """Refuse a tool's result with pictures or sound: as JSON text it would be their bytes."""
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if _is_media(kind) and any(part.get(key) for key in ("source", "data", kind)):
            path = f"{where}[{index}]"
            raise RowProblem("unsupported_content", path, f"a part of type {kind!r:.40}")


def _is_media(kind: Any) -> bool:
    """Whether a part's type names pictures, sound or a file."""
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def _refuse_parts_as_text(text: str, where: str) -> None:
    """Refuse a text that is the JSON of content parts: trained as it stands, it would be JSON."""
    try:
        value = load_json(text)
    except ValueError:
        return
    parts = value if isinstance(value, list) else [value]
    known = (*_TEXT_PARTS, *_TRACE_PARTS, *_CALL_PARTS)
    if parts and all(isinstance(p, Mapping) and p.get("type") in known for p in parts):
        what = "the JSON text of content parts: store them as a list"
        raise RowProblem("malformed_message", where, what)


def read_text(value: Any, where: str) -> str:
    """Text as it is, a number as text, null as the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return encoded(value, "malformed_message", where)
    raise RowProblem("malformed_message", where, f"expected text, found {value!r:.80}")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and _type_of(part) in _TEXT_PARTS


def _type_of(part: Mapping[str, Any]) -> Any:
    """A part's type; a part with nothing but `text` is text."""
    return part.get("type", "text" if set(part) == {"text"} else None)


def _text_of(part: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    """A part's text under the first of `keys` that it fills, also as OpenAI Assistants' object."""
    values = [value for key in keys if (value := part.get(key)) is not None]
    # an empty text only where no key has more
    value = next((value for value in values if value), values[0] if values else None)
    text = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        return text
    # read as empty, whole prompts would be gone
    raise RowProblem("malformed_message", where, f"a content part without its text: {part!r:.80}")


def _read_parts(parts: list[Any], where: str) -> Content:
    """Content of a list of parts: texts joined without a separator, traces with a line end."""
    texts: list[str] = []
    traces: list[str] = []
    calls: tuple[ToolCall, ...] = ()
    for index, part in enumerate(parts):
        path = f"{where}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RowProblem("malformed_message", path, f"a content part is {part!r:.80}")
        refuse_media(part, f"{path}.")
        kind = _type_of(part)
        if part.get("thought") is True:  # Gemini's
            traces.append(_text_of(part, ("text",), path))
        elif kind in _TEXT_PARTS:
            texts.append(_text_of(part, ("text", "value"), path))
        elif kind in _TRACE_PARTS:
            traces.append(_text_of(part, (kind, "text", "value"), path))
        elif kind in _CALL_PARTS:
            value = part if kind == "tool_use" else part.get("value", part.get(kind))
            calls += read_calls(value, path)
        else:
            reason = "unsupported_content" if _is_media(kind) else "malformed_message"
            raise RowProblem(reason, path, f"a content part that is not read: {part!r:.80}")
    return Content("".join(texts), "\n".join(traces) or None, calls)


_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
# other keys that a call may have; a cache's mark is no part of the call
_CALL_KEYS = {"name", *_ARGUMENT_KEYS, "id", "type", "index", "function", "cache_control"}


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
    arguments_key = next((key for key in _ARGUMENT_KEYS if function.get(key) is not None), None)
    unknown_keys = sorted(set(function) - _CALL_KEYS)
    if arguments_key is None and unknown_keys:
        raise RowProblem("malformed_tool_call", where, f"no arguments, but {unknown_keys[0]!r}")
    for key, stored in (*value.items(), *function.items()):
        if key not in _CALL_KEYS and (isinstance(stored, list | Mapping) or speaks(stored)):
            path = f"{where}.{key:.80}"
            raise RowProblem("malformed_tool_call", path, f"not read: {stored!r:.60}")
    stored_arguments = function[arguments_key] if arguments_key else None
    arguments = _read_arguments(stored_arguments, f"{where}.arguments")
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
    tools = [_read_tool(item, f"{where}[{i}]") for i, item in enumerate(items)]
    return encoded(tools, "malformed_tools", where)


def _read_tool(item: Any, where: str) -> dict[str, Any]:
    """One declared tool as an OpenAI schema."""
    if isinstance(item, str):
        item = decoded(item, "malformed_tools", where)
    if not isinstance(item, Mapping):
        raise RowProblem("malformed_tools", where, f"a tool is an object, found {item!r:.80}")
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
        raise RowProblem("malformed_tools", where, f"the tool's name is {name!r:.80}")
    if kind != "function":
        raise RowProblem("malformed_tools", where, f"a tool of type {kind!r:.80}")
    return tool


def _read_arguments(value: Any, where: str) -> str:
    """A call's arguments as the JSON text of an object."""
    if isinstance(value, str) and value.strip():
        value = decoded(value, "malformed_arguments", where)
        if isinstance(value, str) and value.lstrip()[:1] == "{":  # some rows encode them twice
            value = decoded(value, "malformed_arguments", where)
    elif value is None or isinstance(value, str):
        return "{}"
    if not isinstance(value, Mapping):
        raise RowProblem("malformed_arguments", where, f"not an object: {value!r:.80}")
    return encoded(value, "malformed_arguments", where)
