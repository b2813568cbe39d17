"""Whole completions: which step, which part, raw text before parsed."""

from __future__ import annotations

from posttrain.chat.detect import detect_in_completion, searched
from posttrain.chat.parse import parse_completion
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, ParsedCompletion, Prompt, Step

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def prompt(*questions: str) -> Prompt:
    turns = [Message("user", "Old question"), Message("assistant", "x"), Message("user", "1+1?")]
    asked = [Message("user", question) for question in questions]
    return Prompt(id="p", task="t", setting="no_tools", messages=tuple(asked or turns))


def step(text: str, *, thinking: bool = False, ids: bool = True) -> Step:
    parsed = parse_completion(text, thinking=thinking)
    return Step(text, parsed, "stop", 1, 1, 1, ids=(1, 2) if ids else None)


def detected(*steps: Step, questions: tuple[str, ...] = ()):
    return detect_in_completion(Completion("p", 0, steps, "stop"), prompt(*questions)).calls


def test_raw_text_is_cut_at_the_end_of_the_reasoning():
    one = step(f"Hm.\n{CALL}\n</think>\n2<|im_end|>", thinking=True)
    two = step(f"So.\n</think>\nLet me.\n{CALL}<|im_end|>", thinking=True)
    calls = detected(one, two)
    assert [(c.step, c.part, c.name) for c in calls] == [
        (0, "reasoning", "add"), (1, "answer", "add"),
    ]  # fmt: skip
    for call, held in zip(calls, (one, two), strict=True):
        text = dict(zip(("reasoning", "answer"), searched(held), strict=True))[call.part]
        assert text[call.start : call.end] == call.text == CALL
    # a trace that never closes is all reasoning
    assert [c.part for c in detected(step(f"Hm.\n{CALL}", thinking=True))] == ["reasoning"]


def test_raw_text_shows_malformed_calls_and_parsed_ones_are_structured():
    [call] = detected(step("<tool_call>\n<function=add>\n<par<|im_end|>"))
    assert (call.name, call.kind) == ("add", "undeclared")
    [call] = detected(step(f"Sure.\n{CALL}<|im_end|>", ids=False))
    assert (call.form, call.name) == ("structured", "add")
    # one that only the parser saw is not lost
    parsed = ParsedCompletion(None, "Sure.", (ToolCall("add", "{}"),), (), True)
    [call] = detected(Step("Sure.", parsed, "stop", 0, 1, 1, ids=(1,)))
    assert (call.form, call.name) == ("structured", "add")


def test_only_the_last_user_message_is_the_question():
    held, about = step(CALL + "<|im_end|>"), "Show me an example of a Hermes tool call."
    assert detected(held, questions=(about, "Thanks. What is 1+1?"))
    assert not detected(held, questions=(about,))


def test_a_failed_completion_calls_nothing():
    assert detect_in_completion(Completion("p", 0, (), "failed"), prompt()).calls == ()
