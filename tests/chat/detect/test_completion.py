"""Whole completions: which step, which part, raw text before parsed."""

from __future__ import annotations

from posttrain.chat import parse_completion
from posttrain.chat.detect import detect_in_completion, searched
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, Prompt, Step

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def prompt(**fields: object) -> Prompt:
    messages = (Message("user", "Old question"), Message("assistant", "x"), Message("user", "1+1?"))
    return Prompt(id="p", task="t", setting="no_tools", messages=messages, **fields)


def step(text: str, *, thinking: bool, ids: bool = True) -> Step:
    parsed = parse_completion(text, thinking=thinking)
    return Step(text, parsed, "stop", 1, 1, 1, ids=(1, 2) if ids else None)


def completion(*steps: Step) -> Completion:
    return Completion("p", 0, steps, "stop")


def test_raw_text_is_cut_at_the_end_of_the_reasoning():
    one = step(f"Hm.\n{CALL}\n</think>\n2<|im_end|>", thinking=True)
    two = step(f"So.\n</think>\nLet me.\n{CALL}<|im_end|>", thinking=True)
    verdict = detect_in_completion(completion(one, two), prompt())
    assert [(c.step, c.part, c.name) for c in verdict.calls] == [
        (0, "reasoning", "add"),
        (1, "answer", "add"),
    ]
    for call, held in zip(verdict.calls, (one, two), strict=True):
        trace, answer = searched(held)
        text = {"reasoning": trace, "answer": answer}[call.part]
        assert text is not None
        assert text[call.start : call.end] == call.text == CALL


def test_reasoning_that_never_closes_is_all_reasoning():
    verdict = detect_in_completion(completion(step(f"Hm.\n{CALL}", thinking=True)), prompt())
    assert [c.part for c in verdict.calls] == ["reasoning"]


def test_a_malformed_call_is_seen_in_the_raw_text():
    verdict = detect_in_completion(
        completion(step("<tool_call>\n<function=add>\n<par<|im_end|>", thinking=False)), prompt()
    )
    assert [(c.name, c.kind) for c in verdict.calls] == [("add", "undeclared")]


def test_without_ids_the_parsed_calls_are_structured():
    verdict = detect_in_completion(
        completion(step(f"Sure.\n{CALL}<|im_end|>", thinking=False, ids=False)), prompt()
    )
    assert [(c.form, c.name) for c in verdict.calls] == [("structured", "add")]


def test_a_call_that_only_the_parser_saw_is_not_lost():
    parsed = parse_completion("Sure.", thinking=False)
    calls = (ToolCall("add", "{}"),)
    held = Step("Sure.", type(parsed)(None, "Sure.", calls, (), True), "stop", 0, 1, 1, ids=(1,))
    verdict = detect_in_completion(completion(held), prompt())
    assert [(c.form, c.name) for c in verdict.calls] == [("structured", "add")]


def test_only_the_last_user_message_is_the_question():
    messages = (Message("user", "Show me an example of a Hermes tool call."), Message("assistant", "…"),
                Message("user", "Thanks. What is 1+1?"))  # fmt: skip
    requested = Prompt(id="p", task="t", setting="no_tools", messages=messages)
    held = completion(step(CALL + "<|im_end|>", thinking=False))
    assert detect_in_completion(held, requested).any
    requested = Prompt(id="p", task="t", setting="no_tools", messages=messages[:1])
    assert not detect_in_completion(held, requested).any


def test_a_failed_completion_calls_nothing():
    assert detect_in_completion(Completion("p", 0, (), "failed"), prompt()).calls == ()
