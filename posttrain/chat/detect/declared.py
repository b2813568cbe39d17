"""Calls held against the tools that were declared.

    tools = read_tools('[{"type": "function", "function": {"name": "f", "parameters": {…}}}]')
    kind_of(Asked("g", {}), tools) → "nonexistent_tool"
    kind_of(Asked("f", {"y": 1}), tools) → "fabricated_arguments"   (f has no parameter y)

Arguments are fabricated when the declared schema has no room for them: a name that it does not
have, a required one that is missing, a value of another type or outside its enumeration. Whether a
value is *true* to the conversation is not judged here: that cannot be decided from the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from posttrain.chat.detect.found import Kind
from posttrain.chat.detect.requested import UNREAD, RequestedCall
from posttrain.jsontext import load_json

Schema = Mapping[str, Any]
_ALIASES = {
    "dict": "object", "map": "object", "list": "array", "tuple": "array", "set": "array",
    "float": "number", "double": "number", "int": "integer", "long": "integer",
    "bool": "boolean", "str": "string", "none": "null",
}  # fmt: skip
_CHECKED = {"object", "array", "string", "number", "integer", "boolean", "null"}
_CODE_TOOLS = ("python", "code", "interpreter", "exec", "bash", "shell", "terminal")
_SEARCH_TOOLS = ("search", "browse", "wiki", "retriev", "web")
_DEEPEST = 12


@lru_cache(maxsize=256)
def read_tools(tools: str) -> Mapping[str, Schema | None]:
    """Each declared tool's name and the schema of its parameters, None where it gives none.

    Raises:
        ValueError: the text is not JSON.
    """
    found: dict[str, Schema | None] = {}
    value = load_json(tools)
    for tool in cast(list[Any], value) if isinstance(value, list) else [value]:
        declared = _mapping(tool)
        function = _mapping(declared.get("function")) or declared
        name = function.get("name")
        schema = next(
            (function[k] for k in ("parameters", "input_schema", "arguments") if k in function),
            None,
        )
        if isinstance(name, str):
            found[name] = _mapping(schema) if isinstance(schema, dict) else None
    return found


def kind_of(requested: RequestedCall, tools: Mapping[str, Schema | None] | None) -> Kind:
    """The kind of a call; `tools` is None where none is declared."""
    if tools is None:
        return "undeclared"
    if requested.request is not None and requested.name not in tools:
        likely = _CODE_TOOLS if requested.request == "python" else _SEARCH_TOOLS
        hit = any(part in name.lower() for name in tools for part in likely)
        return "declared" if hit else "nonexistent_tool"
    if requested.name is None:
        return "declared"
    if requested.name not in tools:
        return "nonexistent_tool"
    schema = tools[requested.name]
    if requested.arguments is None or schema is None or "" in requested.arguments:
        return "declared"
    breach = _object_breach(requested.arguments, schema, textual=requested.textual, depth=0)
    return "fabricated_arguments" if breach else "declared"


def _mapping(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _object_breach(
    arguments: Mapping[str, Any], schema: Schema, *, textual: bool, depth: int
) -> bool:
    """Whether an object breaks its schema. Names that are not among the properties do."""
    properties = _mapping(schema.get("properties"))
    open_ended = bool(schema.get("additionalProperties")) or "patternProperties" in schema
    described = "properties" in schema or not schema
    required = schema.get("required")
    positional = any(key.isdecimal() for key in arguments)
    if positional:
        return False  # which parameters these are is not said
    if isinstance(required, list):
        names = [key for key in cast(list[Any], required) if isinstance(key, str)]
        if any(key not in arguments for key in names):
            return True
    for key, value in arguments.items():
        if key not in properties:
            if described and not open_ended:
                return True
        elif not _fits(value, properties[key], textual=textual, depth=depth + 1):
            return True
    return False


def _fits(value: Any, schema: Any, *, textual: bool, depth: int) -> bool:
    """Whether a value may be there; what cannot be read or is not understood is let pass."""
    fields = _mapping(schema)
    if value is UNREAD or not fields or depth > _DEEPEST or "$ref" in fields:
        return True
    for key in ("anyOf", "oneOf"):
        options = fields.get(key)
        if isinstance(options, list) and options:
            return any(
                _fits(value, option, textual=textual, depth=depth + 1)
                for option in cast(list[Any], options)
            )
    allowed = fields.get("enum")
    if isinstance(allowed, list) and allowed:
        members = cast(list[Any], allowed)
        return value in members or (textual and str(value) in [str(m) for m in members])
    kinds = _kinds(fields)
    return not kinds or any(_is(value, kind, fields, textual, depth) for kind in kinds)


def _kinds(fields: Schema) -> list[str]:
    declared = fields.get("type")
    names = cast(list[Any], declared) if isinstance(declared, list) else [declared]
    kinds = [_ALIASES.get(n.lower(), n.lower()) for n in names if isinstance(n, str)]
    if fields.get("nullable") is True:
        kinds.append("null")
    return kinds if all(kind in _CHECKED for kind in kinds) else []


def _is(value: Any, kind: str, fields: Schema, textual: bool, depth: int) -> bool:
    if textual and isinstance(value, str):
        if kind == "string":
            return True
        value = _from_text(value)
    if kind == "object":
        return isinstance(value, dict) and not (
            "properties" in fields
            and _object_breach(cast(dict[str, Any], value), fields, textual=False, depth=depth)
        )
    if kind == "array":
        return isinstance(value, list) and all(
            _fits(item, fields.get("items"), textual=False, depth=depth + 1)
            for item in cast(list[Any], value)
        )
    if kind == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return whole or (isinstance(value, int) and not isinstance(value, bool))
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    return value is None if kind == "null" else isinstance(value, str)


def _from_text(text: str) -> Any:
    """A value of an XML call: JSON, or Python's words for its constants; else the text."""
    words: dict[str, Any] = {"True": True, "False": False, "None": None}
    stripped = text.strip()
    if stripped in words:
        return words[stripped]
    try:
        return load_json(stripped)
    except ValueError:
        return text
