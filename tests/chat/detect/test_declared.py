"""Calls held against declared tools: which kind each is."""

from __future__ import annotations

import json

import pytest

from posttrain.chat.detect import detect_calls
from posttrain.records import ToolCall

BOOK = {
    "seats": {"type": "integer"}, "cabin": {"type": "string", "enum": ["economy", "business"]},
    "price": {"type": ["number", "null"]}, "legs": {"type": "array", "items": {"type": "string"}},
    "who": {"type": "dict", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "when": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
}  # fmt: skip
TOOLS = json.dumps([
    {"type": "function", "function": {
        "name": "book", "parameters": {"type": "object", "properties": BOOK, "required": ["seats"]}}},
    {"name": "search", "parameters": {"type": "object", "additionalProperties": True}},
])  # fmt: skip


def kinds(arguments: object, name: str = "book") -> list[str]:
    text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    found = detect_calls(reasoning=None, answer=text, tools=TOOLS).calls
    return [call.kind for call in found]


KEPT = [{"seats": 2}, {"seats": 2.0, "cabin": "economy"}, {"seats": 1, "price": None},
        {"seats": 1, "who": {"name": "A"}, "legs": ["a"]}, {"seats": 1, "when": 3},
        {"seats": 1, "cabin": None, "legs": None}]  # fmt: skip
BROKEN = [{}, {"seats": None}, {"seats": "two"}, {"seats": True}, {"seats": 1, "colour": "red"},
          {"seats": 1, "cabin": "first"}, {"seats": 1, "price": "10"}, {"seats": 1, "legs": [1]},
          {"seats": 1, "who": {}}, {"seats": 1, "when": []}]  # fmt: skip


def test_arguments_are_fabricated_where_the_schema_has_no_room_for_them():
    assert [kinds(arguments) for arguments in KEPT] == [["declared"]] * len(KEPT)
    assert [kinds(arguments) for arguments in BROKEN] == [["fabricated_arguments"]] * len(BROKEN)
    assert kinds({"seats": 1}, "reserve") == ["nonexistent_tool"]
    assert kinds({"anything": 1}, "search") == ["declared"]


@pytest.mark.parametrize(
    ("value", "kind"), [("2", "declared"), ("two", "fabricated_arguments"), ("2.5", "fabricated_arguments")]
)  # fmt: skip
def test_xml_arguments_are_text_and_read_by_their_schema(value: str, kind: str):
    text = f"<tool_call>\n<function=book>\n<parameter=seats>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (call,) = detect_calls(reasoning=None, answer=text, tools=TOOLS).calls
    assert call.kind == kind


@pytest.mark.parametrize(
    "text",
    ['<tool_call>\n{"name": "book", "arguments": {"seats": ',
     "<function=book>\n<parameter=cabin>\neconomy</parameter>\n<parameter=se",
     "<function=book>\n<parameter=seats>\nabout tw", '<function=book>{"seats": ',
     "<tool_call>book\n<arg_key>cabin</arg_key>"],
)  # fmt: skip
def test_a_call_whose_arguments_cannot_be_read_is_not_held_against_its_tool(text: str):
    (call,) = detect_calls(reasoning=None, answer=text, tools=TOOLS).calls
    assert (call.name, call.kind) == ("book", "declared")


def test_python_is_a_tool_that_must_be_declared_too():
    text = "<|python_tag|>import math\nprint(math.pi)"
    tools = json.dumps([{"type": "function", "function": {"name": "python_exec"}}])
    for declared, kind in ((TOOLS, "nonexistent_tool"), (tools, "declared")):
        assert detect_calls(reasoning=None, answer=text, tools=declared).calls[0].kind == kind


def test_structured_calls_count_as_part_of_the_answer():
    calls = (ToolCall("book", '{"seats":1}'), ToolCall("fly", "{}"), ToolCall("book", "{}"))
    verdict = detect_calls(reasoning=None, answer="Done.", structured=calls, tools=TOOLS)
    assert [c.form for c in verdict.calls] == ["structured"] * 3
    kinds = [call.kind for call in verdict.calls]
    assert kinds == ["declared", "nonexistent_tool", "fabricated_arguments"]
    assert verdict.in_answer
    assert verdict.hallucinated


@pytest.mark.parametrize("tools", [None, "[]"])
def test_with_no_tool_declared_every_call_is_undeclared(tools: str | None):
    verdict = detect_calls(reasoning=None, answer="", structured=(ToolCall("f"),), tools=tools)
    assert [c.kind for c in verdict.calls] == ["undeclared"]


def test_a_declared_name_makes_json_a_call_even_where_json_was_asked_for():
    text = '{"name": "book", "parameters": {"seats": 1}}'
    prompt = "Answer in JSON with name and parameters."
    assert not detect_calls(reasoning=None, answer=text, tools=None, prompt=prompt).any
    assert detect_calls(reasoning=None, answer=text, tools=TOOLS, prompt=prompt).any
