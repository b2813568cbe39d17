"""Templates: what is supported, what is refused with a reason, and what the sandbox stops."""

from __future__ import annotations

import pytest

from posttrain.chat import ChatTemplate, profile_of, render, training_samples, variants_hint
from posttrain.chat.template import trl_templates
from posttrain.errors import RenderError
from posttrain.records import Message
from tests.chat.reference import hf_text, spans_of
from tests.chat.test_samples import (
    NANO,
    TOOLS,
    VARIABLES,
    calls,
    example,
    says,
    trained_text,
    trl_template,
    user,
)


@pytest.mark.parametrize("name", trl_templates())
def test_every_template_trl_ships_renders_as_transformers_does_or_both_refuse(name: str):
    template = trl_template(name)
    conversations = [
        ([user("q"), says("a")], None),
        ([Message("system", "s"), user("q é"), says("a", "r"), user("q"), says("b", "r2")], None),
        ([user("q"), calls(None, "c", '{"x":1}'), Message("tool", "t", tool_call_id="call00000", name="f"),
          says("b")], TOOLS),
    ]  # fmt: skip
    for messages, tools in conversations:
        for prompt in (False, True):
            options = {**VARIABLES, "add_generation_prompt": prompt}
            try:
                expected = hf_text(template.source, messages, tools, **options)
            except Exception:  # noqa: BLE001 - whatever transformers raises, ours must refuse too
                with pytest.raises(RenderError):
                    render(messages, template, tools=tools, add_generation_prompt=prompt)
                continue
            assert render(messages, template, tools=tools, add_generation_prompt=prompt) == expected


def test_a_template_whose_mask_cannot_be_determined_is_refused_with_the_reason(monkeypatch):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", name="bare")
    with pytest.raises(RenderError, match="no loss mask can be determined"):
        training_samples(example(user(), says("a")), template)
    some = {name: source for name, source in trl_templates().items() if "r1" in name}
    monkeypatch.setattr("posttrain.chat.profile.trl_templates", lambda: some)
    hint = variants_hint(trl_template("deepseek_r1_distill"))
    assert "deepseek_r1_distill_training.jinja" in hint


def test_a_template_that_cannot_be_split_falls_back_to_prefix_rendering_and_says_so():
    source = (
        "{% for i in range(messages|length) %}<|{{ messages[i].role }}|>{{ messages[i].content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    template = ChatTemplate(source, name="counted")
    assert "falling back to exact prefix rendering" in profile_of(template).describe()
    (sample,) = training_samples(example(user("q"), says("a"), user("q"), says("b")), template)
    assert trained_text(sample) == ["a<|end|>", "b<|end|>"]


def test_unsafe_templates_are_stopped_by_the_sandbox():
    for source in (
        "{{ messages.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ):
        with pytest.raises(RenderError):
            render(
                [user()], ChatTemplate(source + "{{ messages[0].content.__init__.__globals__ }}")
            )


def test_qwen3_history_without_reasoning_makes_every_turn_a_sequence():
    """Qwen3 writes an empty think block before the last answer only: earlier ones lack the prompt."""
    template = trl_template("qwen3")
    record = example(user("u1"), says("a1"), user("u2"), says("a2"))
    first, second = training_samples(record, template)
    for sample, answer in ((first, "a1"), (second, "a2")):
        ((start, stop),) = spans_of(sample)
        assert sample.text[:start].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert sample.text[start:stop] == f"{answer}<|im_end|>\n"
    assert "every turn a sequence of its own" in profile_of(template).describe()
    assert not profile_of(NANO).every_turn
