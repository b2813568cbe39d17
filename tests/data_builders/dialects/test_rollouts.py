"""Rollouts of verifiers and NeMo Gym, and rows of Data Designer: columns as these write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_builders.dialects import RowProblem, read_row
from data_builders.rows.raw import Drop
from data_builders.rows.read import read_examples
from posttrain.config.source import SourceConfig
from posttrain.records import Message

CALL = {
    "id": "call_qX",
    "function": {"arguments": '{"code":"print(6*7)"}', "name": "python"},
    "type": "function",
}
# `results.jsonl` of `vf-eval --save-results`: calls are JSON texts, absent ones null
VERIFIERS: dict[str, Any] = {
    "example_id": 0,
    "prompt": [
        {"content": "Put the answer in \\boxed{}.", "role": "system"},
        {"content": "6*7?", "role": "user"},
    ],
    "completion": [
        {"content": "", "role": "assistant", "tool_calls": [json.dumps(CALL)]},
        {"content": "42", "role": "tool", "tool_calls": None, "tool_call_id": "call_qX"},
        {"content": "\\boxed{42}", "role": "assistant", "tool_calls": None},
    ],
    "task": "default",
    "reward": 1.0,
    "error": None,
    "generation_ms": 167.9,
    "scoring_ms": 67.9,
    "total_ms": 235.8,
    "answer": "42",
    "correct_answer": 1.0,
    "turns": 2.0,
}
TOOL = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
    "type": "function",
    "description": "Add.",
}
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
# `rollouts.jsonl` of `ng_collect_rollouts`
GYM: dict[str, Any] = {
    "responses_create_params": {
        "background": None,
        "input": [{"content": "40+2?", "role": "user", "type": "message"}],
        "instructions": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [TOOL],
    },
    "response": {
        "id": "resp_55",
        "created_at": 1786127167.0,
        "model": "policy_model",
        "object": "response",
        "output": [
            {
                "id": "rs",
                "summary": [{"text": "Use add.", "type": "summary_text"}],
                "type": "reasoning",
            },
            {
                "arguments": '{"a":40}',
                "call_id": "c1",
                "name": "add",
                "type": "function_call",
                **TOKENS,
            },
            {"call_id": "c1", "output": "42", "type": "function_call_output"},
            {
                "id": "message-0",
                "content": [{"annotations": [], "text": "\\boxed{42}", "type": "output_text"}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
                **TOKENS,
            },
        ],
        "usage": {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4},
    },
    "reward": 1.0,
    "expected_answer": "42",
    "_ng_task_index": 1,
    "agent_ref": {"name": "simple_agent"},
}
# a parquet row of Data Designer: columns that the user named, with side columns of theirs
DESIGNER = {
    "topic": "sums",
    "question": "6*7?",
    "answer": "42",
    "answer__reasoning_content": "Six sevens.",
    "quality": {"clarity": {"score": 4, "reasoning": "Short."}},
}


# rows in the form of files that these projects published (`form`): keys, nulls and nesting are
# theirs, the texts are ours
PUBLISHED = [
    json.loads(line)
    for line in Path(__file__).with_name("published_rollouts.jsonl").read_text("utf-8").splitlines()
]


def published_row(name: str) -> dict[str, Any]:
    """The row in the form of the published file with this name."""
    [row] = [published["row"] for published in PUBLISHED if name in published["form"]]
    return row


def read(row: dict[str, Any], **config: Any):
    return read_row(row, SourceConfig(name="rollouts", path="rows.jsonl", **config))


DIALOGUE = ["system", "user", "assistant"]
WITH_TOOL = ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("name", "fields", "roles", "end"),
    [
        ("sample_preview", {"prompt": "question", "completion": "answer"}, DIALOGUE[1:], "Vienna."),
        ("crossfit_qa", {"messages": "answer__trace"}, DIALOGUE, "its shape."),
        ("DataDesigner/examples", {"messages": "formatted_output"}, DIALOGUE, '"complaint" }'),
        ("example_mcp_weather", {}, WITH_TOOL, "and 9 degrees."),
        ("math_with_judge", {}, DIALOGUE[1:], "\\boxed{32}"),
        ("math_python", {"tools": "info.oai_tools"}, ["system", *WITH_TOOL], "\\boxed{17}"),
    ],
)
def test_rows_in_a_published_form_are_read(
    name: str, fields: dict[str, str], roles: list[str], end: str
):
    conversation = read(published_row(name), fields=fields)[1]
    assert [message.role for message in conversation.messages] == roles
    assert conversation.messages[-1].content.endswith(end)
    assert (conversation.tools is not None) == ("tools" in fields)
    if name == "crossfit_qa":
        assert conversation.messages[-1].reasoning
    if "tool" in roles:
        assert len(conversation.messages[-3].tool_calls) == 1


def test_a_published_rollout_that_ended_without_an_answer_is_refused():
    with pytest.raises(RowProblem) as raised:
        read(published_row("gsm8k"))
    assert raised.value.reason == "malformed_message"


def test_rollouts_of_verifiers():
    dialect, conversation = read(VERIFIERS)
    assert dialect == "prompt_completion"
    roles = [message.role for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert conversation.messages[2].tool_calls[0].arguments == '{"code":"print(6*7)"}'
    assert {"reward", "answer"} <= set(conversation.unread)


def test_a_completion_that_begins_with_its_prompt_does_not_repeat_it():
    whole = {**VERIFIERS, "completion": [*VERIFIERS["prompt"], *VERIFIERS["completion"]]}
    assert read(whole)[1].messages == read(VERIFIERS)[1].messages


def test_rollouts_of_gym():
    dialect, conversation = read(GYM)
    assert dialect == "openai"
    user, call, result, answer = conversation.messages
    assert user == Message("user", "40+2?")
    assert call.reasoning == "Use add."
    assert call.tool_calls[0].name == "add"
    assert result.content == "42"
    assert answer.content == "\\boxed{42}"
    assert conversation.tools is not None
    assert json.loads(conversation.tools)[0]["function"]["name"] == "add"


def test_instructions_of_gym_are_the_system_text_and_an_empty_list_declares_no_tools():
    request = {**GYM["responses_create_params"], "instructions": "Be brief.", "tools": []}
    conversation = read({**GYM, "responses_create_params": request})[1]
    assert conversation.messages[0] == Message("system", "Be brief.")
    assert conversation.tools is None


@pytest.mark.parametrize("output", [None, [], "text"])
def test_a_rollout_of_gym_without_its_output_is_refused(output: object):
    with pytest.raises(RowProblem):
        read({**GYM, "response": {"id": "resp_55", "output": output}})


def test_only_rollouts_that_passed_are_kept(tmp_path: Path):
    rows = [GYM, {**GYM, "reward": 0.0}, {**GYM, "reward": 0.4}]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = SourceConfig(name="gym", path=str(path), where={"reward": {"ge": 1}})
    examples = [row for row in read_examples(source, tmp_path) if not isinstance(row, Drop)]
    assert len(examples) == 1


def test_rows_of_data_designer_name_their_columns():
    fields = {
        "prompt": "question",
        "completion": "answer",
        "reasoning": "answer__reasoning_content",
    }
    conversation = read(DESIGNER, fields=fields)[1]
    assert conversation.messages == (
        Message("user", "6*7?"),
        Message("assistant", "42", reasoning="Six sevens."),
    )


def test_a_column_of_data_designer_may_hold_a_chat_row_in_json():
    messages = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    row = {"formatted_output": json.dumps({"messages": messages})}
    conversation = read(row, fields={"messages": "formatted_output"})[1]
    assert conversation.messages == (Message("user", "6*7?"), Message("assistant", "42"))


def test_a_trace_of_data_designer_is_a_column_of_messages():
    def message(role: str, text: str, **fields: Any) -> dict[str, Any]:
        # parquet gives every message of a list the same fields
        empty = {"tool_calls": None, "tool_call_id": None, "reasoning_content": None}
        return {"role": role, "content": [{"type": "text", "text": text}], **empty, **fields}

    function = {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    call = {"id": "call_1", "type": "function", "function": function}
    trace = [
        message("system", "Use tools."),
        message("user", "6*7?"),
        message("assistant", "", tool_calls=[call], reasoning_content="Multiply."),
        message("tool", "42", tool_call_id="call_1"),
        message("assistant", "42", reasoning_content="Six sevens."),
    ]
    row = {**DESIGNER, "answer__trace": trace}
    dialect, conversation = read(row, fields={"messages": "answer__trace"})
    assert dialect == "openai"
    roles = [message.role for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert conversation.messages[2].reasoning == "Multiply."
    assert conversation.messages[2].tool_calls[0].name == "multiply"
    assert conversation.messages[3].content == "42"
