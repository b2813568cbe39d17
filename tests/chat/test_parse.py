"""`parse_completion` inverts rendering, and names what it cannot read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.chat import nemotron_3_nano_template, parse_completion, training_samples
from posttrain.records import Message, ToolCall, json_text, make_example
from tests.chat.reference import spans_of

NANO = nemotron_3_nano_template()
TYPES = {
    "seats": "integer", "price": "number", "aisle": "boolean", "code": "string",
    "note": ["string", "null"], "legs": "array", "who": "object",
}  # fmt: skip
PARAMETERS = {"type": "object", "properties": {name: {"type": t} for name, t in TYPES.items()}}
TOOLS = json_text([{"type": "function", "function": {"name": "book", "parameters": PARAMETERS}}])
_TEXT = st.text(alphabet="ab <>{}\n漢\"'1", max_size=20).map(str.strip)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "seats": st.integers(-(10**18), 10**18),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "aisle": st.booleans(),
        "code": _TEXT,
        "note": st.none() | st.sampled_from(["x", "1", "true"]),
        "legs": st.lists(st.integers(0, 9) | st.sampled_from(["a", None])),
        "who": st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | st.booleans()),
    },
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    reasoning=st.none() | _TEXT.filter(bool),
    answer=_TEXT,
    arguments=st.lists(_ARGUMENTS, max_size=2),
)
def test_parsing_inverts_rendering(reasoning, answer, arguments):
    if not (answer or arguments):
        answer = "a"
    calls = tuple(ToolCall("book", json_text(a)) for a in arguments)
    message = Message("assistant", answer, reasoning=reasoning, tool_calls=calls)
    record = make_example(
        [Message("user", "q"), message], tools=TOOLS, source="t", dialect="openai"
    )
    (sample,) = training_samples(record, NANO)
    ((start, stop),) = spans_of(sample)
    parsed = parse_completion(sample.text[start:stop], thinking=reasoning is not None, tools=TOOLS)
    assert parsed.problems == ()
    assert parsed.finished
    assert parsed.message() == message


def test_without_schemas_arguments_stay_text_unless_they_are_json_containers():
    text = (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n[1, 2]\n"
        "</parameter>\n</function>\n</tool_call>\n<|im_end|>\n"
    )
    assert parse_completion(text, thinking=False).tool_calls == (
        ToolCall("f", '{"a":"1","b":[1,2]}'),
    )


_CALL = (
    "<tool_call>\n<function=book>\n<parameter=seats>\n{}\n</parameter>\n</function>\n</tool_call>\n"
)


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "answer", "problems"),
    [
        ("I wonder", True, "I wonder", "", ("unclosed_think",)),
        ("a\n</think>\nb\n</think>\nc<|im_end|>", True, "a", "b\n</think>\nc", ("two_closings",)),
        ("<think>\na\n</think>\n\nb<|im_end|>", True, "a", "\nb", ()),
        ("a<think>b\n</think>\nc<|im_end|>", True, "a<think>b", "c", ("unexpected_think",)),
        ("x</think>y<|im_end|>", False, None, "x</think>y", ("unexpected_think",)),
        ("a<|im_end|>b", False, None, "a", ("text_after_end",)),
        ("s\n<tool_call>\n<function=book>\n<par", False, None,
         "s\n<tool_call>\n<function=book>\n<par", ("half_call",)),
        ("<tool_call>\nbook(2)\n</tool_call>", False, None,
         "<tool_call>\nbook(2)\n</tool_call>", ("malformed_call",)),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', False, None,
         '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ("malformed_call",)),
        (twice := _CALL.format("2\n</parameter>\n<parameter=seats>\n3").rstrip(), False, None, twice,
         ("malformed_call",)),
        (_CALL.format("2") + "and so", False, None, "\nand so", ("text_after_call",)),
    ],
)  # fmt: skip
def test_malformed_completions_are_named_and_nothing_is_lost(
    text, thinking, reasoning, answer, problems
):
    parsed = parse_completion(text, thinking=thinking, tools=TOOLS)
    assert (parsed.reasoning, parsed.answer, parsed.problems) == (reasoning, answer, problems)


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {"x": 1e400}}',
        '{"name": "f", "arguments": {"x": 1, "x": 2}}',
        '{"name": "f", "arguments": {}, "parameters": {}}',
        '{"name": "f", "arguments": {}, "thought": "kept"}',
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
        '{"name": "f", "arguments": {"x": ' + "[" * 3000 + "]" * 3000 + "}}",
    ],
)
def test_a_call_that_would_lose_or_forge_something_is_malformed_and_kept(call: str):
    text = f"<tool_call>\n{call}\n</tool_call>"
    parsed = parse_completion(text, thinking=False)
    assert (parsed.answer, parsed.tool_calls) == (text, ())
    assert parsed.problems == ("malformed_call",)


@pytest.mark.parametrize(
    ("value", "arguments", "problems"),
    # a whole number with a point is an integer, as in JSON Schema
    [("two", '{"seats":"two"}', ("argument_type",)), ("2.0", '{"seats":2.0}', ())],
)
def test_an_argument_of_the_wrong_type_stays_text_and_is_named(value, arguments, problems):
    parsed = parse_completion(_CALL.format(value) + "<|im_end|>", thinking=False, tools=TOOLS)
    assert parsed.tool_calls == (ToolCall("book", arguments),)
    assert parsed.problems == problems


@pytest.mark.parametrize(("text", "value"), [("null", None), ("None", None), ("nil", "nil")])
def test_an_argument_that_may_be_null_is_where_it_says_so(text: str, value: str | None):
    call = f"<tool_call>\n<function=book>\n<parameter=note>\n{text}\n</parameter>\n</function>\n"
    parsed = parse_completion(f"{call}</tool_call><|im_end|>", thinking=False, tools=TOOLS)
    assert parsed.tool_calls == (ToolCall("book", json_text({"note": value})),)


@pytest.mark.parametrize(
    "piece", ["<parameter=x>\n", "<parameter=", "</function> ", "</parameter>"]
)
def test_endless_markup_is_read_in_one_go(piece: str):
    # quadratic reading would take hours here
    text = f"<tool_call>\n<function=f>\n{piece * 300_000}z\n</function>\n</tool_call>"
    parsed = parse_completion(text, thinking=False)
    assert (parsed.answer, parsed.problems) == (text, ("malformed_call",))
