"""Whatever the text: no error, spans inside it, the same verdict again, linear work."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.chat.detect import detect_calls

PIECES = [
    "<tool_call>", "</tool_call>", '{"name": "f_x", "arguments": {"a": 1}}', "{", "}", "[", "]", "(",
    ")", '"', "'", "`", "```", "```json\n", "\n", " ", "<function=f>", "</function>", "<parameter=a>",
    "</parameter>", '<invoke name="f">', "[TOOL_CALLS]", "<|python_tag|>", "print(1)", "Action: x",
    "\nAction Input: ", "functions.f(", "to=functions.f", "<|message|>", "<search>", "</search>",
    "<｜tool▁calls▁begin｜>", "<|tool_call|>", "f(x=1)", "tool_call: f\narguments: {}", "word", "漢",
    "<arg_key>", "✿FUNCTION✿", "\\", ":", ",", "...", "<name>", "example", "\ud800", "\x00",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=60
)
TOOLS = '[{"type":"function","function":{"name":"f_x","parameters":{"properties":{"a":{"type":"integer"}}}}}]'


@settings(max_examples=200, deadline=None, derandomize=True)
@given(reasoning=st.none() | TEXTS, answer=TEXTS, prompt=TEXTS, declared=st.booleans())
def test_it_never_fails_and_spans_lie_in_the_text(reasoning, answer, prompt, declared):
    tools = TOOLS if declared else None
    verdict = detect_calls(reasoning=reasoning, answer=answer, tools=tools, prompt=prompt)
    assert verdict == detect_calls(reasoning=reasoning, answer=answer, tools=tools, prompt=prompt)
    previous = {"reasoning": (0, 0), "answer": (0, 0)}
    for call in verdict.calls:
        text = {"reasoning": reasoning, "answer": answer}[call.part]
        assert 0 <= call.start < call.end <= len(text)
        assert text[call.start : call.end].startswith(call.text)
        before = previous[call.part]
        assert call.start >= before[1] or (call.start, call.end) == before
        previous[call.part] = (call.start, call.end)
        assert (call.kind == "undeclared") is not declared
    parts = [call.part for call in verdict.calls]
    assert parts == sorted(parts, reverse=True)


def steps(text: str) -> int:
    """Lines of Python run for a text: work that no clock measures."""
    count = 0

    def tracer(frame, event, argument):
        nonlocal count
        count += 1
        return tracer

    sys.settrace(tracer)
    try:
        detect_calls(reasoning=None, answer=text, tools=None)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", "<tool_call>\n", '<tool_call>{"a":"', "[TOOL_CALLS][", "\n[f(x=", "`<tool_call>` ",
     "<function=f>\n<parameter=x>\n", "</parameter>", '{"name":', "```\n", "to=f ", "<search>",
     "\nAction: x\n", "call f {\"", "web_search(\"", "<tool_call>name\n<arg_key>", "{", "(", "'\""],
)  # fmt: skip
def test_work_grows_with_the_text_and_no_faster(piece: str):
    size = 4_000
    small, large = steps((piece * size)[:size]), steps((piece * size * 4)[: size * 4])
    assert large < 6 * small + 20_000


def test_a_wrapper_around_what_never_parses_is_read_once():
    # quadratic reading would not come back from this
    for piece in ("{", "[[{", "f(", '{"name": "f", ', "<tool_call>\n"):
        text = f"<tool_call>{piece * (100_000 // len(piece))}</tool_call>"
        assert detect_calls(reasoning=None, answer=text, tools=None).any
