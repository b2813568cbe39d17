"""Our messages ↔ inspect's, without loss where both have a word for it.

    to_inspect(Message("assistant", "56", reasoning="7*8"))
    → ChatMessageAssistant(content=[ContentReasoning("7*8"), ContentText("56")])

For the log and for tasks that were written for inspect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall as InspectCall
from inspect_ai.tool import ToolInfo

from posttrain.errors import DataError
from posttrain.jsontext import load_json
from posttrain.records import Message, ToolCall, json_text
from posttrain.rollouts import Step


def to_inspect(message: Message) -> ChatMessage:
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


def to_output(step: Step, model: str, *, prompt_ids: Sequence[int] | None = None) -> ModelOutput:
    """One turn of a model, with its text and token ids as metadata."""
    message = to_inspect(step.parsed.message())
    assert isinstance(message, ChatMessageAssistant)
    message.model = model
    if step.finish == "length":
        stop_reason = "max_tokens"
    else:
        stop_reason = "tool_calls" if step.parsed.tool_calls else "stop"
    written = step.reasoning_tokens + step.answer_tokens if step.ids is None else len(step.ids)
    return ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=message, stop_reason=stop_reason)],
        usage=ModelUsage(
            input_tokens=step.prompt_tokens,
            output_tokens=written,
            total_tokens=step.prompt_tokens + written,
            reasoning_tokens=step.reasoning_tokens,
        ),
        metadata={
            "text": step.text,
            "ids": step.ids,
            "forced": step.forced,
            "prompt_ids": prompt_ids,
        },
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
    if isinstance(message.content, str):
        return message.content, None
    other = {c.type for c in message.content} - {"text", "reasoning"}
    if other:
        raise DataError(f"a message holds {', '.join(sorted(other))}: only text can be rendered")
    text = "".join(c.text for c in message.content if isinstance(c, ContentText))
    traces = [c.reasoning for c in message.content if isinstance(c, ContentReasoning)]
    return text, "".join(traces) if traces else None
