"""Each dialect, in the shapes it takes in the wild, becomes the conversation that it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data_builders.dialects import RowProblem
from posttrain.records import Message, ToolCall
from tests.data_builders.small_rows import CALL, WEATHER, read

U, A = Message("user", "2+2?"), Message("assistant", "4")
OPENAI = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
SHAREGPT = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
PLAIN = (U, A)


@pytest.mark.parametrize(
    ("dialect", "row"),
    [
        ("openai", {"messages": OPENAI}),
        ("openai", {"conversations": OPENAI}),
        ("openai", {"messages": json.dumps(OPENAI)}),
        ("openai", {"messages": OPENAI, "label": True, "prompt": "2+2?", "tools": []}),
        ("openai", {"messages": {"role": ["user", "assistant"], "content": ["2+2?", "4"]}}),
        ("openai", {"messages": [{"role": "human", "content": "2+2?"}, OPENAI[1]]}),
        ("openai", {"messages": [OPENAI[0], {"role": "assistant", "content": 4}]}),
        ("openai", {"messages": [{"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
                                 {"role": "assistant", "content": ["4"]}]}),
        ("sharegpt", {"conversations": SHAREGPT}),
        ("sharegpt", {"conversations": {"from": ["human", "gpt"], "value": ["2+2?", "4"]}}),
        ("sharegpt", {"conversation": [{"from": "user", "value": "2+2?"},
                                       {"from": "ChatGPT", "value": "4"}]}),
        ("sharegpt", {"messages": [{"from": "human", "content": "2+2?"}, SHAREGPT[1]]}),
        ("alpaca", {"instruction": "2+2?", "input": "", "output": "4"}),
        ("alpaca", {"instruction": "2+2?", "output": 4, "text": "### Instruction …"}),
        ("alpaca", {"instruction": "2+2?", "context": "", "response": "4", "category": "qa"}),
        ("prompt_completion", {"prompt": "2+2?", "completion": "4"}),
        ("prompt_completion", {"prompt": "2+2?", "response": "4"}),
        ("prompt_completion", {"prompt": OPENAI[:1], "completion": OPENAI[1:]}),
        ("prompt_completion", {"prompt": OPENAI[0], "completion": OPENAI[1]}),
        ("prompt_completion", {"prompt": "2+2?", "completion": SHAREGPT[1], "label": False}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": "4", "rejected": "5"}),
        ("chosen_rejected", {"question": "2+2?", "chosen": "4", "rejected": "5"}),
        ("chosen_rejected", {"instruction": "2+2?", "input": "", "chosen": "4", "rejected": "5"}),
        ("chosen_rejected", {"chosen": OPENAI, "rejected": OPENAI}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": OPENAI, "rejected": OPENAI}),
        ("chosen_rejected", {"prompt": OPENAI[:1], "chosen": OPENAI[1:], "rejected": OPENAI[1:]}),
        ("chosen_rejected", {"messages": OPENAI[:1], "chosen": OPENAI[1], "rejected": OPENAI[1]}),
        ("chosen_rejected", {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1],
                             "rejected": SHAREGPT[1]}),
        ("chosen_rejected", {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4",
                             "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5"}),
    ],
)  # fmt: skip
def test_the_same_exchange_in_every_shape(dialect: str, row: dict[str, Any]) -> None:
    found, conversation = read(row)
    assert (found, conversation.messages, conversation.tools) == (dialect, PLAIN, None)
    # naming the dialect reads the same
    assert read(row, dialect=dialect)[1] == conversation


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": SHAREGPT, "system": "Be brief."},
        {"messages": [{"role": "developer", "content": "Be brief."}, *OPENAI]},
        {"messages": [{"role": "system", "content": "Be brief."}, *OPENAI], "system": "Be brief."},
        {"instruction": "2+2?", "output": "4", "system": "Be brief."},
        {"prompt": "2+2?", "completion": "4", "system_prompt": "Be brief."},
        {"system": "Be brief.", "question": "2+2?", "chosen": "4", "rejected": "5"},
        {"prompt": [{"role": "system", "content": "Be brief."}, OPENAI[0]],
         "chosen": OPENAI, "rejected": OPENAI},
    ],
)  # fmt: skip
def test_system_text_wherever_it_stands(row: dict[str, Any]) -> None:
    assert read(row)[1].messages == (Message("system", "Be brief."), *PLAIN)


def test_alpaca_joins_input_and_history() -> None:
    row = {"instruction": "Add.", "input": "2 and 2", "output": "4", "history": [["Hi", "Hello"]]}
    assert read(row)[1].messages == (
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "Add.\n\n2 and 2"),
        A,
    )


REASONED = (U, Message("assistant", "4", reasoning="2 and 2"))


@pytest.mark.parametrize(
    ("dialect", "row"),
    [
        ("openai", {"messages": [OPENAI[0], {**OPENAI[1], "reasoning_content": "2 and 2"}]}),
        ("openai", {"messages": [OPENAI[0], {**OPENAI[1], "reasoning": "2 and 2"}]}),
        ("openai", {"messages": [OPENAI[0], {**OPENAI[1], "thinking": "2 and 2",
                                             "reasoning_content": "2 and 2"}]}),
        ("openai", {"messages": [OPENAI[0], {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "2 and 2"}, {"type": "text", "text": "4"}]}]}),
        ("inline_think", {"messages": [OPENAI[0], {"role": "assistant", "content":
                                                   "<think>\n2 and 2\n</think>\n\n4"}]}),
        ("sharegpt", {"conversations": [SHAREGPT[0], {"from": "gpt", "value":
                                                      "<think>2 and 2</think>4"}]}),
        ("alpaca", {"instruction": "2+2?", "output": "<think>2 and 2</think>4"}),
        ("prompt_completion", {"prompt": "2+2?", "completion": "4",
                               "reasoning_content": "2 and 2"}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": "<think>2 and 2</think>4",
                             "rejected": "5"}),
    ],
)  # fmt: skip
def test_reasoning_wherever_it_stands(dialect: str, row: dict[str, Any]) -> None:
    found, conversation = read(row)
    assert (found, conversation.messages) == (dialect, REASONED)


def test_prefilled_think_reads_a_trace_without_its_opening_tag() -> None:
    row = {"messages": [OPENAI[0], {"role": "assistant", "content": "2 and 2\n</think>\n\n4"}]}
    assert read(row, prefilled_think=True)[1].messages == REASONED
    assert read(row)[1].messages[1].content == "2 and 2\n</think>\n\n4"


@pytest.mark.parametrize(
    "text", ["<think>no end", "<think>a<think>b</think>c</think>d", "4<think>late</think>"]
)
def test_tags_that_do_not_fit_stay_in_the_text(text: str) -> None:
    messages = read({"messages": [OPENAI[0], {"role": "assistant", "content": text}]})[1].messages
    assert messages[1] == Message("assistant", text)


def test_an_empty_trace_is_no_reasoning() -> None:
    row = {"prompt": "2+2?", "completion": "<think>\n\n</think>\n\n4"}
    assert read(row)[1].messages == PLAIN


@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [{**CALL}]},
        {"tool_calls": json.dumps([CALL])},
        {"tool_calls": [json.dumps(CALL)]},
        {"tool_calls": [{"id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}]},
        {"tool_calls": [{"id": "c1", "function": {"name": "weather",
                                                  "parameters": {"city": "Oslo"}}}]},
    ],
)  # fmt: skip
def test_tool_calls_in_every_shape(call: dict[str, Any]) -> None:
    row = {"messages": [OPENAI[0], {"role": "assistant", "content": None, **call}]}
    expected = Message("assistant", tool_calls=(ToolCall("weather", '{"city":"Oslo"}', "c1"),))
    assert read(row)[1].messages[1] == expected


def test_legacy_function_call_and_its_result() -> None:
    call = {"name": "weather", "arguments": "{}"}
    row = {"messages": [OPENAI[0], {"role": "assistant", "content": None, "function_call": call},
                        {"role": "function", "name": "weather", "content": "rain"}, OPENAI[1]],
           "functions": [WEATHER["function"]]}  # fmt: skip
    conversation = read(row)[1]
    assert conversation.messages[1].tool_calls == (ToolCall("weather", "{}"),)
    assert conversation.messages[2] == Message("tool", "rain", name="weather")
    assert json.loads(conversation.tools or "") == [WEATHER]


def test_sharegpt_call_turns_join_the_text_before_and_each_other() -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
    row = {"conversations": [
        SHAREGPT[0], {"from": "gpt", "value": "I look."}, {"from": "function_call", "value": call},
        {"from": "function_call", "value": call}, {"from": "observation", "value": "rain"},
        {"from": "observation", "value": {"sky": "grey"}}, SHAREGPT[1],
    ]}  # fmt: skip
    made = ToolCall("weather", '{"city":"Oslo"}')
    assert read(row)[1].messages[1:] == (
        Message("assistant", "I look.", tool_calls=(made, made)),
        Message("tool", "rain"),
        Message("tool", '{"sky":"grey"}'),
        A,
    )


def test_sharegpt_parallel_calls_and_reasoning_in_one_turn() -> None:
    value = "<think>two</think>" + json.dumps([{"name": "a", "arguments": {}}, {"name": "b"}])
    row = {"conversations": [SHAREGPT[0], {"from": "function_call", "value": value}]}
    expected = Message("assistant", reasoning="two", tool_calls=(ToolCall("a"), ToolCall("b")))
    assert read(row)[1].messages[1] == expected


@pytest.mark.parametrize(
    "tools",
    [
        [WEATHER],
        json.dumps([WEATHER]),
        [json.dumps(WEATHER)],
        [WEATHER["function"]],
        [{"type": "function", **WEATHER["function"]}],
        WEATHER["function"],
        json.dumps(WEATHER),
    ],
)
def test_tools_in_every_shape(tools: Any) -> None:
    declared = read({"messages": OPENAI, "tools": tools})[1].tools
    assert json.loads(declared or "") == [WEATHER]


@pytest.mark.parametrize("tools", [None, [], "", "[]", "null", "  "])
def test_no_tools_in_every_shape(tools: Any) -> None:
    assert read({"messages": OPENAI, "tools": tools})[1].tools is None


def test_tools_of_the_system_message() -> None:
    system = {"role": "system", "content": "Be brief.", "tools": [WEATHER]}
    assert json.loads(read({"messages": [system, *OPENAI]})[1].tools or "") == [WEATHER]


def test_fields_map_names_and_paths() -> None:
    row = {"question": "2+2?", "model": {"answer": "4"}, "instruction": "not this"}
    settings: dict[str, Any] = {"fields": {"prompt": "question", "completion": "model.answer"}}
    dialect, conversation = read(row, **settings)
    assert (dialect, conversation.messages) == ("prompt_completion", PLAIN)
    with pytest.raises(RowProblem, match="not any known dialect"):
        read(row)


def test_fields_and_roles_reach_into_messages() -> None:
    row = {"dialog": [{"speaker": "USER_A", "text": "2+2?"}, {"speaker": "Bot", "text": "4"}]}
    settings: dict[str, Any] = {
        "fields": {"messages": "dialog", "role": "speaker", "content": "text"},
        "roles": {"USER_A": "user"},
    }
    assert read(row, **settings)[1].messages == PLAIN


def problem(row: dict[str, Any], **settings: Any) -> str:
    """The reason a row is refused for."""
    with pytest.raises(RowProblem) as caught:
        read(row, **settings)
    return caught.value.reason


def assistant(**more: Any) -> dict[str, Any]:
    """A row whose assistant turn is so."""
    return {"messages": [OPENAI[0], {"role": "assistant", "content": "4", **more}]}


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("unrecognised", {}),
        ("unrecognised", {"text": "2+2 is 4"}),
        ("unrecognised", {"prompt": "2+2?"}),
        ("unrecognised", {"messages": []}),
        ("unrecognised", {"messages": [OPENAI]}),
        ("unrecognised", {"messages": [OPENAI[0], SHAREGPT[1]]}),
        ("unrecognised", {"messages": OPENAI, "conversations": SHAREGPT}),
        ("unrecognised", {"instruction": "a", "output": "b", "prompt": "c", "completion": "d"}),
        ("unrecognised", {"instruction": "a", "output": "b", "response": "c"}),
        ("unrecognised", {"chosen": "no transcript", "rejected": "neither"}),
        ("unknown_role", {"messages": [{"role": "narrator", "content": "…"}, *OPENAI]}),
        ("malformed_message", {"messages": [{"role": "user"}, OPENAI[1]]}),
        ("malformed_message", assistant(content=True)),
        ("malformed_message", assistant(content={"a": 1})),
        ("malformed_message", assistant(reasoning_content=["a"])),
        ("malformed_message", {"messages": [{**OPENAI[0], "tool_calls": [CALL]}, OPENAI[1]]}),
        ("malformed_message", {"messages": OPENAI, "system": ["a"]}),
        ("malformed_message", {"instruction": "a", "output": "b", "history": [["c"]]}),
        ("malformed_message", {"instruction": "a", "output": "b", "history": "c"}),
        ("malformed_message", {"prompt": None, "completion": "b"}),
        ("untrained_turn", assistant(weight=0)),
        ("untrained_turn", assistant(train=False)),
        ("conflicting_reasoning", assistant(reasoning="a", reasoning_content="b")),
        ("conflicting_reasoning", assistant(reasoning="a", content="<think>b</think>4")),
        ("unsupported_content", assistant(content=[{"type": "image_url", "image_url": {}}])),
        ("unsupported_content", assistant(content=[{"type": ["text"], "text": "a"}])),
        ("unsupported_content", {"messages": OPENAI, "images": ["a.png"]}),
        ("malformed_tool_call", assistant(tool_calls=["{"])),
        ("malformed_tool_call", assistant(tool_calls=[CALL], function_call={"name": "other"})),
        ("malformed_tool_call", assistant(tool_calls=[{"function": {"arguments": "{}"}}])),
        ("malformed_tool_call", assistant(tool_calls=[{"name": "f", "args": {"x": 1}}])),
        ("malformed_tool_call", {"conversations": [SHAREGPT[0],
                                 {"from": "function_call", "value": "weather(Oslo)"}]}),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f", "arguments": "{'x': 1}"}])),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f", "arguments": "[1]"}])),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f", "arguments": '{"x": NaN}'}])),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f",
                                                       "arguments": '{"x":1,"x":2}'}])),
        ("malformed_tools", {"messages": OPENAI, "tools": "[{"}),
        ("malformed_tools", {"messages": OPENAI, "tools": [{"description": "no name"}]}),
        ("malformed_tools", {"messages": OPENAI, "tools": [{"type": "web_search", "name": "w"}]}),
        ("malformed_tools", {"messages": OPENAI, "tools": [3]}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(reason: str, row: dict[str, Any]) -> None:
    assert problem(row) == reason


def test_a_problem_can_be_written_down_whatever_the_row_holds() -> None:
    row = {"\ud83d": 1, **{f"field {i}": 0 for i in range(1000)}}
    with pytest.raises(RowProblem) as caught:
        read(row)
    assert len(str(caught.value).encode("utf-8")) < 400


def test_a_named_dialect_is_never_left() -> None:
    assert problem({"messages": OPENAI}, dialect="alpaca") == "unrecognised"
    assert problem({"messages": OPENAI}, dialect="sharegpt") == "unrecognised"


NULLS = dict.fromkeys(
    ["messages", "conversations", "prompt", "completion", "instruction", "output", "response",
     "chosen", "rejected", "system", "tools"]
)  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "row"),
    [
        ("openai", {"messages": OPENAI}),
        ("sharegpt", {"conversations": SHAREGPT}),
        ("prompt_completion", {"prompt": "2+2?", "completion": "4"}),
        ("prompt_completion", {"prompt": "2+2?", "response": "4"}),
        ("alpaca", {"instruction": "2+2?", "output": "4"}),
        ("alpaca", {"instruction": "2+2?", "response": "4"}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": "4", "rejected": "5"}),
    ],
)
def test_null_columns_of_a_joined_table_say_nothing(dialect: str, row: dict[str, Any]) -> None:
    found, conversation = read({**NULLS, **row})
    assert (found, conversation.messages) == (dialect, PLAIN)


def test_weights_that_train_an_answer_are_no_matter() -> None:
    row = {"conversations": [{**SHAREGPT[0], "weight": 0}, {**SHAREGPT[1], "weight": 1}]}
    assert read(row)[1].messages == PLAIN


def asked(content: Any) -> dict[str, Any]:
    """A row whose user's turn has such content."""
    return {"messages": [{"role": "user", "content": content}, OPENAI[1]]}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "value": "2+2?"},
        {"type": "text", "text": {"value": "2+2?", "annotations": []}},
        {"type": "text", "text": None, "value": "2+2?"},
        {"type": "input_text", "text": "2+2?"},
    ],
)
def test_a_part_says_its_text_in_every_spelling(part: dict[str, Any]) -> None:
    assert read(asked([part]))[1].messages == PLAIN
    result = {"role": "tool", "content": [part]}
    assert read({"messages": [OPENAI[0], result, OPENAI[1]]})[1].messages[1].content == "2+2?"
    trace = part | {"type": "reasoning"}
    row = assistant(content=[trace, {"type": "text", "value": "4"}])
    assert read(row)[1].messages[1] == Message("assistant", "4", reasoning="2+2?")


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": 4},
        {"type": "text", "text": ["2+2?"]},
        {"type": "text", "text": {"content": "2+2?"}},
        {"type": "text", "content": "2+2?"},
        {"type": "output_text", "value": None},
    ],
)
def test_a_part_without_its_text_is_never_read_as_empty(role: str, part: dict[str, Any]) -> None:
    turn = {"role": role, "content": [{"type": "text", "text": "a"}, part]}
    with pytest.raises(RowProblem) as caught:
        read({"messages": [turn, *OPENAI]})
    assert caught.value.reason == "malformed_message"
    assert caught.value.field == "messages[0].content[1]"


