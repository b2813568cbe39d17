"""Structural checks on tool use: every call declared, well-formed by its schema, and answered.

unknown_tool(Example: … calls "get_wether") → Drop("unknown_tool", "message 2 calls 'get_wether' …")
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from data_builders.filters.drop import Drop
from data_builders.filters.schemas import UNUSABLE, declared, validator, violation
from posttrain.records import Example, ToolCall

MARKUP = "<tool_call>"
_CALL_AS_TEXT = re.compile(r"<tool_call>\s*(?:\{|<function=)")
_DECLARATION = "# Tools"


def undeclared_tools(example: Example) -> Drop | None:
    """Tool calls in a record that declares no tool at all."""
    if example.tools is None:
        for index, call in _calls(example):
            return Drop("undeclared_tools", f"message {index} calls {call.name!r}")
    return None


def unknown_tool(example: Example) -> Drop | None:
    """A call to a tool that is not among those declared."""
    if example.tools is None:
        return None
    tools = declared(example.tools)
    for index, call in _calls(example):
        if call.name not in tools:
            close = difflib.get_close_matches(call.name, tools, n=1)
            hint = f" (declared: {close[0]!r})" if close else ""
            return Drop("unknown_tool", f"message {index} calls {call.name!r}{hint}")
    return None


def unusable_schema(example: Example) -> Drop | None:
    """A called tool whose schema is not a JSON Schema; tools that nobody calls may have any."""
    return _check_arguments(example, "unusable_schema")


def bad_arguments(example: Example) -> Drop | None:
    """Arguments that fail the schema their tool declares."""
    return _check_arguments(example, "bad_arguments")


def tool_markup(example: Example) -> Drop | None:
    """Tool calls written as text: where no tool is declared (NVIDIA's check), or beside tools.

    A template writes declared tools with instructions for its own notation of calls; an answer
    that spells out another would contradict them.
    """
    if any(_DECLARATION in m.content for m in example.messages):
        return None
    for index, message in enumerate(example.messages):
        if example.tools is not None:
            if message.role == "assistant" and _CALL_AS_TEXT.search(message.content):
                detail = f"writes a {MARKUP} as text beside declared tools, not in tool_calls"
                return Drop("tool_markup", f"message {index} {detail}")
        elif MARKUP in message.content or MARKUP in (message.reasoning or ""):
            return Drop("tool_markup", f"message {index} contains {MARKUP}, no tool is declared")
    return None


def _calls(example: Example) -> Iterator[tuple[int, ToolCall]]:
    for index, message in enumerate(example.messages):
        for call in message.tool_calls:
            yield index, call


def _check_arguments(example: Example, reason: str) -> Drop | None:
    """The first call for which `reason`, one of the two, holds."""
    tools = declared(example.tools) if example.tools is not None else {}
    for index, call in _calls(example):
        if call.name not in tools:
            continue  # other filters name it
        checker = validator(tools[call.name])
        unusable, problem = (checker, None) if isinstance(checker, str) else (None, None)
        if not isinstance(checker, str):
            try:
                problem = violation(checker, json.loads(call.arguments))
            except UNUSABLE as error:
                unusable = str(error)
        detail = unusable if reason == "unusable_schema" else problem
        if detail is not None:
            return Drop(reason, f"message {index}, call of {call.name!r}: {detail}")
    return None
