"""Structural filters: each passes what is sound and names what is not, and has its switch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data_builders.filters.arguments import validator, violation
from data_builders.filters.structure import STRUCTURAL, structural_drop
from posttrain.config.filters import StructuralFilters
from posttrain.records import Example, Message, ToolCall
from tests.data_builders.small_rows import WEATHER, answer, calls, chat, result, user

UNUSABLE = {"type": "function", "function": {"name": "g", "parameters": {"type": "thing"}}}
SOUND = [
    chat(user(), answer()),
    chat(Message("system", "Be brief."), user(), answer(), user(), answer(reasoning="hm")),
    chat(user(), calls("weather"), result(), answer(), tools=[WEATHER]),
    chat(user(), calls("weather", "weather"), result("c1"), result("c0"), answer(),
         tools=[WEATHER]),
    chat(user(), calls("weather"), result(None, name="weather"), calls("weather"),
         tools=[WEATHER]),
    chat(user(), answer("see <tool_call>"), tools=[WEATHER]),
    chat(Message("system", "# Tools\n<tools>…"), user(), answer("<tool_call>…</tool_call>")),
    chat(user("what does <think> mean?"), answer("it opens a trace")),
    # calls without ids are answered in order
    chat(user(), Message("assistant", tool_calls=(ToolCall("weather", '{"city":"a"}'),) * 2),
         Message("tool", "1"), Message("tool", "2"), answer(), tools=[WEATHER]),
    # nobody calls what has an unusable schema
    chat(user(), calls("weather"), tools=[UNUSABLE, WEATHER]),
    # marks and tags that a text speaks of, HTML, and JSON or code that calls no declared tool
    chat(user("what does <|im_end|> mean?"), answer("<|im_end|> ends a turn, as </s> does.")),
    chat(user(), answer("**Reasoning**\nIt is wet.\n\n**Answer**\nrain")),
    chat(user(), answer("## Thinking\nA title of an essay on thought.")),
    chat(user(), answer("Human: hello.\nAssistant: hi. So goes a dialogue.")),
    # scripts of a conversation, asked for or with a further speaker
    chat(user("Write a dialogue in a shop."), answer("Assistant: Hello!\nCustomer: Any rain?")),
    chat(user("What does Assistant: stand for?"), answer("Assistant: who answers.")),
    chat(user(), answer("Assistant: Hello!\n\nAnna: Rain?\n\nAssistant: No.\n\nAnna: Good.")),
    chat(user(), answer("**Assistant:** Hi.\n**Tom:** Hi.\n**Assistant:** Go.\n**Tom:** Yes.")),
    chat(user(), answer("```python\ntext = '<|im_start|>user\\n' + rain\n```")),
    chat(user("<video src='rain.mp4'></video> plays?"), answer("<video>\nrain\n</video>")),
    chat(user(), answer("The end token is <|im_end|>")),
    chat(user(), answer("Strike it out: <s>rain</s>")),
    chat(user("Why - if it rains?"), answer("Write &lt;b&gt;, and a &lt;/b&gt; behind it.")),
    chat(user(), answer('<section type="main">rain</section>')),
    chat(user(), answer('[{"name": "Oslo", "arguments": {}}]'), tools=[WEATHER]),
    chat(user(), answer("print(weather)"), tools=[WEATHER]),
    chat(user(), answer("weather (rain) and wind (strong)"), tools=[WEATHER]),
]  # fmt: skip


@pytest.mark.parametrize("example", SOUND)
def test_what_is_sound_passes(example: Example) -> None:
    assert structural_drop(example, StructuralFilters()) is None


BROKEN: list[tuple[str, Example, str]] = [
    ("bad_unicode", chat(user("\ud83d"), answer()), "message 0"),
    ("role_order", chat(answer(), user(), answer()), "message 0: assistant first"),
    ("role_order", chat(user(), user(), answer()), "message 1: user after user"),
    ("role_order", chat(user(), result(), answer()), "tool after user"),
    ("unclosed_think", chat(user(), answer("<think>hm")), "closing"),
    ("unclosed_think", chat(user(), answer("hm</think>4")), "prefilled_think"),
    ("nested_think", chat(user(), answer("<think>a<think>b</think></think>4")), "inside"),
    ("nested_think", chat(user(), answer("4 <think>a</think>")), "after the start"),
    ("nested_think", chat(user(), answer(reasoning="a</think>b")), "inside the trace"),
    ("empty_answer", chat(user(), answer(" \n")), "no text and no call"),
    ("empty_answer", chat(user(), answer("", reasoning="hm")), "a trace without"),
    ("empty_user_turn", chat(user(""), answer()), "message 0"),
    ("empty_user_turn", chat(user(), answer(), user(" \n"), answer()), "message 2"),
    ("empty_user_turn", chat(user("-"), answer()), "message 0"),
    ("undeclared_tools", chat(user(), calls("weather")), "message 1 calls 'weather'"),
    ("unknown_tool", chat(user(), calls("wether"), tools=[WEATHER]), "declared: 'weather'"),
    ("bad_arguments", chat(user(), calls("weather", arguments="{}"), tools=[WEATHER]), "'city'"),
    ("bad_arguments",
     chat(user(), calls("weather", arguments='{"city":"Oslo","days":"2"}'), tools=[WEATHER]),
     "days: '2' is not of type 'integer'"),
    ("unpaired_tool_result", chat(user(), answer(), result(), answer(), tools=[WEATHER]),
     "message 2: answers no open call"),
    ("unpaired_tool_result",
     chat(user(), calls("weather"), result("other"), answer(), tools=[WEATHER]), "message 2"),
    ("unpaired_tool_result",
     chat(user(), calls("weather", "weather"), result(), answer(), tools=[WEATHER]), "unanswered"),
    ("unpaired_tool_result", chat(user(), calls("weather"), user(), answer(), tools=[WEATHER]),
     "message 1: call of 'weather' unanswered"),
    ("foreign_think", chat(user(), answer("\n<|begin_of_thought|>\n4")), "rewrite such traces"),
    ("foreign_think", chat(user(), answer("<scratch_pad>\nrain\n</scratch_pad>\n4")), "trace"),
    ("foreign_think", chat(user(), answer('<thinking lang="en">hm</thinking>4')), "trace"),
    ("foreign_think", chat(user(), answer('<details type="reasoning">hm</details>4')), "trace"),
    ("foreign_think", chat(user(), answer("<рассуждение>hm</рассуждение>4")), "trace"),
    ("foreign_think", chat(user(), answer("&lt;think&gt;hm&lt;/think&gt;4")), "trace"),
    ("foreign_think", chat(user(), answer("hm&#60;/think&#62;4")), "trace"),
    ("foreign_think", chat(user(), answer("＜think＞hm＜/think＞4")), "trace"),
    ("foreign_think", chat(user(), answer("## Thinking\n\nhm\n\n## Final Response\n\n4")), "trace"),
    ("template_markup", chat(user("<|user|>\nrain?"), answer()), "message 0"),
    ("template_markup", chat(user("<s>[INST] rain? [/INST]"), answer()), "message 0"),
    ("template_markup", chat(user(), answer("It rains.</s>")), "has </s>"),
    ("template_markup", chat(user(), answer("It rains.<|eot_id|>\n")), "has <|eot_id|>"),
    ("template_markup", chat(user(), answer("It rains.<end_of_turn>")), "message 1"),
    ("template_markup", chat(user("<image>\nrain?"), answer()), "<image>"),
    ("template_markup", chat(user(), answer("It rains. <EOS>")), "<EOS>"),
    ("template_markup", chat(user(), answer("It rains.<|endoftext|>Other text")), "endoftext"),
    ("template_markup", chat(user(), answer("ASSISTANT: It rains.")), "ASSISTANT"),
    ("template_markup", chat(user(), answer("Assistant: It rains.\nNote: a lot.")), "Assistant"),
    ("template_markup", chat(user(), answer("Assistant: Rain.\nUser: Sun?\nUser: So?")), "Assist"),
    ("template_markup", chat(user("A script?"), answer("### Assistant: Hi.\nTom: Hi.")), "### A"),
    ("template_markup",
     chat(user("Write a dialogue."), answer("Assistant: a\n\nHuman: b\n\nAssistant: c")), "Human"),
    ("template_markup", chat(user(), answer("Rain.\n\nHuman: Sun?\n\nAssistant: No.")), "Human"),
    ("template_markup", chat(user(), answer("Rain.\n### Human: Sun?\n### Assistant: No.")), "Hum"),
    ("tool_markup", chat(user(), answer("<functioncall> {}")), "declares none"),
    ("tool_markup", chat(user(), answer('I look.\n<invoke name="weather">')), "invoke"),
    ("tool_markup",
     chat(user(), answer('```json\n{"name": "weather", "arguments": {}}\n```'), tools=[WEATHER]),
     "a call in JSON"),
    ("tool_markup", chat(user(), answer('[TOOL_CALLS] [{"name": "weather"}]')), "TOOL_CALLS"),
    ("tool_markup",
     chat(user(), answer(' [{"name": "weather", "arguments": {"city": "Oslo"}}]'), tools=[WEATHER]),
     "a call in JSON"),
    ("tool_markup", chat(user(), answer('[weather(city="Oslo")]'), tools=[WEATHER]), "in Python"),
    ("tool_markup", chat(user(), answer("<tool_call>\n<function=f>")), "message 1"),
    ("tool_markup",
     chat(user(), answer('<tool_call>\n{"name": "weather"}</tool_call>'), result(None), answer(),
          tools=[WEATHER]), "beside declared tools"),
    ("tool_markup", chat(user(), answer(reasoning="<tool_call>")), "message 1"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "example", "detail"), BROKEN)
def test_what_is_broken_is_named(reason: str, example: Example, detail: str) -> None:
    drop = structural_drop(example, StructuralFilters())
    assert drop is not None
    assert drop.reason == reason
    assert detail in drop.detail
    without = structural_drop(example, StructuralFilters(**{reason: False}))
    assert without is None or without.reason != reason


def test_every_filter_has_a_switch_and_every_switch_a_filter() -> None:
    assert set(STRUCTURAL) == set(StructuralFilters.model_fields)
    assert set(STRUCTURAL) == {reason for reason, _, _ in BROKEN} | {"unusable_schema"}


def called_with(parameters: Any, arguments: str) -> str | None:
    """Why a call of a tool with these parameters is dropped."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    drop = structural_drop(chat(user(), calls("f", arguments=arguments), tools=[tool]),
                           StructuralFilters())  # fmt: skip
    return None if drop is None else drop.reason


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("dict", "{}", "[]"),
        ("float", "1.5", '"1.5"'),
        ("tuple", "[1]", "1"),
        ("String", '"a"', "1"),
        ("bool", "true", "1"),
        ("int", "1", "1.5"),
        ("long", "1", '"1"'),
        ("NoneType", "null", "0"),
        (["str", "null"], "null", "1"),
    ],
)
def test_type_names_of_other_schema_languages(kind: Any, good: str, bad: str) -> None:
    parameters = {"type": "dict", "properties": {"x": {"type": "array", "items": {"type": kind}}}}
    assert called_with(parameters, f'{{"x":[{good}]}}') is None
    assert called_with(parameters, f'{{"x":[{bad}]}}') == "bad_arguments"


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {"x": {"type": "any"}}}])
def test_a_schema_that_asks_for_nothing(parameters: Any) -> None:
    assert called_with(parameters, '{"x":[1]}') is None


