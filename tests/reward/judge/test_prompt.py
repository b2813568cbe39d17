"""Judging prompts: what is shown, what is left out, and that no answer can leave its place."""

from __future__ import annotations

import jinja2
import pytest

from posttrain.chat import parse_completion
from posttrain.errors import ConfigError
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, Step
from reward.judge.prompt import (
    LAYOUTS,
    judging_messages,
    layout_for,
    shown_answer,
    verdict_text,
)
from reward.judge.verdict import Verdict, parse_verdict

HISTORY = (
    Message("system", "Be brief."),
    Message("user", "7*8?"),
    Message("assistant", "56.", reasoning="seven eights"),
    Message("user", "And 6*8?"),
)
CALL = ToolCall("add", '{"a":1}')
# what the frame of each layout consists of, and how often each piece is in a plain prompt
TEMPLATE = jinja2.Template(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def rendered(layout: str, *answers: str, history: tuple[Message, ...] = HISTORY, **given: str):
    messages = judging_messages(history, *answers, layout=layout, **given)
    return TEMPLATE.render(messages=messages) if layout == "roles" else messages[0].content


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_judge_sees_conversation_and_answers_and_no_reasoning(layout: str):
    text = rendered(layout, "It is 48.", "Forty-eight", principle="Short is good.")
    for shown in ("Be brief.", "7*8?", "56.", "And 6*8?", "It is 48.", "Forty-eight", "Short is"):
        assert text.count(shown) == 1
    assert "seven eights" not in text
    assert text.index("And 6*8?") < text.index("It is 48.") < text.index("Forty-eight")


def test_the_layouts():
    messages = judging_messages(HISTORY, "48", "49", layout="roles", principle="Be exact.")
    roles = ["system", "user", "assistant", "user", "principle", "response_1", "response_2"]
    assert [m.role for m in messages] == roles
    [compact] = judging_messages(HISTORY[3:], "56", "It is 54.", layout="compact")
    assert compact.content == "[U]And 6*8?\n[A1]56[/A1]\n[A2]It is 54.[/A2]\n[verdict]"


def test_traces_inside_a_turn_and_calls_are_told_apart():
    history = (
        Message("user", "1+?"),
        Message("assistant", "<think>\nhm\n</think>\nOne moment.", tool_calls=(CALL,)),
        Message("tool", "1"),
    )
    text = rendered("message", "a", "b", history=history)
    assert "hm" not in text
    shown = 'Assistant: One moment.\n{"call":"add","arguments":"{\\"a\\":1}"}\nTool: 1'
    assert shown in text


def test_what_is_shown_of_a_completion():
    def shown(text: str) -> str:
        step = Step(text, parse_completion(text, thinking=True), "stop", 1, 1, 1)
        return shown_answer(Completion("p", 0, (step,), "stop"))

    assert shown("hm</think>56<|im_end|>") == "56"
    assert shown("hm, cut") == ""
    assert shown_answer(Completion("p", 0, (), "failed", error="no answer")) == ""
    text = "hm</think>So:<tool_call>\n<function=add>\n</function>\n</tool_call>"
    assert shown(text) == 'So:\n{"call":"add","arguments":"{}"}'


def test_the_layout_follows_the_template():
    knows = "{% if m.role == 'response_1' %}…{% elif m.role == 'response_2' %}"
    assert layout_for("auto", knows) == "roles"
    assert layout_for("auto", "{% for m in messages %}") == "message"
    assert layout_for("compact", None) == "compact"
    with pytest.raises(ConfigError, match="hides its template"):
        layout_for("auto", None)
    assert layout_for("roles", None) == layout_for("roles", knows) == "roles"
    with pytest.raises(ConfigError, match="does not know the roles"):
        layout_for("roles", "{% for m in messages %}")
    with pytest.raises(ConfigError, match="'role' is none of auto, roles"):
        layout_for("role", None)


@pytest.mark.parametrize("verdict", [Verdict(4, 2, 1), Verdict(4.5, 2.25, 3.5)])
def test_a_verdict_is_read_as_it_is_written(verdict: Verdict):
    assert parse_verdict(verdict_text(verdict)) == verdict
    assert verdict_text(Verdict(4.0, 2.0, 1.0)) == '{"score_1":4,"score_2":2,"ranking":1}'
