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
# JSON Schema's names of types for those of other schema languages; None lets any value pass
TYPE_NAMES: dict[str, str | None] = {
    **{t: t for t in ("object", "array", "string", "number", "integer", "boolean", "null")},
    "dict": "object", "map": "object", "struct": "object", "hashmap": "object",
    "list": "array", "tuple": "array", "set": "array", "arraylist": "array",
    "str": "string", "text": "string", "char": "string",
    "int": "integer", "long": "integer", "short": "integer", "byte": "integer",
    "float": "number", "double": "number", "decimal": "number",
    "bool": "boolean", "none": "null", "nonetype": "null",
    "any": None, "all": None, "mixed": None,
}  # fmt: skip
_BUILTINS = {
    "python": ("python", "code", "interpreter", "exec", "bash", "shell", "terminal"),
    "search": ("search", "browse", "wiki", "retriev", "web"),
}
_DEEPEST = 12


@lru_cache(maxsize=256)
def read_tools(tools: str) -> Tools:
    """Each declared tool's name and the schema of its arguments, None without one. Raises
    ValueError: the text is not JSON."""
    declared: dict[str, dict[str, Any] | None] = {}
    value = load_json(tools)
    for tool in as_list(value) or [value]:
        outer = as_mapping(tool)
        function = as_mapping(outer.get("function")) or outer
        keys = ("parameters", "input_schema", "arguments")
        schema = next((function[key] for key in keys if key in function), None)
        if isinstance(name := function.get("name"), str):
            closed: dict[str, Any] = {"properties": {}}
            declared[name] = _standard(schema or closed) if isinstance(schema, dict) else None
    return declared


def kind_of(requested: RequestedCall, tools: Tools | None) -> Kind:
    """The kind of a call; `tools` is None where none is declared."""
    if tools is None:
        return "undeclared"
    if requested.builtin is not None and requested.name not in tools:
        parts = _BUILTINS[requested.builtin]
        likely = any(part in name.lower() for name in tools for part in parts)
        return "declared" if likely else "nonexistent_tool"
    if requested.name is None:
        return "declared"
    if requested.name not in tools:
        return "nonexistent_tool"
    schema, given = tools[requested.name], requested.arguments
    if given is None or schema is None or any(not key or key.isdecimal() for key in given):
        return "declared"  # which parameters positional arguments are is unknown
    properties, arguments = {**as_mapping(schema.get("properties"))}, dict(given)
    for key, value in given.items():
        if value is UNREAD and key in properties:
            properties[key] = {}
        elif requested.textual and isinstance(value, str):
            arguments[key] = _typed(value, as_mapping(properties.get(key)))
    from jsonschema import Draft202012Validator  # 0.1 s to import

    checker: Any = Draft202012Validator({**schema, "properties": properties})
    return "declared" if checker.is_valid(arguments) else "fabricated_arguments"


def _standard(schema: Any, depth: int = 0) -> dict[str, Any]:
    """A tool's schema in standard words; what is not understood in it lets every value pass."""
    fields, standard = as_mapping(schema), dict[str, Any]()
    if depth > _DEEPEST or "$ref" in fields:
        return {}
    for key in ("anyOf", "oneOf"):
        if options := as_list(fields.get(key)):
            return {"anyOf": [_standard(option, depth + 1) for option in options]}
    if allowed := as_list(fields.get("enum")):
        return {"enum": allowed}
    names = as_list(fields.get("type")) or [fields.get("type")]
    types = [TYPE_NAMES.get(name.lower()) for name in names if isinstance(name, str)]
    if types and all(types):
        standard["type"] = types + (["null"] if fields.get("nullable") is True else [])
    if "properties" in fields:
        required = [key for key in as_list(fields.get("required")) if isinstance(key, str)]
        standard |= {
            "properties": {
                key: inner if key in required or not inner else {"anyOf": [inner, {"type": "null"}]}
                for key, value in as_mapping(fields["properties"]).items()
                for inner in [_standard(value, depth + 1)]
            },
            "required": required,
            "additionalProperties": "patternProperties" in fields
            or bool(fields.get("additionalProperties")),
        }
    if isinstance(fields.get("items"), dict):
        standard["items"] = _standard(fields["items"], depth + 1)
    return standard


def _typed(text: str, schema: dict[str, Any]) -> Any:
    """An XML call's value, whose type the notation does not show: text where text may stand."""
    for option in schema.get("anyOf") or [schema]:
        for member in option.get("enum", ()):
            if str(member) == text.strip():
                return member
        if "string" in option.get("type", ()):
            return text
    value = literal(text)
    return text if value is UNREAD else value
