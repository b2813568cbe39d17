"""The environment "structured_output": JSON, YAML or a tool call's payload that fits a schema.

    {"environment": "structured_output", "question": "…document… …schema… Answer in JSON.",
     "gold": {"name": "Ada", "born": 1815},
     "metadata": {"schema": {…}, "format": "json", "fields": {"/name": "Ada", "/born": 1815}}}

The schema is the one that the prompt shows. With `fields` (JSON pointer → right value, or a list of
all right values) each field is compared; without them the values have to come from the document
(see `grounding`), and the share that cannot be checked is a figure of the score. `metadata.match:
schema_only` is NVIDIA's rule: any values that fit. In the format "tool_call" `metadata.tool` names
the tool, and `payload` the argument that holds the object, unless the arguments are the object.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, cast

import yaml
from jsonschema import ValidationError, validators
from jsonschema_specifications import REGISTRY  # pyright: ignore[reportMissingTypeStubs]
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from posttrain.jsontext import encode_json, first_error, load_json, schema_error
from posttrain.records import NOT_IN_FORMAT, Score, json_text
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, calls, says, unfenced
from reward.environments.grounding import Document
from reward.environments.tool_call import declared, same_content

FORMATS = ("json", "yaml", "tool_call")
LONGEST = 500_000  # characters of an answer


class StructuredOutputEnvironment(RLVREnvironment):
    """Structured answers that fit a schema, with right or grounded values."""

    name = "structured_output"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        schema: Any = task.get("schema")
        output_format = task.get("format")
        if output_format not in FORMATS:
            return f"format {output_format!r} is none of {', '.join(FORMATS)}"
        if not isinstance(schema, dict):
            return "no schema"
        if (problem := _schema_problem(json_text(cast(Any, schema)))) is not None:
            return f"schema: {problem}"
        if task.get("match", "content") not in ("content", "schema_only"):
            return f"match {task['match']!r} is neither content nor schema_only"
        if output_format == "tool_call" and task.get("tool") not in declared(prompt):
            return f"tool {task.get('tool')!r} is not declared"
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        return None if prompt.gold is None else _in_format(prompt, json.loads(prompt.gold))

    def wrong(self, prompt: Prompt) -> list[Script]:
        task = metadata_of(prompt)
        if task.get("match") == "schema_only":
            return []  # NVIDIA's rule accepts it
        return [_in_format(prompt, filler(task["schema"]))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        task = metadata_of(prompt)
        try:
            value = _read_value(task, completion)
        except (ValueError, yaml.YAMLError, RecursionError) as problem:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: {' '.join(str(problem).split())[:200]}")
        shown = json_text(value)[:200]
        schema = task["schema"]
        # an empty registry, so that no reference is fetched from the network
        validator_class = _decimal_validator(validators.validator_for(schema))
        registry: Registry[Any] = Registry()
        validator = validator_class(schema, registry=registry)
        if (error := first_error(validator.iter_errors(value))) is not None:
            return Score(0.0, shown, f"schema: {error.json_path}: {error.message[:150]}")
        if fields := task.get("fields"):
            return _compare_fields(value, fields, shown)
        if task.get("match") == "schema_only":
            return Score(1.0, shown, "valid, its values unchecked", figures={"unchecked": 1.0})
        document = Document("\n".join(message.content for message in prompt.messages), schema)
        grounding = document.judge(value, schema)
        explanation = (
            f"valid; {grounding.copied} of {grounding.values} values come from the document"
        )
        if grounding.contradicted:
            explanation += f"; it does not have {', '.join(grounding.contradicted[:3])}"
        figures = {"unchecked": grounding.unchecked}
        return Score(float(grounding.holds), shown, explanation, figures=figures)


# rows of a data set share schemas, and a check takes as long as reading hundreds of answers
@functools.lru_cache(maxsize=1024)
def _schema_problem(text: str) -> str | None:
    """First error of a schema, given as JSON text; None for a valid one."""
    schema: Any = json.loads(text)
    error = schema_error(validators.validator_for(schema), schema)
    if error is not None:
        return error.message
    resource = Resource[Any].from_contents(schema, default_specification=DRAFT202012)
    reference = _dangling_reference(resource, REGISTRY.resolver_with_root(resource))
    return None if reference is None else f"$ref {reference!r:.80} leads nowhere"


def _dangling_reference(resource: Resource[Any], resolver: Any) -> str | None:
    """First reference of a schema to what neither it nor a draft of JSON Schema has."""
    contents: Any = resource.contents
    reference = cast(dict[str, Any], contents).get("$ref") if isinstance(contents, dict) else None
    if isinstance(reference, str):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return reference
    for subresource in resource.subresources():
        inner_resolver = resolver.in_subresource(subresource)
        if (dangling := _dangling_reference(subresource, inner_resolver)) is not None:
            return dangling
    return None


@functools.cache
def _decimal_validator(validator: Any) -> Any:
    """Validator class by which 19.99 is a multiple of 0.01, as it is in decimal."""
    return cast(Any, validators).extend(validator, {"multipleOf": _multiple_errors})


def _multiple_errors(
    validator: Any, step: float, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "number"):
        return
    if (Fraction(str(value)) / Fraction(str(step))).denominator != 1:
        yield ValidationError(f"{value} is not a multiple of {step}")


def _read_value(task: Mapping[str, Any], completion: Completion) -> Any:
    """The value in a completion. Raises ValueError, YAMLError or RecursionError without one."""
    tool_calls = completion.tool_calls
    if task["format"] == "tool_call":
        if len(tool_calls) != 1 or tool_calls[0].name != task["tool"]:
            raise ValueError(f"one call of {task['tool']} is expected")
        arguments = load_json(tool_calls[0].arguments)
        payload = task.get("payload")
        if payload is None:
            return arguments
        if not isinstance(arguments, dict) or payload not in arguments:
            raise ValueError(f"no argument {payload}")
        return cast(dict[str, Any], arguments)[payload]
    if tool_calls:
        raise ValueError("a tool call where text is expected")
    if len(completion.answer) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    text = unfenced(completion.answer)
    if task["format"] == "yaml":
        # through JSON, which refuses values that YAML alone can hold
        text = encode_json(yaml.load(text, Loader=_PlainLoader))  # noqa: S506 - a SafeLoader
    return load_json(text.strip())


class _PlainLoader(yaml.SafeLoader):
    """Loader of YAML 1.2: `no` and `2020-01-01` are texts; aliases and repeated keys are errors."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if cast(Any, self).check_event(yaml.AliasEvent):
            raise ValueError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) != len(node.value) or not all(isinstance(key, str) for key in mapping):
            raise ValueError("a key is repeated, or no text")
        return mapping


_PlainLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first_characters in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    cast(Any, _PlainLoader).add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first_characters)
    )


def _in_format(prompt: Prompt, value: Any) -> Script:
    """A completion that gives a value in the prompt's format."""
    task = metadata_of(prompt)
    if task["format"] == "json":
        return says(json.dumps(value, indent=2, ensure_ascii=False))
    if task["format"] == "yaml":
        return says(yaml.safe_dump(value, allow_unicode=True, sort_keys=False))
    payload = task.get("payload")
    return calls((task["tool"], value if payload is None else {payload: value}))


# -- content ---------------------------------------------------------------------------------------


def _compare_fields(value: Any, fields: Mapping[str, Any], shown: str) -> Score:
    for pointer, expected in fields.items():
        try:
            field = at_pointer(value, pointer)
        except (LookupError, ValueError):
            return Score(0.0, shown, f"no value at {pointer}")
        right_values = [expected]
        if isinstance(expected, list):  # itself the value, or the list of all right values
            right_values += cast(list[Any], expected)
        if not any(same_content(right_value, field) for right_value in right_values):
            return Score(0.0, shown, f"{pointer} has another value")
    return Score(1.0, shown, f"valid, with {len(fields)} right values")


def at_pointer(value: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901). Raises LookupError or ValueError without one."""
    inner = value
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        index = int(key) if isinstance(inner, list) else key
        inner = cast(Any, inner)[index]
    return inner


def filler(schema: Any) -> Any:
    """An empty value that fits a schema, which must not earn a reward."""
    fields = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
    if "const" in fields or fields.get("enum"):
        return fields["const"] if "const" in fields else fields["enum"][0]
    json_type = fields.get("type")
    json_type = cast(list[str], json_type)[0] if isinstance(json_type, list) else json_type
    match json_type or ("object" if "properties" in fields else "string"):
        case "object":
            return {name: filler(inner) for name, inner in fields.get("properties", {}).items()}
        case "array":
            return [filler(fields.get("items", {})) for _ in range(fields.get("minItems", 0))]
        case "string":
            return "string"[: fields.get("maxLength", 6)].ljust(fields.get("minLength", 0), "x")
        case "integer" | "number":
            return fields.get("minimum", 0)
        case "boolean":
            return False
        case _:
            return None
