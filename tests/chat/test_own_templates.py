"""Templates of our own: text and masks against the slow truth, calls read back, what is left out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.chat import (
    ChatTemplate,
    left_out,
    losses,
    nemotron_3_nano_template,
    parse_completion,
    profile_of,
    render,
    training_samples,
    writes_reasoning,
)
from posttrain.chat.detect import detect_in_completion
from posttrain.chat.template import OWN_TEMPLATES, packaged_template_source, trl_templates
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, json_text
from posttrain.rollouts import Completion, Prompt, Step
from tests.chat.reference import hf_text, naive_sequences, spans_of
from tests.chat.test_left_out import BESIDE, PARALLEL, REASONED
from tests.chat.test_samples import _CONVERSATIONS, TOOLS, calls, example, says, trained_text, user


def own(name: str) -> ChatTemplate:
    source = packaged_template_source(name)
    assert source is not None
    return ChatTemplate(source, name=name, special_tokens=("<|im_start|>", "<|im_end|>"))


HERMES, CHATML = own("hermes"), own("chatml")


@pytest.mark.parametrize("template", [HERMES, CHATML], ids=OWN_TEMPLATES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(record=_CONVERSATIONS)
def test_text_and_masks_equal_the_naive_reference(template: ChatTemplate, record):
    try:
        expected = naive_sequences(template.source, record)
    except Exception:  # noqa: BLE001 - only what the template itself refuses cannot be rendered
        assert template is CHATML
        assert any(message.role == "tool" for message in record.messages)
        with pytest.raises(RenderError, match="no role tool"):
            training_samples(record, template)
        return
    samples = training_samples(record, template)
    assert [s.text for s in samples] == [text for text, _ in expected]
    for sample, (_, spans) in zip(samples, expected, strict=True):
        assert spans_of(sample) == [s for s in spans if s[0] < s[1]]


def test_a_conversation_with_parallel_calls_in_the_notation_of_hermes():
    two = (ToolCall("f", '{"x":1}', id="a"), ToolCall("f", '{"x":"é<b>"}', id="b"))
    results = (Message("tool", "one", tool_call_id="a"), Message("tool", "two", tool_call_id="b"))
    record = example(
        Message("system", "Be brief."), user("q"), Message("assistant", "So.", tool_calls=two),
        *results, says("done"), tools=TOOLS,
    )  # fmt: skip
    (sample,) = training_samples(record, HERMES)
    head, _, rest = sample.text.partition("</tools>")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n")
    assert head.endswith("\n" + TOOLS.strip("[]").replace('":', '": ').replace(',"', ', "') + "\n")
    assert trained_text(sample) == [
        'So.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"x": "é<b>"}}\n</tool_call><|im_end|>\n',
        "done<|im_end|>\n",
    ]
    assert (
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ) in rest


_TEXT = st.text(alphabet="ab <>{}\n漢\"'\\1", max_size=20)
_ARGUMENTS = st.dictionaries(
    st.sampled_from(["x", "y", "a b"]),
    st.none() | st.booleans() | st.integers() | _TEXT | st.lists(st.integers(0, 9) | _TEXT),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(answer=_TEXT.map(str.strip), arguments=st.lists(_ARGUMENTS, max_size=2))
def test_parsing_inverts_rendering(answer: str, arguments: list[dict]):
    tool_calls = tuple(ToolCall("f", json_text(given)) for given in arguments)
    message = Message("assistant", answer or "a", tool_calls=tool_calls)
    (sample,) = training_samples(example(user(), message, tools=TOOLS), HERMES)
    (text,) = trained_text(sample)
    parsed = parse_completion(text, thinking=False, tools=TOOLS)
    assert parsed.problems == ()
    assert parsed.finished
    assert parsed.message() == message


def test_a_call_that_is_not_declared_is_detected():
    (sample,) = training_samples(example(user(), calls(None, "", '{"x":1}'), tools=TOOLS), HERMES)
    (text,) = trained_text(sample)
    step = Step(text, parse_completion(text, thinking=False), "stop", 0, 1, 1)
    bare = Prompt(id="p", task="t", setting="no_tools", messages=(user(),))
    detected = detect_in_completion(Completion("p", 0, (step,), "stop"), bare).calls
    assert [call.name for call in detected] == ["f"]


def test_they_render_as_transformers_does_with_arguments_as_text_too():
    rows = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
    ]  # fmt: skip
    decoded = [user("q"), calls(None, "", '{"x":1}')]
    assert HERMES.text(rows) == hf_text(HERMES.source, decoded, None) == render(decoded, HERMES)


def test_what_they_do_not_write_is_named():
    assert {loss.kind for loss in losses(REASONED, HERMES)} == {"reasoning"}
    assert left_out(BESIDE, HERMES) is None
    assert left_out(PARALLEL, HERMES) is None
    assert {loss.kind for loss in losses(example(user(), says("a"), tools=TOOLS), CHATML)} == {
        "tools"
    }
    with pytest.raises(RenderError, match="a system message comes first"):
        render([user(), Message("system", "s")], HERMES)


def test_both_are_split_in_a_single_pass():
    for template in (HERMES, CHATML):
        assert "split in a single pass" in profile_of(template).describe()
        assert profile_of(template).composable


@pytest.mark.parametrize(
    ("name", "reasons"),
    [("hermes", False), ("chatml", False), ("trl:qwen2_5", False), ("trl:llama3_1", False),
     ("trl:qwen3", True), ("trl:gptoss", True), ("trl:deepseek_r1_distill_training", True)],
)  # fmt: skip
def test_whether_a_template_knows_reasoning(name: str, reasons: bool):
    assert writes_reasoning(own(name)) is reasons
    assert writes_reasoning(nemotron_3_nano_template())


def test_families_of_the_installed_trl_by_name(monkeypatch: pytest.MonkeyPatch):
    assert packaged_template_source("trl:qwen3") == trl_templates()["qwen3"]
    assert packaged_template_source("own") is None
    with pytest.raises(RenderError, match=r"no chat template 'qwen33'; did you mean trl:qwen3"):
        packaged_template_source("trl:qwen33")
    monkeypatch.setattr("posttrain.chat.template.importlib.util.find_spec", lambda name: None)
    with pytest.raises(RenderError, match=r"pip install 'posttrain\[train\]'"):
        packaged_template_source("trl:qwen3")
    assert packaged_template_source("hermes") == HERMES.source


def test_naming_a_family_loads_neither_torch_nor_trl():
    code = (
        "import sys; from posttrain.chat.template import packaged_template_source as source; "
        "source('trl:qwen3'); source('hermes'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'trl', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_generation_prompt_that_a_templates_switch_writes_is_known():
    """DeepSeek's switch is `thinking`; without it, this template writes a third prompt."""
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% if thinking is defined %}"
        "{{ '<think>' if thinking else '<think></think>' }}{% endif %}{% endif %}"
    )
    template = ChatTemplate(source, name="switched", special_tokens=("[end]",))
    prompts = profile_of(template).prompts
    assert {*prompts.after_user} == {
        "[assistant]",
        "[assistant]<think>",
        "[assistant]<think></think>",
    }
    assert writes_reasoning(template)