@pytest.mark.parametrize(
    "parameters",
    [
        ["x"],
        {"type": "object", "properties": {"x": {"type": "thing"}}},
        {"type": "object", "properties": {"x": {"type": "string", "required": True}}},
        {"properties": {"x": {"$ref": "https://example.org/schema.json"}}},
        {"properties": {"x": {"$ref": "#/$defs/missing"}}},
        {"properties": {"x": {"pattern": "("}}},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_cannot_be_used(parameters: Any) -> None:
    assert called_with(parameters, '{"x":"a"}') == "unusable_schema"


def test_a_property_named_type_is_a_property() -> None:
    parameters = {"properties": {"type": {"type": "str"}, "items": {"type": "int"}}}
    assert called_with(parameters, '{"type":"dict","items":1}') is None
    assert called_with(parameters, '{"type":1}') == "bad_arguments"


def test_a_pattern_that_backtracks_for_ever_stops_nothing():
    """`re` would take longer than the sun has; RE2 takes a moment."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}
    checker = validator(json.dumps(schema))
    assert not isinstance(checker, str)
    assert violation(checker, {"x": "a" * 200 + "b"}) == f"x: '{'a' * 79} does not match '(a+)+$'"
    assert violation(checker, {"x": "b" + "a" * 200}) is None


def test_of_many_errors_the_first_in_order_is_named():
    """jsonschema goes through properties in the order of a set, another in every process."""
    names = [f"x{k:02}" for k in range(60)]
    unusable = validator(json.dumps({"properties": {n: {"type": 1} for n in names}}))
    assert isinstance(unusable, str)
    assert unusable.startswith("properties/x00/type: ")
    checker = validator(json.dumps({"additionalProperties": {"type": "string"}}))
    assert not isinstance(checker, str)
    assert (violation(checker, dict.fromkeys(names, 1)) or "").startswith("x00: ")


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"x": {"pattern": "^(?=.*[0-9]).{8}"}}}, {"x": "no digit"}),
        ({"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
         {"a" * 200 + "b": 1}),
    ],
)  # fmt: skip
def test_what_re2_has_no_word_for_is_not_checked(schema, arguments):
    checker = validator(json.dumps(schema))
    assert not isinstance(checker, str)
    assert violation(checker, arguments) is None
