"""Parser of a model's completion: reasoning, answer and typed tool calls, with named problems.

    parse_completion("2+2 is 4.\\n</think>\\n4<|im_end|>\\n", thinking=True)
    → ParsedCompletion(reasoning="2+2 is 4.", answer="4", tool_calls=(), problems=(), finished=True)

This inverts rendering; what cannot be inverted stays in `answer` verbatim and is named. Calls are
Nemotron's XML, typed by the declared schema, or Hermes' JSON, inside `<tool_call>`. An argument's
text that holds `\\n</parameter>` cannot be told from the end of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.jsontext import load_json
from posttrain.records import ToolCall, json_text
from posttrain.rollouts import ParsedCompletion, Problem

# text between a trace and an answer, as Nemotron's template writes it
CLOSING = f"\n{CLOSE}\n"


def parse_completion(
    text: str,
    *,
    thinking: bool,
    tools: str | None = None,
    end_tokens: tuple[str, ...] = ("<|im_end|>",),
    closing: str = CLOSING,
) -> ParsedCompletion:
    """Split a completion into reasoning, answer and tool calls.

    Args:
        text: text that the model wrote after the generation prompt, special tokens kept.
        thinking: True if the prompt left reasoning open (it ended in `<think>`, or the template
            lets the model open it itself).
        tools: JSON text of the declared tools; their schemas type the arguments of XML calls.
            Without them only JSON objects and arrays are read as such, all else stays text.
        end_tokens: texts of which any ends the turn.
        closing: text that the template writes between a trace and an answer; its line breaks
            belong to neither.
    """
    problems: list[Problem] = []
    body, finished, after_end = _cut_at_end(text, end_tokens, problems)
    reasoning, content = _split_reasoning(body, thinking, problems, closing)
    if CALL_OPEN not in content:
        return ParsedCompletion(reasoning, content, (), tuple(problems), finished, after_end)
    answer, _, calls_text = content.partition(CALL_OPEN)
    calls, leftover, call_problems = parse_calls(CALL_OPEN + calls_text, tools)
    problems.extend(call_problems)
    # what is no call is kept verbatim: nothing of a completion is lost
    answer = answer + leftover if leftover else answer.removesuffix("\n")
    distinct_problems = tuple(dict.fromkeys(problems))
    return ParsedCompletion(reasoning, answer, calls, distinct_problems, finished, after_end)


def _cut_at_end(
    text: str, end_tokens: tuple[str, ...], problems: list[Problem]
) -> tuple[str, bool, str]:
    """Cut at the first end token: the turn, true if it ended, and the text behind it."""
    end_positions = [(text.find(token), token) for token in end_tokens if token in text]
    if not end_positions:
        return text, False, ""
    end, token = min(end_positions)
    text_behind = text[end + len(token) :]
    if not text_behind.strip():
        return text[:end], True, ""
    problems.append("text_after_end")
    return text[:end], True, text_behind


def without_framing(trace: str, answer: str, *, closing: str = CLOSING) -> tuple[str, str]:
    """Strip what the template writes around a closing tag from the trace and from the answer.

    An answer that begins with less than the template writes, as an untrained model's may, loses
    only that.
    """
    closing_start, _, closing_end = closing.partition(CLOSE)
    shared_length = 0
    while answer[: shared_length + 1] == closing_end[: shared_length + 1] and shared_length < len(
        closing_end
    ):
        shared_length += 1
    return trace.removesuffix(closing_start), answer[shared_length:]


def _split_reasoning(
    body: str, thinking: bool, problems: list[Problem], closing: str
) -> tuple[str | None, str]:
    """Split a turn into its trace, None without one, and the text behind it."""
    if not thinking:
        if OPEN in body or CLOSE in body:
            problems.append("unexpected_think")
        return None, body
    if body.lstrip().startswith(OPEN):  # the template left opening to the model
        body = body.lstrip().removeprefix(OPEN).removeprefix("\n")
    trace, close, answer = body.partition(CLOSE)
    if OPEN in trace or OPEN in answer:
        problems.append("unexpected_think")
    if not close:
        problems.append("unclosed_think")
        return trace, ""
    if CLOSE in answer:
        problems.append("two_closings")
    return without_framing(trace, answer, closing=closing)


# -- tool calls ------------------------------------------------------------------------------------

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
CallProblem = Literal["half_call", "malformed_call", "argument_type", "text_after_call"]
Schema = Mapping[str, Any]

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*", re.S)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n")
_PARAMETER_CLOSE = "\n</parameter>"
_JSON_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})
_UNREADABLE = object()  # in place of a value that is not of its declared type


def parse_calls(
    text: str, tools: str | None
) -> tuple[tuple[ToolCall, ...], str, list[CallProblem]]:
    """Parse a text that begins with a call: the calls, all other text verbatim, the problems."""
    schemas = _parameter_schemas(tools)
    calls: list[ToolCall] = []
    leftover: list[str] = []
    problems: list[CallProblem] = []
    position = 0
    while position < len(text):
        opened = text.find(CALL_OPEN, position)
        between = text[position : opened if opened >= 0 else len(text)]
        if between.strip():
            problems.append("text_after_call")
            leftover.append(between)
        if opened < 0:
            break
        closed = text.find(CALL_CLOSE, opened)
        if closed < 0:
            problems.append("half_call")
            leftover.append(text[opened:])
            break
        inner = text[opened + len(CALL_OPEN) : closed]
        position = closed + len(CALL_CLOSE)
        is_json = inner.lstrip().startswith("{")
        call = _read_json(inner) if is_json else _read_xml(inner, schemas, problems)
        if call is None:
            problems.append("malformed_call")
            leftover.append(text[opened:position])
        else:
            calls.append(call)
    return tuple(calls), "".join(leftover), problems


def _read_json(inner: str) -> ToolCall | None:
    """Read `{"name": "f", "arguments": {…}}`; None for anything else."""
    try:
        fields = as_mapping(load_json(inner))
        # a field that a call cannot hold would be lost, so such a block is no call
        if not set(fields) <= _JSON_CALL_KEYS or ("arguments" in fields and "parameters" in fields):
            return None
        name = fields.get("name")
        call_id = fields.get("id")
        if not isinstance(name, str) or not name or not isinstance(call_id, str | None):
            return None
        arguments: Any = fields.get("arguments", fields.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return ToolCall(name, json_text(cast(dict[str, Any], arguments)), call_id)
    except (ValueError, RecursionError):
        return None


def _read_xml(
    inner: str, schemas: Mapping[str, Schema], problems: list[CallProblem]
) -> ToolCall | None:
    """Read `<function=f>…</function>`; None for anything else."""
    function = _FUNCTION.fullmatch(inner)
    parameters = _read_parameters(function[2]) if function else None
    if function is None or parameters is None:
        return None
    name = function[1]
    arguments: dict[str, Any] = {}
    for parameter, text in parameters:
        if parameter in arguments:
            return None
        value = _typed(text, schemas.get(name, {}).get(parameter))
        if value is _UNREADABLE:
            problems.append("argument_type")
            value = text
        arguments[parameter] = value
    return ToolCall(name, json_text(arguments))


def _read_parameters(body: str) -> list[tuple[str, str]] | None:
    """Read names and texts of consecutive parameters; None when anything else is among them."""
    parameters: list[tuple[str, str]] = []
    position = 0
    while opened := _PARAMETER.match(body, position):
        closed = body.find(_PARAMETER_CLOSE, opened.end())
        if closed < 0:
            return None
        parameters.append((opened[1], body[opened.end() : closed]))
        position = closed + len(_PARAMETER_CLOSE)
    return None if body[position:].strip() else parameters


def _parameter_schemas(tools: str | None) -> dict[str, Schema]:
    """Read the declared tools, as far as they are readable: tool → parameter → schema."""
    schemas: dict[str, Schema] = {}
    for tool in as_list(load_json(tools)) if tools else []:
        declared = as_mapping(as_mapping(tool).get("function", tool))
        name = declared.get("name")
        if isinstance(name, str):
            schemas[name] = as_mapping(as_mapping(declared.get("parameters")).get("properties"))
    return schemas


def as_mapping(value: Any) -> dict[str, Any]:
    """Take a decoded object as it is, and any other value as an empty one."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Take a decoded list as it is, and any other value as an empty one."""
    return cast(list[Any], value) if isinstance(value, list) else []