@pytest.mark.parametrize(
    "part", [{"type": "thinking"}, {"type": "reasoning", "summary": []}, {"type": "thinking", "thinking": 4}]
)  # fmt: skip
def test_a_trace_part_without_its_text_is_not_lost(part: dict[str, Any]) -> None:
    assert problem(assistant(content=[part, {"type": "text", "text": "4"}])) == "malformed_message"


UNTRAINED = [
    {"weight": 0}, {"weight": 0.0}, {"weight": "0"}, {"loss_weight": 0}, {"loss_weight": "0.0"},
    {"loss": False}, {"loss": "false"}, {"train": False}, {"train": 0}, {"training": False},
    {"train_on_turn": "False"}, {"trainable": False}, {"masked": True}, {"masked": 1},
    {"masked": "1"}, {"mask": True}, {"mask": "true"}, {"masked": True, "weight": 0},
]  # fmt: skip
TRAINED = [
    {"weight": 1}, {"weight": "1"}, {"loss_weight": 1.0}, {"loss": True}, {"train": "true"},
    {"training": True}, {"train_on_turn": 1}, {"masked": False}, {"masked": 0}, {"mask": False},
    {"mask": "false"}, {"weight": None}, {"loss_mask": None}, {"weight": 1, "masked": False},
    {"constraint": 0}, {"glossary": False}, {"name": "trainer"},
]  # fmt: skip
UNKNOWN = [
    {"loss_mask": 1}, {"loss_mask": [0, 1]}, {"train_mask": 1}, {"train_loss": False},
    {"is_masked": False}, {"ignore_loss": True}, {"supervised": False}, {"lossMask": 0},
    {"Weight": 0}, {"unmasked": False}, {"train_detail": [{"train": False}]},
    {"weight": 0.5}, {"weight": -1}, {"loss_weight": "half"}, {"train": "yes"}, {"loss": []},
    {"mask": 0}, {"mask": "1"}, {"weight": 1, "train": False}, {"weight": 0, "masked": False},
]  # fmt: skip


