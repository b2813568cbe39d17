"""Judge calls against the declared tools.

    kind_of(RequestedCall("g", {}), tools) → "nonexistent_tool"
    kind_of(RequestedCall("f", {"y": 1}), tools) → "fabricated_arguments"   (f has no parameter y)

Arguments are fabricated when the declared schema has no room for them; null stands for an optional
one that is left out. Whether a value is *true* to the conversation cannot be decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from posttrain.chat.detect.requested import UNREAD, RequestedCall
from posttrain.chat.detect.shapes import literal
from posttrain.chat.parse import as_list, as_mapping
from posttrain.jsontext import load_json

Kind = Literal["undeclared", "nonexistent_tool", "fabricated_arguments", "declared"]
Tools = Mapping[str, dict[str, Any] | None]
# name of a type in any schema language → JSON Schema's; None lets any value pass
TYPE_NAMES: dict[str, str | None] = {
    "object": "object", "dict": "object", "map": "object", "struct": "object", "hashmap": "object",
    "array": "array", "list": "array", "tuple": "array", "set": "array", "arraylist": "array",
    "string": "string", "str": "string", "text": "string", "char": "string",
    "integer": "integer", "int": "integer", "long": "integer", "short": "integer",
    "byte": "integer",
    "number": "number", "float": "number", "double": "number", "decimal": "number",
    "boolean": "boolean", "bool": "boolean",
    "null": "null", "none": "null", "nonetype": "null",
    "any": None, "all": None, "mixed": None,
}  # fmt: skip
# built-in tool of a notation → parts of the names under which it may be declared
_BUILTIN_NAME_PARTS = {
    "python": ("python", "code", "interpreter", "exec", "bash", "shell", "terminal"),
    "search": ("search", "browse", "wiki", "retriev", "web"),
}
_SCHEMA_KEYS = ("parameters", "input_schema", "arguments")
_MAX_DEPTH = 12  # deeper schemas let any value pass, so that hostile nesting ends


@lru_cache(maxsize=256)
def read_tools(tools: str) -> Tools:
    """Read the declared tools: name → schema of the arguments, None for a tool without one.

    Raises:
        ValueError: the text is not JSON.
    """
    declared: dict[str, dict[str, Any] | None] = {}
    value = load_json(tools)
    for tool in as_list(value) or [value]:
        outer = as_mapping(tool)
        function = as_mapping(outer.get("function")) or outer
        name = function.get("name")
        if not isinstance(name, str):
            continue
        schema = next((function[key] for key in _SCHEMA_KEYS if key in function), None)
        if isinstance(schema, dict):
            # an empty schema declares a tool without parameters
            declared[name] = _standardize(schema or {"properties": {}})
        else:
            declared[name] = None
    return declared


def kind_of(requested: RequestedCall, tools: Tools | None) -> Kind:
    """Judge a call against the declared tools; `tools` is None where none is declared."""
    if tools is None:
        return "undeclared"
    name = requested.name
    if requested.builtin is not None and name not in tools:
        name_parts = _BUILTIN_NAME_PARTS[requested.builtin]
        is_offered = any(part in tool.lower() for tool in tools for part in name_parts)
        return "declared" if is_offered else "nonexistent_tool"
    if name is None:
        return "declared"
    if name not in tools:
        return "nonexistent_tool"
    schema = tools[name]
    if schema is None or requested.arguments is None:
        return "declared"
    if any(not key or key.isdecimal() for key in requested.arguments):
        return "declared"  # which parameters positional arguments are is unknown
    properties = {**as_mapping(schema.get("properties"))}
    arguments = dict(requested.arguments)
    for key, value in requested.arguments.items():
        if value is UNREAD and key in properties:
            properties[key] = {}
        elif requested.textual and isinstance(value, str):
            arguments[key] = _typed(value, as_mapping(properties.get(key)))
    from jsonschema import Draft202012Validator  # 0.1 s to import

    validator: Any = Draft202012Validator({**schema, "properties": properties})
    return "declared" if validator.is_valid(arguments) else "fabricated_arguments"


def _standardize(schema: Any, depth: int = 0) -> dict[str, Any]:
    """Rewrite a tool's schema as JSON Schema; unknown words in it let every value pass."""
    fields = as_mapping(schema)
    if depth > _MAX_DEPTH or "$ref" in fields:
        return {}
    for key in ("anyOf", "oneOf"):
        if options := as_list(fields.get(key)):
            return {"anyOf": [_standardize(option, depth + 1) for option in options]}
    if choices := as_list(fields.get("enum")):
        return {"enum": choices}
    standard: dict[str, Any] = {}
    type_names = as_list(fields.get("type")) or [fields.get("type")]
    types = [TYPE_NAMES.get(name.lower()) for name in type_names if isinstance(name, str)]
    if types and all(types):
        if fields.get("nullable") is True:
            types.append("null")
        standard["type"] = types
    if "properties" in fields:
        required = [key for key in as_list(fields.get("required")) if isinstance(key, str)]
        properties: dict[str, Any] = {}
        for key, value in as_mapping(fields["properties"]).items():
            inner = _standardize(value, depth + 1)
            if inner and key not in required:
                inner = {"anyOf": [inner, {"type": "null"}]}  # null for an argument left out
            properties[key] = inner
        standard["properties"] = properties
        standard["required"] = required
        standard["additionalProperties"] = "patternProperties" in fields or bool(
            fields.get("additionalProperties")
        )
    if isinstance(fields.get("items"), dict):
        standard["items"] = _standardize(fields["items"], depth + 1)
    return standard


def _typed(text: str, schema: dict[str, Any]) -> Any:
    """Convert an XML call's text to its declared type; it stays text where text is allowed."""
    for option in schema.get("anyOf") or [schema]:
        for member in option.get("enum", ()):
            if str(member) == text.strip():
                return member
        if "string" in option.get("type", ()):
            return text
    value = literal(text)
    return text if value is UNREAD else value
