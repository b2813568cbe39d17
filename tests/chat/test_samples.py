"""Text and masks: NVIDIA's rendered oracles, and the naive prefix reference on random conversations."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.chat import (
    ChatTemplate,
    nemotron_3_nano_template,
    profile_of,
    render,
    training_samples,
)
from posttrain.chat.template import trl_templates
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, json_text, make_example
from tests.chat.reference import naive_sequences, spans_of

# Llama 3 writes today's date unless told one
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}

TOOLS = json_text([{"type": "function", "function": {
    "name": "f", "description": "Does it.", "parameters": {
        "type": "object", "properties": {"x": {"type": "integer", "description": "a number"}},
        "required": ["x"]}}}])  # fmt: skip


def example(*messages: Message, tools: str | None = None):
    return make_example(messages, tools=tools, source="test", dialect="openai")


def user(text: str = "u") -> Message:
    return Message("user", text)


def says(text: str, reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning=reasoning)


def calls(reasoning: str | None = None, content: str = "", arguments: str = "{}") -> Message:
    return Message(
        "assistant",
        content,
        reasoning=reasoning,
        tool_calls=(ToolCall("f", arguments, id="call00000"),),
    )


def trained_text(sample) -> list[str]:
    return [sample.text[a:b] for a, b in spans_of(sample)]


# the close directly behind the trace
INLINE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>' if enable_thinking else '' }}{% endif %}"
)
SYSTEM = "<|im_start|>system\n<|im_end|>\n"
NANO = nemotron_3_nano_template()


class TestRenderedOracles:
    """The outputs recorded from NVIDIA's own code (stats 1, "Rendered oracles")."""

    def test_generation_prompts(self):
        on = render([user("Hi")], NANO, add_generation_prompt=True)
        off = render([user("Hi")], NANO, add_generation_prompt=True, enable_thinking=False)
        head = SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert on == head + "<think>\n"
        assert off == head + "<think></think>"

    def test_reasoning_turn(self):
        (sample,) = training_samples(example(user(), says("A", "R")), NANO)
        assert sample.text.endswith("<|im_start|>assistant\n<think>\nR\n</think>\nA<|im_end|>\n")
        assert trained_text(sample) == ["R\n</think>\nA<|im_end|>\n"]
        assert sample.reasoning == "on"

    def test_two_reasoning_turns_are_two_sequences_and_history_drops_reasoning(self):
        record = example(user("u1"), says("a1", "R1"), user("u2"), says("a2", "R2"))
        first, second = training_samples(record, NANO)
        assert trained_text(first) == ["R1\n</think>\na1<|im_end|>\n"]
        assert second.text.endswith(
            "assistant\n<think></think>\na1<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nR2\n</think>\na2<|im_end|>\n"
        )
        assert trained_text(second) == ["R2\n</think>\na2<|im_end|>\n"]
        assert (first.turn, second.turn) == (0, 1)
        assert (first.trained_messages, second.trained_messages) == ((1,), (3,))

    def test_without_reasoning_one_sequence_trains_every_assistant_turn(self):
        record = example(user("u1"), says("a1"), user("u2"), says("a2"))
        (sample,) = training_samples(record, NANO)
        assert trained_text(sample) == ["a1<|im_end|>\n", "a2<|im_end|>\n"]
        assert "assistant\n<think></think>a1" in sample.text
        assert sample.reasoning == "off"

    def test_tool_call_with_reasoning_and_without(self):
        tail = "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<|im_end|>\n"
        (sample,) = training_samples(example(user(), calls("R1"), tools=TOOLS), NANO)
        assert sample.text.endswith("<think>\nR1\n</think>\n" + tail)
        (sample,) = training_samples(example(user(), calls(), tools=TOOLS), NANO)
        assert sample.text.endswith("<think></think>\n" + tail)
        assert trained_text(sample) == ["\n" + tail]

    def test_tool_loop_keeps_reasoning_of_every_step_and_merges_results(self):
        record = example(
            user("u"), calls("R1"), Message("tool", "one"), Message("tool", "two"), says("A", "R2"),
            tools=TOOLS,
        )  # fmt: skip
        (sample,) = training_samples(record, NANO)
        first, last = trained_text(sample)
        assert first.startswith("R1\n</think>\n<tool_call>")
        assert last == "R2\n</think>\nA<|im_end|>\n"
        assert (
            "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
            "<tool_response>\ntwo\n</tool_response>\n<|im_end|>\n" in sample.text
        )

    def test_a_step_without_reasoning_gets_the_empty_think_prompt(self):
        record = example(user(), says("A"), user(), calls("R"), Message("tool", "r"), says("B"))
        # the first turn does not reason, the second does: two sequences all the same
        first, second = training_samples(record, NANO)
        assert trained_text(first) == ["A<|im_end|>\n"]
        assert trained_text(second)[-1] == "B<|im_end|>\n"


def test_truncated_trace_can_leave_its_early_close_untrained():
    record = example(user(), says("A", "R"))
    (masked,) = training_samples(record, NANO, untrained_close=frozenset({1}))
    (trained,) = training_samples(record, NANO)
    assert trained_text(trained) == ["R\n</think>\nA<|im_end|>\n"]
    assert trained_text(masked) == ["R", "\nA<|im_end|>\n"]
    assert masked.text == trained.text


