"""Arguments of tool calls against the schemas of their tools.

Type names of other languages ("dict", "float") are read as JSON Schema's own; nothing is fetched. A
`pattern` is matched by RE2, in linear time. Patterns that RE2 cannot express and
`patternProperties` are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from posttrain.chat.detect.declared import TYPE_NAMES
from posttrain.jsontext import first_error, schema_error, writable

_SCHEMA_KEYWORDS = (  # their value is a schema
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions", "dependentSchemas")
# left out together: the two others apply to the names that no pattern matches
_PATTERN_KEYWORDS = ("patternProperties", "additionalProperties", "unevaluatedProperties")


def violation(checker: Draft202012Validator, arguments: Any) -> str | None:
    """First way in which arguments break the schema, None where they keep it.

    Raises one of `UNUSABLE` where the schema cannot be applied.
    """
    error = first_error(checker.iter_errors(arguments))
    if error is None:
        return None
    path = "/".join(str(part) for part in error.absolute_path)
    text = f"{path}: {error.message:.200}" if path else f"{error.message:.200}"
    # keys of the arguments appear in the message, and they may hold half a surrogate pair
    return writable(text)


# Errors of a schema that is a JSON Schema by its form: a reference to nowhere, endless or
# ill-formed, a pattern that is no regular expression, a number beyond floats.
UNUSABLE = (Unresolvable, RecursionError, re.error, ValueError, ArithmeticError)


@lru_cache(maxsize=4096)
def validator(schema_text: str) -> Draft202012Validator | str:
    """Validator of arguments, or the reason why the schema cannot be used.

    Cached, and made for called tools only: checking a schema costs milliseconds.
    """
    parameters = json.loads(schema_text)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        return f"parameters is {parameters!r:.80}"
    try:
        schema = _standardize(parameters)
        error = schema_error(Draft202012Validator, schema)
    except RecursionError:
        return "nested too deep"
    if error is not None:
        path = "/".join(str(part) for part in error.absolute_path)
        return f"{path}: {error.message:.200}"
    # an empty registry resolves references inside the schema and fetches none
    return _Validator(schema, registry=Registry())


def _check_pattern(
    _validator: Any, pattern: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """Check the keyword `pattern` with RE2, in place of Python's `re`."""
    if isinstance(instance, str) and isinstance(pattern, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _matches(pattern: str, text: str) -> bool:
    """True where the pattern occurs, or RE2 cannot tell. Raises `re.error` if it is no pattern."""
    try:
        return re2.search(pattern, writable(text), options=_OPTIONS) is not None
    except (re2.error, UnicodeEncodeError):
        re.compile(pattern)
        return True


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


_Validator = validators.extend(Draft202012Validator, {"pattern": _check_pattern})


def _standardize(schema: Any) -> Any:
    """Copy of a schema with JSON Schema's own type names, and without `patternProperties`.

    Subschemas are treated alike.
    """
    if not isinstance(schema, dict):
        return schema
    omitted = _PATTERN_KEYWORDS if "patternProperties" in schema else ()
    result = {key: value for key, value in schema.items() if key not in omitted}
    for key, value in result.items():
        if key in _SCHEMA_KEYWORDS:
            result[key] = _standardize(value)
        elif key in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            result[key] = [_standardize(subschema) for subschema in value]
        elif key in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            result[key] = {name: _standardize(subschema) for name, subschema in value.items()}
    if "type" in result:
        is_list = isinstance(result["type"], list)
        names = result["type"] if is_list else [result["type"]]
        types = [TYPE_NAMES.get(str(name).lower(), name) for name in names]
        if None in types:  # a name that stands for any type
            del result["type"]
        else:
            result["type"] = types if is_list else types[0]
    return result
