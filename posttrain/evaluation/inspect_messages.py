"""Our messages ↔ inspect's, without loss where both have a word for it.

    to_inspect(Message("assistant", "56", reasoning="7*8"))
    → ChatMessageAssistant(content=[ContentReasoning("7*8"), ContentText("56")])

Only for the log and for tasks that were written for inspect: our own prompts reach the sampler as
they are (`inspect_model`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
)
from inspect_ai.tool import ToolCall as InspectCall
from inspect_ai.tool import ToolInfo

from posttrain.errors import DataError
from posttrain.jsontext import load_json
from posttrain.records import Message, ToolCall, json_text


def to_inspect(message: Message) -> ChatMessage:
    """One message as inspect has it."""
    if message.role == "system":
        return ChatMessageSystem(content=message.content)
    if message.role == "user":
        return ChatMessageUser(content=message.content)
    if message.role == "tool":
        return ChatMessageTool(
            content=message.content, tool_call_id=message.tool_call_id, function=message.name
        )
    content: str | list[Any] = message.content
    if message.reasoning is not None:
        content = [ContentReasoning(reasoning=message.reasoning), ContentText(text=message.content)]
    calls = [_to_inspect_call(i, call) for i, call in enumerate(message.tool_calls)]
    return ChatMessageAssistant(content=content, tool_calls=calls or None)


def from_inspect(message: ChatMessage) -> Message:
    """One message as we have it.

    Raises:
        DataError: content that is not text, such as an image.
    """
    text, reasoning = _texts(message)
    if isinstance(message, ChatMessageAssistant):
        calls = tuple(
            ToolCall(call.function, json_text(call.arguments), call.id)
            for call in message.tool_calls or ()
        )
        return Message("assistant", text, reasoning=reasoning, tool_calls=calls)
    if isinstance(message, ChatMessageTool):
        # what went wrong is the result that the model reads, as in our own loop
        shown = text if message.error is None else f"error: {message.error.message}"
        return Message("tool", shown, tool_call_id=message.tool_call_id, name=message.function)
    return Message(message.role, text)


def tools_text(tools: Sequence[ToolInfo]) -> str | None:
    """Inspect's tools as JSON text in OpenAI's shape; None where there are none."""
    if not tools:
        return None
    return json_text(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": json.loads(tool.parameters.model_dump_json(exclude_none=True)),
                },
            }
            for tool in tools
        ]
    )


def _to_inspect_call(position: int, call: ToolCall) -> InspectCall:
    name = call.id or f"call{position:05}"
    try:
        arguments = load_json(call.arguments)
        assert isinstance(arguments, dict), "arguments are an object"
    except (ValueError, AssertionError) as error:
        return InspectCall(
            id=name,
            function=call.name,
            arguments={},
            parse_error=f"{error}: {call.arguments[:200]}",
        )
    return InspectCall(id=name, function=call.name, arguments=arguments)


def _texts(message: ChatMessage) -> tuple[str, str | None]:
    """The text and the reasoning of a message."""
    if isinstance(message.content, str):
        return message.content, None
    other = {c.type for c in message.content} - {"text", "reasoning"}
    if other:
        raise DataError(f"a message holds {', '.join(sorted(other))}: only text can be rendered")
    text = "".join(c.text for c in message.content if isinstance(c, ContentText))
    traces = [c.reasoning for c in message.content if isinstance(c, ContentReasoning)]
    return text, "".join(traces) if traces else None