def test_in_a_later_turn_it_is_that_turns_own_close_that_is_untrained():
    turns = [message for k in "123" for message in (user(f"u{k}"), says(f"a{k}", f"R{k}"))]
    assert profile_of(NANO).composable
    samples = training_samples(example(*turns), NANO, untrained_close=frozenset({3}))
    assert [trained_text(sample) for sample in samples] == [
        ["R1\n</think>\na1<|im_end|>\n"],
        ["R2", "\na2<|im_end|>\n"],
        ["R3\n</think>\na3<|im_end|>\n"],
    ]


def test_a_close_that_stands_behind_the_trace_takes_no_character_of_it():
    inline = ChatTemplate(INLINE, name="inline", special_tokens=("<|im_start|>", "<|im_end|>"))
    record = example(user(), says("A", "R"))
    (masked,) = training_samples(record, inline, untrained_close=frozenset({1}))
    assert trained_text(masked) == ["R", "A<|im_end|>\n"]


def test_a_truncated_trace_without_a_close_is_no_sequence():
    with pytest.raises(RenderError, match="has no </think> in its rendered text"):
        training_samples(example(user(), says("A")), NANO, untrained_close=frozenset({1}))


def test_turns_compose_where_no_special_token_parts_them():
    bare = ChatTemplate(NANO.source, name="bare")
    record = example(user("u1"), says("a1", "R1"), user("u2"), says("a2", "R2"))
    expected = naive_sequences(NANO.source, record)
    assert profile_of(bare).composable
    assert [(s.text, spans_of(s)) for s in training_samples(record, bare)] == expected


def test_a_last_turn_that_is_not_trained_is_not_written():
    untrained = Message("assistant", "a2", reasoning="r2", trained=False)
    turns = (user("q0"), says("a0", "r0"), user("q1"), says("a1", "r1"), user("q2"), untrained)
    assert training_samples(example(*turns), NANO)[-1].text.endswith("a1<|im_end|>\n")


def test_every_message_is_rendered_at_most_twice(monkeypatch: pytest.MonkeyPatch):
    messages = [m for k in range(16) for m in (user(f"u{k}"), says(f"a{k}", f"R{k}"))]
    record = example(*messages)
    profile_of(NANO)
    rendered: list[int] = []
    original = ChatTemplate.text
    monkeypatch.setattr(
        ChatTemplate,
        "text",
        lambda self, rows, *a, **k: (rendered.append(len(rows)), original(self, rows, *a, **k))[1],
    )
    samples = training_samples(record, NANO)
    assert len(samples) == 16
    assert sum(rendered) <= 2 * len(messages)
    # and history is cut into the same pieces each time, so a cache tokenises each piece once
    pieces = [s.text for sample in samples for s in sample.segments]
    assert len(set(pieces)) <= 1 + 3 * len(messages)


_WORDS = st.text(alphabet="ab \n.é漢", max_size=8)
_LOUD = st.sampled_from(["", " ", "x", "</think>", "<tool_response>\nq\n</tool_response>", "<b>"])


@st.composite
def _turn(draw):
    text = draw(_WORDS) + draw(_LOUD)
    reasoning = draw(st.sampled_from([None, None, "", "r", " r\n\nr "]))
    steps: list[Message] = [user(text)]
    for _ in range(draw(st.integers(0, 2))):
        steps.append(calls(draw(st.sampled_from([None, "think"])), draw(_WORDS)))
        steps += [Message("tool", draw(_WORDS), name="f") for _ in range(draw(st.integers(1, 2)))]
    return [*steps, says("a" + draw(_WORDS), reasoning)]


_CONVERSATIONS = st.builds(
    lambda system, turns, tools: example(
        *([Message("system", system)] if system is not None else []),
        *[m for turn in turns for m in turn],
        tools=TOOLS if tools else None,
    ),
    st.none() | _WORDS,
    st.lists(_turn(), min_size=1, max_size=4),
    st.booleans(),
)


@pytest.mark.parametrize(
    "name",
    ["nemotron_3_nano", "nemotron_3_nano_training", "nemotron_3_super", "qwen2_5", "qwen3", "llama3_1",
     "llama3_2", "glm4moe", "lfm2", "qwen3_instruct_2507"],
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True)
@given(record=_CONVERSATIONS)
def test_text_and_masks_equal_the_naive_reference(name: str, record):
    template = trl_template(name)
    try:
        expected = naive_sequences(template.source, record, **VARIABLES)
    except Exception:  # noqa: BLE001 - the reference cannot split it (or the template refuses it)
        # Nano's template splits every conversation but those where it trims an earlier answer
        trims = any(m.content != m.content.strip() for m in record.messages)
        assert trims or not name.startswith("nemotron_3_nano")
        return
    samples = training_samples(record, template)
    assert [s.text for s in samples] == [text for text, _ in expected]
    for sample, (_, spans) in zip(samples, expected, strict=True):
        assert spans_of(sample) == [s for s in spans if s[0] < s[1]]


@functools.cache
def trl_template(name: str) -> ChatTemplate:
    special = (
        "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|start|>", "<|end|>",
        "<|return|>", "<|call|>",
    )  # fmt: skip
    return ChatTemplate(
        trl_templates()[name], name=name, variables=VARIABLES, special_tokens=special
    )