def _typed(text: str, schema: Any) -> Any:
    """Convert a parameter's text to its declared type; `_UNREADABLE` when it does not fit."""
    types = _declared_types(schema)
    if not types:
        # undeclared: rendering writes mappings and lists as JSON and everything else as text
        value = _json_or_unreadable(text) if text[:1] in ("{", "[") else _UNREADABLE
        return text if value is _UNREADABLE else value
    for type_name in types:
        value = _read_as(text, type_name)
        if value is not _UNREADABLE:
            return value
    return _UNREADABLE


_TYPE_ALIASES = {
    "dict": "object",
    "tuple": "array",
    "list": "array",
    "float": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
    "any": "string",
}
# text last: every text is a string, so it must not hide the narrower readings
_READING_ORDER = ("null", "boolean", "integer", "number", "object", "array", "string")


def _declared_types(schema: Any) -> list[str]:
    """List the types that a parameter's schema allows, in the order in which they are tried."""
    fields = as_mapping(schema)
    types: list[str] = []
    declared = fields.get("type")
    for name in cast(list[Any], declared if isinstance(declared, list) else [declared]):
        if isinstance(name, str):
            types.append(_TYPE_ALIASES.get(name.lower(), name.lower()))
    for key in ("anyOf", "oneOf"):
        for option in as_list(fields.get(key)):
            types += _declared_types(option)
    return [type_name for type_name in _READING_ORDER if type_name in types]


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
}


def _read_as(text: str, type_name: str) -> Any:
    """Read a text as a value of one JSON type; `_UNREADABLE` when it is none."""
    if type_name == "string":
        return text
    if type_name == "null":
        return None if text in ("None", "null") else _UNREADABLE
    if type_name == "boolean":
        return {"true": True, "false": False}.get(text.lower(), _UNREADABLE)
    value = _json_or_unreadable(text)
    if type_name == "integer" and isinstance(value, float) and value.is_integer():
        # JSON Schema counts 5.0 as an integer
        return value
    # in Python a bool is an int too
    if isinstance(value, bool) or not isinstance(value, _PYTHON_TYPES[type_name]):
        return _UNREADABLE
    return value


def _json_or_unreadable(text: str) -> Any:
    """Decode a JSON text; `_UNREADABLE` when it is none."""
    try:
        return load_json(text)
    except ValueError:
        return _UNREADABLE
