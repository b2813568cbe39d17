"""A model's completion → reasoning, answer and typed tool calls; what is malformed gets a name.

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

CLOSING = f"\n{CLOSE}\n"  # as Nemotron's template writes it


def parse_completion(
    text: str,
    *,
    thinking: bool,
    tools: str | None = None,
    end_tokens: tuple[str, ...] = ("<|im_end|>",),
    closing: str = CLOSING,
) -> ParsedCompletion:
    """Take a completion apart.

    Args:
        text: what the model wrote after the generation prompt, special tokens kept.
        thinking: whether the prompt left reasoning open (it ended in `<think>`, or the template
            lets the model open it itself).
        tools: JSON text of the declared tools; their schemas type the arguments of XML calls.
            Without them only arguments that are JSON objects or arrays are no text.
        end_tokens: any of these ends the turn.
        closing: what the template writes between a trace and an answer; its line breaks belong to
            neither.
    """
    problems: list[Problem] = []
    body, finished, after_end = _cut_at_end(text, end_tokens, problems)
    reasoning, rest = _split_reasoning(body, thinking, problems, closing)
    if CALL_OPEN not in rest:
        return ParsedCompletion(reasoning, rest, (), tuple(problems), finished, after_end)
    answer, _, tail = rest.partition(CALL_OPEN)
    calls, leftover, call_problems = parse_calls(CALL_OPEN + tail, tools)
    problems.extend(call_problems)
    # what is no call is kept verbatim: nothing of a completion is lost
    answer = answer + leftover if leftover else answer.removesuffix("\n")
    named = tuple(dict.fromkeys(problems))
    return ParsedCompletion(reasoning, answer, calls, named, finished, after_end)


def _cut_at_end(
    text: str, end_tokens: tuple[str, ...], problems: list[Problem]
) -> tuple[str, bool, str]:
    """The turn, whether it ended, and what else was written."""
    ends = [(at, token) for token in end_tokens if (at := text.find(token)) >= 0]
    if not ends:
        return text, False, ""
    at, token = min(ends)
    behind = text[at + len(token) :]
    if not behind.strip():
        return text[:at], True, ""
    problems.append("text_after_end")
    return text[:at], True, behind


def without_framing(trace: str, answer: str, *, closing: str = CLOSING) -> tuple[str, str]:
    """A trace and the text behind its closing tag, without what the template writes there.

    An answer that begins with less than the template writes, as an untrained model's may, loses
    only that.
    """
    before, _, after = closing.partition(CLOSE)
    shared = 0
    while answer[: shared + 1] == after[: shared + 1] and shared < len(after):
        shared += 1
    return trace.removesuffix(before), answer[shared:]


def _split_reasoning(
    body: str, thinking: bool, problems: list[Problem], closing: str
) -> tuple[str | None, str]:
    if not thinking:
        if OPEN in body or CLOSE in body:
            problems.append("unexpected_think")
        return None, body
    trace_and_rest = body
    if body.lstrip().startswith(OPEN):  # the template left opening to the model
        trace_and_rest = body.lstrip().removeprefix(OPEN).removeprefix("\n")
    trace, close, rest = trace_and_rest.partition(CLOSE)
    if OPEN in trace or OPEN in rest:
        problems.append("unexpected_think")
    if not close:
        problems.append("unclosed_think")
        return trace, ""
    if CLOSE in rest:
        problems.append("two_closings")
    return without_framing(trace, rest, closing=closing)


# -- tool calls ------------------------------------------------------------------------------------

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
CallProblem = Literal["half_call", "malformed_call", "argument_type", "text_after_call"]
Schema = Mapping[str, Any]

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)</function>\s*", re.S)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n")
_PARAMETER_CLOSE = "\n</parameter>"
_JSON_CALL = frozenset({"name", "arguments", "parameters", "id", "type"})
_UNREADABLE = object()


def parse_calls(
    text: str, tools: str | None
) -> tuple[tuple[ToolCall, ...], str, list[CallProblem]]:
    """The calls of a text that begins with one; what is none of them, verbatim; what is wrong."""
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
        inner, position = text[opened + len(CALL_OPEN) : closed], closed + len(CALL_CLOSE)
        is_json = inner.lstrip().startswith("{")
        call = _read_json(inner) if is_json else _read_xml(inner, schemas, problems)
        if call is None:
            problems.append("malformed_call")
            leftover.append(text[opened:position])
        else:
            calls.append(call)
    return tuple(calls), "".join(leftover), problems


def _read_json(inner: str) -> ToolCall | None:
    try:
        fields = as_mapping(load_json(inner))
        name, call_id = fields.get("name"), fields.get("id")
        given = [fields[key] for key in ("arguments", "parameters") if key in fields]
        # a field that a call cannot hold would be lost, so such a block is none
        if not (set(fields) <= _JSON_CALL and isinstance(name, str) and name and len(given) <= 1):
            return None
        arguments: Any = given[0] if given else {}
        if not isinstance(arguments, dict) or not isinstance(call_id, str | None):
            return None
        return ToolCall(name, json_text(cast(dict[str, Any], arguments)), call_id)
    except (ValueError, RecursionError):
        return None


def _read_xml(
    inner: str, schemas: Mapping[str, Schema], problems: list[CallProblem]
) -> ToolCall | None:
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
    """Names and texts of consecutive parameters, `None` when anything else stands among them."""
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
    """Tool name → parameter name → schema, from the declared tools as far as they are readable."""
    schemas: dict[str, Schema] = {}
    for tool in as_list(load_json(tools)) if tools else []:
        declared = as_mapping(as_mapping(tool).get("function", tool))
        name = declared.get("name")
        if isinstance(name, str):
            schemas[name] = as_mapping(as_mapping(declared.get("parameters")).get("properties"))
    return schemas


def as_mapping(value: Any) -> dict[str, Any]:
    """A decoded object; empty for any other value."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A decoded list; empty for any other value."""
    return cast(list[Any], value) if isinstance(value, list) else []


