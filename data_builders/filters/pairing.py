"""Structural check on tool results: each answers one call of the turn before, and all are answered.

assistant(calls a, b) · tool(a) · assistant  → Drop("unpaired_tool_result", "message 0: call b …")

A result names its call by id; without an id it answers the calls in their order, and if it has a
name, that must be the call's. Calls of the *last* turn may stay open: a record may end on a call.
"""

from __future__ import annotations

from data_builders.filters.drop import Drop
from posttrain.records import Example, Message, ToolCall

REASON = "unpaired_tool_result"


def unpaired_tool_result(example: Example) -> Drop | None:
    """A result without its call, or a call that the conversation goes on without answering."""
    open_calls: list[ToolCall] = []
    asked_by = -1
    for index, message in enumerate(example.messages):
        if message.role == "tool":
            call = _answered(message, open_calls)
            if call is None:
                return Drop(REASON, f"message {index}: answers no open call")
            open_calls.remove(call)
            continue
        if open_calls:
            return Drop(REASON, f"message {asked_by}: call of {open_calls[0].name!r} unanswered")
        open_calls, asked_by = list(message.tool_calls), index
    if open_calls and example.messages[-1].role == "tool":
        return Drop(REASON, f"message {asked_by}: call of {open_calls[0].name!r} unanswered")
    return None


def _answered(result: Message, open_calls: list[ToolCall]) -> ToolCall | None:
    """The open call that a result answers."""
    for call in open_calls:
        if result.tool_call_id is not None and call.id is not None:
            if call.id == result.tool_call_id:
                return call
        elif result.name is None or call.name == result.name:
            return call
    return None
