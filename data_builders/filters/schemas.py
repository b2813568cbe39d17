"""Declared tools, to check calls against. Type names of other languages ("dict", "float") are read
as JSON Schema's own; nothing is fetched from anywhere. A `pattern` is matched by RE2, in
linear time; what RE2 has no word for and `patternProperties` are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from posttrain.chat.detect.declared import TYPE_NAMES
from posttrain.jsontext import writable
from posttrain.records import json_text

_SUBSCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then",
               "else", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
_BY_PATTERN = ("patternProperties", "additionalProperties", "unevaluatedProperties")


@lru_cache(maxsize=1024)
def declared(tools: str) -> dict[str, str]:
    """Every declared tool's name and the JSON text of its parameters' schema."""
    found: dict[str, str] = {}
    for tool in json.loads(tools):
        function = tool["function"]
        found.setdefault(function["name"], json_text(function.get("parameters")))
    return found


def violation(checker: Draft202012Validator, arguments: Any) -> str | None:
    """The first way in which arguments break the schema, if they do. Raises one of `UNUSABLE`."""
    for error in checker.iter_errors(arguments):
        place = "/".join(str(part) for part in error.absolute_path)
        text = f"{place}: {error.message:.200}" if place else f"{error.message:.200}"
        # keys of the arguments appear in it, and they may hold half a surrogate pair
        return writable(text)
    return None


# what a schema that passes for one can still raise: a reference to nowhere, endless or ill-formed,
# a pattern that is no regular expression, a number beyond floats
UNUSABLE = (Unresolvable, RecursionError, re.error, ValueError, ArithmeticError)


@lru_cache(maxsize=4096)
def validator(schema_text: str) -> Draft202012Validator | str:
    """A validator of arguments, or why the schema cannot be used.

    Made only for tools that are called and kept, since checking a schema costs milliseconds.
    """
    parameters = json.loads(schema_text)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        return f"parameters is {parameters!r:.80}"
    try:
        schema = _standard(parameters)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(str(part) for part in error.absolute_path)
        return f"{place}: {error.message:.200}"
    except RecursionError:
        return "nested too deep"
    # an empty registry resolves references inside the schema and fetches none
    return _Checker(schema, registry=Registry())


def _pattern(
    _validator: Any, pattern: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """The keyword `pattern`."""
    if isinstance(instance, str) and isinstance(pattern, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found; True if RE2 cannot tell. Raises `re.error`: it is none."""
    try:
        return re2.search(pattern, writable(text), options=_OPTIONS) is not None
    except (re2.error, UnicodeEncodeError):
        re.compile(pattern)
        return True


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


_Checker = validators.extend(Draft202012Validator, {"pattern": _pattern})


def _standard(schema: Any) -> Any:
    """The schema with JSON Schema's own type names, at every place where a schema may stand."""
    if not isinstance(schema, dict):
        return schema
    left_out = _BY_PATTERN if "patternProperties" in schema else ()
    result = {key: value for key, value in schema.items() if key not in left_out}
    for key, value in result.items():
        if key in _SUBSCHEMAS:
            result[key] = _standard(value)
        elif key in _LISTS and isinstance(value, list):
            result[key] = [_standard(item) for item in value]
        elif key in _NAMED and isinstance(value, dict):
            result[key] = {name: _standard(item) for name, item in value.items()}
    if "type" in result:
        names = result["type"] if isinstance(result["type"], list) else [result["type"]]
        types = [TYPE_NAMES.get(str(name).lower(), name) for name in names]
        result["type"] = types if isinstance(result["type"], list) else types[0]
        if None in types:
            del result["type"]
    return result