def masked(more: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Rows whose answer, or a part of it, has such keys, with where these stand."""
    said = {**OPENAI[1], **more}
    call = {"from": "function_call", "value": '{"name": "weather", "arguments": {}}', **more}
    part = {"type": "text", "text": "4", **more}
    return [
        ("messages[1]", {"messages": [OPENAI[0], said]}),
        ("messages[1]", {"messages": [OPENAI[0], said, *OPENAI]}),
        ("messages[1].content[0]", assistant(content=[part])),
        ("conversations[1]", {"conversations": [SHAREGPT[0], {**SHAREGPT[1], **more}]}),
        ("conversations[1]", {"conversations": [SHAREGPT[0], call]}),
        ("completion[0]", {"prompt": "2+2?", "completion": [said]}),
        ("prompt[1]", {"prompt": [OPENAI[0], said, OPENAI[0]], "completion": "4"}),
        ("chosen[0]", {"prompt": "2+2?", "chosen": said, "rejected": "5"}),
    ]


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        *(("untrained_turn", more) for more in UNTRAINED),
        *(("malformed_message", more) for more in UNKNOWN),
    ],
)
def test_an_answer_that_is_not_to_be_trained_is_not(reason: str, more: dict[str, Any]) -> None:
    for where, row in masked(more):
        with pytest.raises(RowProblem) as caught:
            read(row)
        assert caught.value.reason == reason, row
        assert caught.value.field in {f"{where}.{key}" for key in more}


@pytest.mark.parametrize("more", TRAINED)
def test_masks_that_train_an_answer_are_no_matter(more: dict[str, Any]) -> None:
    for _, row in masked(more):
        assert read(row)[1].messages[1].role == "assistant"


@pytest.mark.parametrize("more", [*UNTRAINED, *UNKNOWN])
def test_masks_of_other_turns_are_no_matter(more: dict[str, Any]) -> None:
    assert read({"messages": [{**OPENAI[0], **more}, OPENAI[1]]})[1].messages == PLAIN


def test_a_key_that_the_recipe_reads_is_no_mask() -> None:
    row = {"messages": [OPENAI[0], {"role": "assistant", "training_text": "4"}]}
    row["messages"][0] = {"role": "user", "training_text": "2+2?"}
    assert read(row, fields={"content": "training_text"})[1].messages == PLAIN


@pytest.mark.parametrize(
    "row",
    [
        {"messages": OPENAI},
        {"conversations": SHAREGPT},
        {"instruction": "2+2?", "output": "4"},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    ],
)
def test_a_mask_over_the_row_is_refused_unless_it_says_what_is_done(row: dict[str, Any]) -> None:
    assert problem(row | {"loss_mask": [0, 1]}) == "malformed_message"
    assert problem(row | {"train_on_inputs": True}) == "malformed_message"
    assert problem(row | {"completion_mask": [0, 1]}) == "malformed_message"
    assert problem(row | {"assistant_masks": [0, 1]}) == "malformed_message"
    assert read(row | {"train_on_inputs": False, "loss_mask": None})[1].messages == PLAIN


@pytest.mark.parametrize("more", [more for more in UNTRAINED if len(more) == 1])
def test_a_row_that_is_not_to_be_trained_is_not(more: dict[str, Any]) -> None:
    for row in ({"messages": OPENAI}, {"instruction": "2+2?", "output": "4"}):
        assert problem(row | more) == "untrained_turn"


@pytest.mark.parametrize(
    "more", [{"weight": 70}, {"loss": 0.23}, {"mask": "User"}, {"train": None}, {"training": "x"}]
)
def test_what_a_row_says_beside_its_answer_is_no_mask(more: dict[str, Any]) -> None:
    assert read({"messages": OPENAI} | more)[1].messages == PLAIN


@pytest.mark.parametrize(
    ("role", "more"),
    [
        ("user", {"parts": [{"text": "2+2?"}]}),
        ("assistant", {"parts": [{"text": "4"}]}),
        ("assistant", {"content": "", "text": "4"}),
        ("assistant", {"content": None, "text": "4"}),
        ("tool", {"output": "4"}),
        ("tool", {"content": [], "result": {"sum": 4}}),
    ],
)
def test_text_under_a_key_that_is_not_read_is_not_lost(role: str, more: dict[str, Any]) -> None:
    with pytest.raises(RowProblem) as caught:
        read({"messages": [*OPENAI, {"role": role, **more}]})
    assert caught.value.reason == "malformed_message"
    assert caught.value.field == f"messages[2].{list(more)[-1]}"
    # beside its content it is another field
    read({"messages": [*OPENAI, {"role": role, **more, "content": "4"}]})


@pytest.mark.parametrize("at", [0, 1])
def test_media_of_a_message_are_not_lost(at: int) -> None:
    turns = [{**turn, "images": ["a.png"]} if i == at else turn for i, turn in enumerate(OPENAI)]
    with pytest.raises(RowProblem) as caught:
        read({"messages": turns})
    assert caught.value.reason == "unsupported_content"
    assert caught.value.field == f"messages[{at}].images"
    assert read({"messages": [{**turn, "images": []} for turn in OPENAI]})[1].messages == PLAIN


@pytest.mark.parametrize(
    "part", [{"type": "text", "text": "", "value": "2+2?"}, {"type": "text", "value": "2+2?"}]
)
def test_a_part_says_what_any_of_its_fields_says(part: dict[str, Any]) -> None:
    assert read({"messages": [{"role": "user", "content": [part]}, OPENAI[1]]})[1].messages == PLAIN
