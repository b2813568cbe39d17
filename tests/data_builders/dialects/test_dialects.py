"""Each dialect: its shapes, what the recipe maps, and what cannot be read, named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.records import Message, ToolCall
from tests.data_builders.small_rows import CALL, WEATHER, problem, read

U, A = Message("user", "2+2?"), Message("assistant", "4")
ASK, SAY = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
OPENAI = [ASK, SAY]
SHAREGPT = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
PLAIN = (U, A)
NULLS = dict.fromkeys(
    ["messages", "conversations", "prompt", "completion", "instruction", "output", "response",
     "chosen", "rejected", "system", "tools"]
)  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "row"),
    [
        ("openai", {"messages": json.dumps(OPENAI)}),
        ("openai", {"messages": OPENAI, "label": True, "prompt": "2+2?", "tools": []}),
        ("openai", {"messages": {"role": ["user", "assistant"], "content": ["2+2?", "4"]}}),
        ("openai", {"messages": [{"role": "human", "content": "2+2?"}, SAY]}),
        ("openai", {"messages": [ASK, {"role": "assistant", "content": 4}]}),
        ("openai", {"messages": [ASK, {"role": "assistant", "content": ["4"]}]}),
        ("inline_think", {"messages": [ASK, SAY | {"content": "<think>\n\n</think>\n\n4"}]}),
        ("sharegpt", {"conversations": SHAREGPT}),
        ("sharegpt", {"conversations": {"from": ["human", "gpt"], "value": ["2+2?", "4"]}}),
        ("sharegpt", {"conversation": [{"from": "user", "value": "2+2?"},
                                       {"from": "ChatGPT", "value": "4"}]}),
        ("sharegpt", {"messages": [{"from": "human", "content": "2+2?"}, SHAREGPT[1]]}),
        ("alpaca", {"instruction": "2+2?", "output": 4, "text": "### Instruction …"}),
        ("alpaca", {"instruction": "2+2?", "context": "", "response": "4", "category": "qa"}),
        ("prompt_completion", {"prompt": "2+2?", "response": "4"}),
        ("prompt_completion", {"prompt": ASK, "completion": SAY}),
        ("prompt_completion", {"prompt": "2+2?", "completion": SHAREGPT[1], "label": True}),
        ("prompt_completion", {"prompt": "2+2?", "question": "2+2", "completion": "4"}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": "4", "rejected": "5"}),
        ("chosen_rejected", {"instruction": "2+2?", "input": "", "chosen": "4", "rejected": "5"}),
        ("chosen_rejected", {"prompt": "2+2?", "chosen": OPENAI, "rejected": OPENAI}),
    ],
)  # fmt: skip
def test_the_same_exchange_in_every_shape(dialect: str, row: dict[str, Any]) -> None:
    found, conversation = read(row)
    assert (found, conversation.messages, conversation.tools) == (dialect, PLAIN, None)
    # naming the dialect reads the same, and a null column of a joined table says nothing
    assert read(row, dialect=dialect)[1] == conversation
    assert read({**NULLS, **row})[1].messages == PLAIN


REASONED = (U, Message("assistant", "4", reasoning="2 and 2"))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, SAY | {"thinking": "2 and 2", "reasoning_content": "2 and 2"}]},
        {"messages": [ASK, SAY | {"content": "<think>\n2 and 2\n</think>\n\n4"}]},
        {"conversations": [SHAREGPT[0], {"from": "gpt", "value": "<think>2 and 2</think>4"}]},
        {"instruction": "2+2?", "output": "<think>2 and 2</think>4"},
        {"prompt": "2+2?", "completion": "4", "reasoning_content": "2 and 2"},
        {"prompt": "2+2?", "chosen": "<think>2 and 2</think>4", "rejected": "5"},
    ],
)
def test_reasoning_wherever_it_stands(row: dict[str, Any]) -> None:
    assert read(row)[1].messages == REASONED


@pytest.mark.parametrize(
    "row", [{"prompt": "2+2?", "completion": "4"}, {"instruction": "2+2?", "output": "4"}]
)
def test_a_mapped_column_of_reasoning_is_the_trace(row: dict[str, Any]) -> None:
    fields = {"reasoning": "steps"}
    assert read({**row, "steps": "2 and 2"}, fields=fields)[1].messages == REASONED
    two = {**row, "steps": "2 and 2", "thinking": "3 and 1"}  # another trace is not passed over
    assert problem(two, fields=fields).field == "thinking"


def test_prefilled_think_reads_a_trace_without_its_opening_tag() -> None:
    row = {"messages": [ASK, SAY | {"content": "2 and 2\n</think>\n\n4"}]}
    assert read(row, prefilled_think=True)[1].messages == REASONED
    assert read(row)[1].messages[1].content == "2 and 2\n</think>\n\n4"


@pytest.mark.parametrize(
    "text", ["<think>no end", "<think>a<think>b</think>c</think>d", "4<think>late</think>"]
)
def test_tags_that_do_not_fit_stay_in_the_text(text: str) -> None:
    messages = read({"messages": [ASK, SAY | {"content": text}]})[1].messages
    assert messages[1] == Message("assistant", text)


@pytest.mark.parametrize(
    "calls",
    [
        [CALL],
        json.dumps([CALL]),
        [json.dumps(CALL)],
        [{"id": "c1", "name": "weather", "arguments": json.dumps('{"city": "Oslo"}')}],
        [{"id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}],
        [{"id": "c1", "function": {"name": "weather", "parameters": {"city": "Oslo"}}}],
    ],
)
def test_tool_calls_in_every_shape(calls: Any) -> None:
    row = {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": calls}]}
    expected = Message("assistant", tool_calls=(ToolCall("weather", '{"city":"Oslo"}', "c1"),))
    assert read(row)[1].messages[1] == expected


def test_sharegpt_call_turns_join_the_text_before_and_each_other() -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
    two = "<think>two</think>" + json.dumps([{"name": "a", "arguments": {}}, {"name": "b"}])
    row = {"conversations": [
        SHAREGPT[0], {"from": "gpt", "value": "I look."}, {"from": "function_call", "value": call},
        {"from": "function_call", "value": call}, {"from": "observation", "value": "rain"},
        {"from": "observation", "value": {"sky": "grey"}}, {"from": "function_call", "value": two},
    ]}  # fmt: skip
    made = ToolCall("weather", '{"city":"Oslo"}')
    assert read(row)[1].messages[1:] == (
        Message("assistant", "I look.", tool_calls=(made, made)),
        Message("tool", "rain"),
        Message("tool", '{"sky":"grey"}'),
        Message("assistant", reasoning="two", tool_calls=(ToolCall("a"), ToolCall("b"))),
    )


def test_results_that_name_no_call_stay_in_their_order() -> None:
    calls = [{"id": i, "name": f"f{i}", "arguments": {}} for i in "ab"]
    results = [{"role": "tool", "tool_call_id": i, "content": i} for i in "cba"]
    row = {"messages": [ASK, SAY | {"tool_calls": calls}, *results, SAY]}
    assert [m.content for m in read(row)[1].messages] == ["2+2?", "4", "c", "b", "a", "4"]
    named = [{"role": "tool", "name": f"f{i}", "content": i} for i in "ba"]
    row = {"messages": [ASK, SAY | {"tool_calls": calls}, *named, SAY]}
    assert [m.content for m in read(row)[1].messages] == ["2+2?", "4", "a", "b", "4"]


@pytest.mark.parametrize(
    "tools",
    [
        [json.dumps(WEATHER)],
        [{"type": "function", **WEATHER["function"]}],
        WEATHER["function"],
        json.dumps(WEATHER),
    ],
)
def test_tools_in_every_shape(tools: Any) -> None:
    declared = read({"messages": OPENAI, "tools": tools})[1].tools
    assert json.loads(declared or "") == [WEATHER]
    system = {"role": "system", "content": "Be brief.", "tools": tools}
    assert read({"messages": [system, *OPENAI]})[1].tools == declared


@pytest.mark.parametrize("tools", [None, [], "", "[]", "null", "  "])
def test_no_tools_in_every_shape(tools: Any) -> None:
    assert read({"messages": OPENAI, "tools": tools})[1].tools is None


def test_fields_map_names_paths_and_roles() -> None:
    row: dict[str, Any] = {"question": "2+2?", "model": {"answer": "4"}, "instruction": "not this"}
    settings: dict[str, Any] = {"fields": {"prompt": "question", "completion": "model.answer"}}
    dialect, conversation = read(row, **settings)
    assert (dialect, conversation.messages) == ("prompt_completion", PLAIN)
    assert conversation.unread == {"instruction": "not this"}
    assert problem(row).reason == "unrecognised"
    row = {"dialog": [{"speaker": "USER_A", "training_text": "2+2?"},
                      {"speaker": "Bot", "training_text": "4"}]}  # fmt: skip
    settings = {
        "fields": {"messages": "dialog", "role": "speaker", "content": "training_text"},
        "roles": {"USER_A": "user"},
    }
    assert read(row, **settings)[1].messages == PLAIN


def test_a_column_is_read_or_named_or_lost() -> None:
    row = {"messages": OPENAI, "rationale": "first 2, then 2", "level": 3, "empty": "", "n": None}
    assert problem(row).field == "rationale"
    # carried along on purpose, or already in the conversation
    assert read(row, metadata=("rationale",))[1].unread == {"level": 3}
    row["messages"] = [ASK, SAY | {"reasoning": "first 2, then 2"}]
    assert read(row)[1].unread == {"rationale": "first 2, then 2", "level": 3}


def assistant(**more: Any) -> dict[str, Any]:
    """A row whose assistant turn is so."""
    return {"messages": [ASK, SAY | more]}


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("unrecognised", {}),
        ("unrecognised", {"prompt": "2+2?"}),
        ("unrecognised", {"messages": [OPENAI]}),
        ("unrecognised", {"messages": [ASK, SHAREGPT[1]]}),
        ("unrecognised", {"messages": OPENAI, "conversations": SHAREGPT}),
        ("unrecognised", {"instruction": "a", "output": "b", "prompt": "c", "completion": "d"}),
        ("unrecognised", {"instruction": "a", "output": "b", "response": "c"}),
        ("unrecognised", {"chosen": "no transcript", "rejected": "neither"}),
        ("unknown_role", {"messages": [{"role": "narrator", "content": "…"}, *OPENAI]}),
        ("malformed_message", {"messages": [{"role": "user"}, SAY]}),
        ("malformed_message", assistant(content={"a": 1})),
        ("malformed_message", assistant(content=[{"type": ["text"], "text": "a"}])),
        ("malformed_message", assistant(reasoning_content=["a"])),
        ("malformed_message", {"messages": [{**ASK, "tool_calls": [CALL]}, SAY]}),
        ("malformed_message", {"messages": OPENAI, "system": {"a": 1}}),
        ("malformed_message", {"instruction": "a", "output": "b", "history": [["c"]]}),
        ("malformed_message", {"prompt": None, "completion": "b"}),
        ("conflicting_reasoning", assistant(reasoning="a", reasoning_content="b")),
        ("conflicting_reasoning", assistant(reasoning="a", content="<think>b</think>4")),
        ("malformed_tool_call", assistant(tool_calls=[CALL], function_call={"name": "other"})),
        ("malformed_tool_call", assistant(tool_calls=[{"function": {"arguments": "{}"}}])),
        ("malformed_tool_call", assistant(tool_calls=[{"name": "f", "kwargs": {"x": 1}}])),
        ("malformed_tool_call", {"conversations": [SHAREGPT[0],
                                 {"from": "function_call", "value": "weather(Oslo)"}]}),
        ("malformed_message", assistant(toolCalls=[CALL])),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f", "arguments": "{'x': 1}"}])),
        ("malformed_arguments", assistant(tool_calls=[{"name": "f", "arguments": "[1]"}])),
        ("malformed_tools", {"messages": OPENAI, "tools": [{"description": "no name"}]}),
        ("malformed_tools", {"messages": OPENAI, "tools": [{"type": "web_search", "name": "w"}]}),
        ("malformed_tools", {"messages": OPENAI, "tools": [WEATHER], "functions": [CALL]}),
        ("unread_column", {"messages": OPENAI, "tool_schemas": json.dumps([WEATHER])}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(reason: str, row: dict[str, Any]) -> None:
    assert problem(row).reason == reason


# of axolotl, LLaMA-Factory, ms-swift, TRL, OpenAI, Gemini and of public sets
UNRECOGNISED = (
    "question category answer", "INSTRUCTION RESPONSE", "segments", "prompt generation",
    "input_ids attention_mask labels", "system input chosen rejected", "query response history",
    "chosen_messages rejected_messages", "text", "prompt completions labels", "contents", "data",
    "input preferred_output non_preferred_output", "query answers tools", "system chat",
    "instruction chosen_response rejected_response", "question solution thinking_trajectories",
    "source target rationale", "custom_id body",
)  # fmt: skip


@pytest.mark.parametrize("columns", UNRECOGNISED)
def test_columns_of_no_dialect_are_unrecognised(columns: str) -> None:
    assert problem(dict.fromkeys(columns.split(), "2+2?")).reason == "unrecognised"


def test_a_problem_can_be_written_down_whatever_the_row_holds() -> None:
    row = {"\ud83d": 1, **{f"field {i}": 0 for i in range(1000)}}
    assert len(str(problem(row)).encode("utf-8")) < 400


def test_a_named_dialect_is_never_left() -> None:
    assert problem({"messages": OPENAI}, dialect="sharegpt").reason == "unrecognised"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": "text", "text": 4},
        {"type": "text", "text": {"content": "2+2?"}},
        {"type": "output_text", "value": None},
    ],
)
def test_a_part_without_its_text_is_never_read_as_empty(role: str, part: dict[str, Any]) -> None:
    turn = {"role": role, "content": [{"type": "text", "text": "a"}, part]}
    found = problem({"messages": [turn, *OPENAI]})
    assert (found.reason, found.field) == ("malformed_message", "messages[0].content[1]")


@pytest.mark.parametrize(
    ("role", "more"),
    [
        ("user", {"text": "2+2?"}),
        ("assistant", {"content": "", "text": "4"}),
        ("tool", {"output": "4"}),
        ("tool", {"content": [], "result": {"sum": 4}}),
    ],
)
def test_text_under_a_key_that_is_not_read_is_not_lost(role: str, more: dict[str, Any]) -> None:
    found = problem({"messages": [*OPENAI, {"role": role, **more}]})
    assert found.reason == "malformed_message"
    assert found.field == f"messages[2].{list(more)[-1]}"
    # beside its content it is another field
    read({"messages": [*OPENAI, {"role": role, **more, "content": "4"}]})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("context", "The mill closed in 1921.", "malformed_message"),
        ("action", "open the gate", "malformed_message"),
        ("思考", "二和二合起来就是四个。", "malformed_message"),
        ("files", [{"mimeType": "text/csv", "data": "QQ=="}], "unsupported_content"),
    ],
)
def test_what_stands_beside_an_answer_is_not_lost(key: str, value: Any, reason: str) -> None:
    found = problem({"messages": [ASK, SAY | {key: value}]})
    assert (found.reason, found.field) == (reason, f"messages[1].{key}")


def test_who_speaks_is_listed_where_it_is_not_read() -> None:
    conversation = read({"messages": [ASK | {"name": "Ada"}, SAY]})[1]
    assert conversation.unread == {"messages[].name": "Ada"}


def test_a_picture_in_a_result_and_parts_as_text_are_refused() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "iVBOR"}}
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    row = {"messages": [ASK, call, {"role": "tool", "content": [picture]}, SAY], "tools": [WEATHER]}
    assert problem(row).reason == "unsupported_content"
    parts = json.dumps([{"type": "text", "text": "4"}])
    assert problem({"messages": [ASK, SAY | {"content": parts}]}).reason == "malformed_message"
    # JSON that is no list of parts is an answer
    assert read({"messages": [ASK, SAY | {"content": '[{"type": "cat"}]'}]})[1].messages[1].content


@pytest.mark.parametrize("switch", ["high", "off", False, True, "N/A", "null", "None"])
def test_a_switch_under_the_key_of_a_trace_is_no_trace(switch: Any) -> None:
    assert read({"messages": [ASK, SAY | {"thinking": switch}]})[1].messages == PLAIN
    assert read({"prompt": "2+2?", "completion": "4", "reasoning": switch})[1].messages == PLAIN
    assert read({"messages": [ASK, SAY | {"thinking": "high up"}]})[1].messages[1].reasons


def test_what_stands_for_no_text_is_none() -> None:
    assert read({"instruction": "2+2?", "input": "<noinput>", "output": "4"})[1].messages == PLAIN
    assert read({"system": "None", "messages": [ASK, SAY]})[1].messages == PLAIN
    # a value of a language may be what is asked about
    asked = read({"instruction": "Is it true?", "input": "None", "output": "no"})[1].messages[0]
    assert asked.content == "Is it true?\n\nNone"


@pytest.mark.parametrize("key", ["completion", "response", "output"])
@pytest.mark.parametrize("value", ["4", [SAY]])
def test_an_answer_beside_a_list_that_ends_on_a_question_is_read(key: str, value: Any) -> None:
    assert read({"messages": [ASK], key: value})[1].messages == PLAIN
    # of a list that ends on its own answer it is another, and shown
    assert read({"messages": [ASK, SAY], key: value})[1].unread == {key: value}
    mapped = read({"input": {"messages": [ASK]}, "preferred": value},
                  fields={"messages": "input.messages", "completion": "preferred"})  # fmt: skip
    assert mapped[1].messages == PLAIN


def test_an_answer_beside_a_list_keeps_its_trace() -> None:
    row = {"messages": [ASK], "response": "4", "reasoning": "2 and 2"}
    assert read(row)[1].messages == REASONED
    masked = {"messages": [ASK, SAY, ASK], "response": "5", "train_on_last_turn_only": True}
    assert problem(masked).reason == "malformed_message"
    # two columns of answers: nobody knows which
    assert read(row | {"output": "5", "reasoning": None})[1].messages == (U,)


@pytest.mark.parametrize("damaged", [["text"], {"a": 1}, 7, None])
def test_damaged_keys_of_other_services_are_named_and_end_no_build(damaged: Any) -> None:
    assert read({"messages": [ASK | {"type": damaged}, SAY]})[1].messages == PLAIN
    assert problem({"messages": [{"type": damaged, "content": "2+2?"}, SAY]}).reason
    if damaged in (["text"], 7):
        row = {"messages": [ASK, SAY | {"additional_kwargs": damaged}]}
        assert problem(row).field == "messages[1].additional_kwargs"


@pytest.mark.parametrize(
    "call",
    [
        [{"tool": "add", "input": {"a": 2}}],
        {"action": "search", "query": "2+2"},
        [{"steps": [{"api": "sum", "params": [2, 2]}]}],
        [{"skill": "adder", "payload": "2 2"}],
    ],
)
def test_calls_under_keys_of_nobodys_standard_refuse_the_row(call: Any) -> None:
    row = {"messages": [ASK, SAY | {"invocations": call}]}
    assert problem(row).reason == "malformed_message"


@pytest.mark.parametrize(
    "remark", [{"tool": "label-studio"}, [{"query": "q17"}], {"action": "kept", "by": "anna"}]
)
def test_a_remark_that_names_a_tool_is_no_call(remark: Any) -> None:
    assert read({"messages": [ASK, SAY | {"provenance": remark}]})[1].messages == PLAIN
