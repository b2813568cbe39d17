"""What a template leaves out is named, for every shape and text; what it writes never is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from posttrain.chat import ChatTemplate, left_out, losses, serial_calls, training_samples
from posttrain.records import Example, Message, ToolCall, make_example
from tests.chat.test_samples import NANO, TOOLS, trl_template

USER = Message("user", "What is it?")
TWO = (ToolCall("f", '{"x":1}', id="call00000"), ToolCall("f", '{"x":2}', id="call00001"))
RESULTS = tuple(
    Message("tool", text, tool_call_id=call.id, name="f")
    for call, text in zip(TWO, ("one", "two"), strict=True)
)
ONE = Message("assistant", tool_calls=TWO[:1])
ANSWER = Message("assistant", "It is 3.")


def chat(*messages: Message, tools: str | None = None) -> Example:
    return make_example(messages, tools=tools, source="t", dialect="openai")


BESIDE = chat(USER, replace(ONE, content="Let me see."), RESULTS[0], ANSWER, tools=TOOLS)
PARALLEL = chat(USER, replace(ONE, tool_calls=TWO), *RESULTS, ANSWER, tools=TOOLS)
REASONED = chat(USER, replace(ONE, reasoning="Hm."), RESULTS[0], ANSWER, tools=TOOLS)
DEEP = TOOLS.replace('"x":{', '"y":{"type":"object","properties":{"z":{"type":"string",'
                     '"description":"A deep one."}}},"x":{')  # fmt: skip


@pytest.mark.parametrize(
    ("name", "record", "kinds"),
    [
        ("llama3_1", BESIDE, {"text"}),
        ("gptoss", BESIDE, {"text"}),
        ("gptoss", PARALLEL, {"tool_call"}),
        ("gptoss", REASONED, {"reasoning"}),
        ("gptoss", chat(USER, ANSWER, tools=DEEP), {"tool_details"}),
        ("llama3", chat(USER, ANSWER, tools=TOOLS), {"tools"}),
        ("llama3", PARALLEL, {"tools", "tool_call"}),
        ("phi3", PARALLEL, {"tools", "tool_call", "tool_result"}),
        ("qwen2_5", REASONED, {"reasoning"}),
        ("gemma4", chat(USER, replace(ANSWER, reasoning="Hm.")), {"reasoning"}),
        ("smolvlm", chat(Message("system", "Be brief."), USER, ANSWER), {"system", "user", "text"}),
        # no mask can be determined for this one, and it writes no call
        ("deepseek_r1_distill", PARALLEL, {"tools", "tool_call"}),
    ],
)
def test_what_is_lost_is_named(name: str, record: Example, kinds: set[str]):
    assert {loss.kind for loss in losses(record, trl_template(name))} == kinds
    assert left_out(record, trl_template(name)).startswith(f"{name} leaves out")
    assert left_out(record, NANO) is None


def test_a_text_that_the_template_cuts_is_lost_though_its_shape_is_not():
    cut = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('##')[0] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    made = ChatTemplate(cut, name="cut")
    assert left_out(chat(USER, ANSWER), made) is None
    assert losses(chat(USER, Message("assistant", "a ## b")), made)[0].kind == "text"


@pytest.mark.parametrize("text", ['it\'s "so"\n\té\\n', "a  b\n\n c", "</tool_call>", "Ünï\u2028x"])
@pytest.mark.parametrize("name", ["qwen3", "gptoss", "glm4moe", "lfm2_v2", "nemotron_3_nano"])
def test_escaped_and_trimmed_texts_are_written(name: str, text: str):
    call = ToolCall("f", '{"x":' + json.dumps(text) + "}", id="call00000")
    steps = (replace(ONE, tool_calls=(call,)), Message("tool", text, tool_call_id=call.id))
    record = chat(Message("user", f" {text} "), *steps, Message("assistant", f"{text}\n"))
    assert left_out(record, trl_template(name)) is None


def test_earlier_traces_that_history_drops_are_no_loss():
    thought = replace(ANSWER, reasoning="Hm.")
    record = chat(USER, thought, USER, replace(ANSWER, reasoning="Well."))
    for name in ("nemotron_3_nano", "qwen3", "gptoss"):
        assert left_out(record, trl_template(name)) is None


def test_steps_of_their_own_and_serial_calls_keep_what_one_sequence_loses():
    gpt = trl_template("gptoss")
    for record in (BESIDE, REASONED, PARALLEL):
        split = serial_calls(record)
        samples = training_samples(split, gpt, every_step=True)
        assert not losses(split, gpt, samples, every_step=True)
        assert [s.trained_messages for s in samples] == [
            (k,) for k, m in enumerate(split.messages) if m.role == "assistant"
        ]
    roles = [m.role for m in serial_calls(PARALLEL).messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert serial_calls(PARALLEL).id == PARALLEL.id
    assert serial_calls(BESIDE) is BESIDE
