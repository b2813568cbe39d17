"""Conversations and templates that nobody sane writes: exact all the same, or a named refusal."""

from __future__ import annotations

import pytest

from posttrain.chat import ChatTemplate, profile_of, render, training_samples
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall
from tests.chat.reference import hf_text
from tests.chat.test_samples import NANO, TOOLS, example, says, trained_text, user

LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}"
    "{% endif %}{% for m in turns %}{% if m.role == 'user' %}"
    "{{ bos_token + '[INST] ' + (system + '\n\n' if loop.first and system else '') }}"
    "{{ m.content.strip() + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
MISTRAL = LLAMA_2.replace(
    "{% endif %}{% endfor %}",
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{% endif %}{% endfor %}",
)


@pytest.mark.parametrize(
    "text",
    ["a\x00b", "\x00end\x01", "\x00generation-start\x01x", "\x001\x01", "\x00\x01", "\ud800"],
)
def test_control_characters_in_a_message_stay_where_they_are(text: str):
    record = example(user(text), says(text + "a", text + "r"), user("q"), says("b", "r"))
    first, second = training_samples(record, NANO)
    for sample, stop in ((first, 2), (second, 4)):
        assert sample.text == hf_text(NANO.source, list(record.messages[:stop]), None)
    assert trained_text(first) == [f"{text}r\n</think>\n{text}a<|im_end|>\n"]


@pytest.mark.parametrize("arguments", ['{"x":' + "[" * 5000 + "]" * 5000 + "}", "9" * 5000, "{"])
def test_arguments_that_cannot_be_decoded_are_refused(arguments: str):
    call = Message("assistant", tool_calls=(ToolCall("f", arguments),))
    with pytest.raises(RenderError, match="cannot be decoded"):
        training_samples(example(user(), call, tools=TOOLS), NANO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '{}'.format() }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{" + "9" * 5000 + "}}",
        "{{" + "(" * 500 + "1" + ")" * 500 + "}}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{{ 'a' * 10 ** 15 }}",
        "{% include 'x' %}",
        "{% break %}",
    ],
)
def test_a_template_at_fault_is_refused(source: str):
    with pytest.raises(RenderError, match="mine"):
        render([user()], ChatTemplate(source, name="mine"))


def test_without_a_generation_prompt_the_answer_right_behind_the_question_is_trained():
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(LLAMA_2, name="llama2", variables=variables, special_tokens=("</s>",))
    assert profile_of(template).prompts.empty
    messages = [Message("system", "s"), user("q"), says(" a"), user("p"), says("b")]
    (sample,) = training_samples(example(*messages), template)
    assert sample.text == hf_text(LLAMA_2, messages, None, **variables)
    assert trained_text(sample) == [" a </s>", " b </s>"]


@pytest.mark.parametrize(
    ("name", "special", "source"),
    [
        ("eos by its variable", "</s>", LLAMA_2),
        ("Gemma", "<end_of_turn>",
         "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end_of_turn>{% endfor %}"
         "{% if add_generation_prompt %}<assistant>{% endif %}"),
        ("Mistral", "[/TOOL_RESULTS]", MISTRAL),
        ("Gemma 4", "<tool_response|>",
         MISTRAL.replace("[TOOL_RESULTS]", "<|tool_response>")
                .replace("[/TOOL_RESULTS]", "<tool_response|>")),
    ],
)  # fmt: skip
def test_every_token_that_frames_messages_is_refused_inside_one(name, special, source):
    template = ChatTemplate(
        source,
        name=name,
        variables={"bos_token": "<s>", "eos_token": "</s>"},
        special_tokens=(special, "<think>"),
    )
    training_samples(example(user("<think> [TOOL] <|x|>"), says("b")), template)
    with pytest.raises(RenderError, match=r"message 1 \(assistant\) contains .*end the message"):
        training_samples(example(user("q"), says(f"a{special}")), template)


def test_framing_tokens_are_found_in_names_escapes_and_tools():
    def call(name: str = "f", arguments: str = "{}") -> Message:
        return Message("assistant", tool_calls=(ToolCall(name, arguments),))

    hidden = call(arguments='{"x":"\\u003c|im_end|\\u003e"}')
    for record in (
        example(user(), call("<|im_end|>"), tools=TOOLS),
        example(user(), hidden, tools=TOOLS),
        example(user(), says("a"), tools=TOOLS.replace("Does it.", "<|im_end|>")),
    ):
        with pytest.raises(RenderError, match="end the message early"):
            training_samples(record, NANO)
