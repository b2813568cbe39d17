"""A model's completion → reasoning, answer and typed tool calls; what is malformed gets a name.

    parse_completion("2+2 is 4.\\n</think>\\n4<|im_end|>\\n", thinking=True)
    → ParsedCompletion(reasoning="2+2 is 4.", answer="4", tool_calls=(), problems=(), finished=True)

This inverts rendering: the parsed message, rendered after the same prompt, gives the same text.
Whatever cannot be inverted stays in `answer` verbatim and is named in `problems`. An argument's
text that holds `\\n</parameter>` cannot be told from the end of one; no other text is ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posttrain.chat.calls import CALL_OPEN, parse_calls
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.records import Message, ToolCall

Problem = Literal[
    "unclosed_think",  # the trace never closed: there is no answer
    "two_closings",  # a second </think>
    "unexpected_think",  # a think tag where reasoning is off, or a second <think>
    "half_call",  # a call that was opened and not completed
    "malformed_call",  # a complete <tool_call> block that is no call
    "argument_type",  # an argument that is not of its declared type, kept as text
    "text_after_call",  # text behind a call, which the format forbids
    "text_after_end",  # text behind the end token, kept in `after_end`
]


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """One completion, taken apart.

    `reasoning` is `None` with thinking off; `finished` says whether the end token was there.
    """

    reasoning: str | None
    answer: str
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[Problem, ...]
    finished: bool
    after_end: str = ""

    def message(self) -> Message:
        """The assistant message this completion is."""
        return Message(
            "assistant", self.answer, reasoning=self.reasoning, tool_calls=self.tool_calls
        )


def parse_completion(
    text: str,
    *,
    thinking: bool,
    tools: str | None = None,
    end_tokens: tuple[str, ...] = ("<|im_end|>",),
) -> ParsedCompletion:
    """Take a completion apart.

    Args:
        text: what the model wrote after the generation prompt, special tokens kept.
        thinking: whether the prompt left reasoning open (it ended in `<think>`, or the template
            lets the model open it itself).
        tools: JSON text of the declared tools; their schemas type the arguments of XML calls.
            Without them, arguments that are JSON objects or arrays are read as such and all others
            stay text.
        end_tokens: any of these ends the turn.
    """
    problems: list[Problem] = []
    body, finished, after_end = _cut_at_end(text, end_tokens, problems)
    reasoning, rest = _split_reasoning(body, thinking, problems)
    if CALL_OPEN not in rest:
        return ParsedCompletion(reasoning, rest, (), tuple(problems), finished, after_end)
    answer, _, tail = rest.partition(CALL_OPEN)
    calls, leftover, call_problems = parse_calls(CALL_OPEN + tail, tools)
    problems.extend(call_problems)
    # what is no call is kept verbatim: nothing of a completion is lost
    answer = answer + leftover if leftover else answer.removesuffix("\n")
    named = tuple(dict.fromkeys(problems))
    return ParsedCompletion(reasoning, answer, calls, named, finished, after_end)


def _cut_at_end(
    text: str, end_tokens: tuple[str, ...], problems: list[Problem]
) -> tuple[str, bool, str]:
    """The turn, whether it ended, and what else was written."""
    found = [(at, token) for token in end_tokens if (at := text.find(token)) >= 0]
    if not found:
        return text, False, ""
    at, token = min(found)
    behind = text[at + len(token) :]
    if not behind.strip():
        return text[:at], True, ""
    problems.append("text_after_end")
    return text[:at], True, behind


def _split_reasoning(body: str, thinking: bool, problems: list[Problem]) -> tuple[str | None, str]:
    if not thinking:
        if OPEN in body or CLOSE in body:
            problems.append("unexpected_think")
        return None, body
    trace_and_rest = body
    if body.lstrip().startswith(OPEN):  # the template left opening to the model
        trace_and_rest = body.lstrip().removeprefix(OPEN).removeprefix("\n")
    trace, closing, rest = trace_and_rest.partition(CLOSE)
    if OPEN in trace or OPEN in rest:
        problems.append("unexpected_think")
    if not closing:
        problems.append("unclosed_think")
        return trace, ""
    if CLOSE in rest:
        problems.append("two_closings")
    return trace.removesuffix("\n"), rest.removeprefix("\n")