def _typed(text: str, schema: Any) -> Any:
    """A parameter's text as a value, `_UNREADABLE` when it is not of its declared type."""
    kinds = _kinds(schema)
    if not kinds:
        # undeclared: rendering writes mappings and lists as JSON and everything else as text
        value = _json_or_unreadable(text) if text[:1] in ("{", "[") else _UNREADABLE
        return text if value is _UNREADABLE else value
    for kind in kinds:
        value = _read_kind(text, kind)
        if value is not _UNREADABLE:
            return value
    return _UNREADABLE


_ALIASES = {
    "dict": "object", "tuple": "array", "list": "array", "float": "number", "int": "integer",
    "bool": "boolean", "str": "string", "any": "string",
}  # fmt: skip
# text last: every text is a string, so it must not hide the narrower readings
_ORDER = ("null", "boolean", "integer", "number", "object", "array", "string")


def _kinds(schema: Any) -> list[str]:
    fields = as_mapping(schema)
    kinds: list[str] = []
    declared = fields.get("type")
    for kind in cast(list[Any], declared if isinstance(declared, list) else [declared]):
        if isinstance(kind, str):
            kinds.append(_ALIASES.get(kind.lower(), kind.lower()))
    for key in ("anyOf", "oneOf"):
        for option in as_list(fields.get(key)):
            kinds += _kinds(option)
    return [kind for kind in _ORDER if kind in kinds]


_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "object": (dict,), "array": (list,)
}  # fmt: skip


def _read_kind(text: str, kind: str) -> Any:
    if kind == "string":
        return text
    if kind == "null":
        return None if text in ("None", "null") else _UNREADABLE
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower(), _UNREADABLE)
    value = _json_or_unreadable(text)
    whole = kind == "integer" and isinstance(value, float) and value.is_integer()  # 5.0 is one
    fits = isinstance(value, _TYPES[kind]) and not isinstance(value, bool)
    return value if fits or whole else _UNREADABLE


def _json_or_unreadable(text: str) -> Any:
    try:
        return load_json(text)
    except ValueError:
        return _UNREADABLE
