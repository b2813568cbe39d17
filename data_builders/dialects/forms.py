"""Messages as other services and libraries store them → messages in OpenAI's form.

Anthropic's content blocks, the items of OpenAI's Responses, Gemini's parts, LangChain's messages
and those of Vercel's AI SDK. Other messages pass as they are. One stored message can be several:
the calls of an assistant with their results inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from data_builders.dialects.reading import RowProblem, encoded

RawMessage = Mapping[str, Any]
# keys that no message in OpenAI's form has
_FOREIGN_KEYS = frozenset(
    {"toolInvocations", "parts", "additional_kwargs", "type", "channel", "recipient"}
)
_LANGCHAIN_ROLES = frozenset({"human", "ai", "system", "tool", "function", "developer"})
_RESPONSES_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
# types of messages that say who wrote them
AUTHOR_TYPES = _LANGCHAIN_ROLES | _RESPONSES_ITEMS


def in_openai_form(
    messages: Iterable[RawMessage], location: str
) -> Iterator[tuple[int, str, RawMessage]]:
    """Convert stored messages: (index of the stored one, its path, message in OpenAI's form).

    Raises:
        RowProblem: `malformed_message` or `malformed_tool_call`, a part or an item of such a form
            that is not read.
    """
    stored = list(messages)
    if any(type_of(item) in _RESPONSES_ITEMS and "role" not in item for item in stored):
        yield from _from_responses(stored, location)
        return
    for index, item in enumerate(stored):
        path = f"{location}[{index}]"
        for message in _convert_message(item, path):
            yield index, path, message


def _convert_message(item: RawMessage, path: str) -> Iterable[RawMessage]:
    """Convert a stored message to one or more in OpenAI's form."""
    content = item.get("content")
    if isinstance(content, list) and any(_is_part(part, "tool_result") for part in content):
        return _from_anthropic(item, content, path)
    if _FOREIGN_KEYS.isdisjoint(item):
        return (item,)
    _refuse_channel(item, path)
    if "additional_kwargs" in item or ("role" not in item and type_of(item) in _LANGCHAIN_ROLES):
        if not isinstance(item.get("additional_kwargs") or {}, Mapping):
            raise RowProblem("malformed_message", f"{path}.additional_kwargs", "is no object")
        return (_from_langchain(item),)
    parts = item.get("parts")
    if isinstance(parts, list) and parts:
        if any(isinstance(part, Mapping) and "type" in part for part in parts):
            return _from_vercel(item, parts, path)
        return _from_gemini(item, parts, path)
    if item.get("toolInvocations"):
        return _from_vercel(item, _list_vercel_parts(item), path)
    return (item,)


def type_of(item: RawMessage) -> str | None:
    """Type of a stored message; None where it has none, or one that is no text."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else None


def _is_part(part: Any, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind


def _refuse_channel(item: RawMessage, path: str) -> None:
    """Refuse a Harmony message that is no answer: its text would be trained as one."""
    channel = item.get("channel")
    recipient = item.get("recipient")
    if channel not in (None, "", "final") or recipient not in (None, "", "all", "user"):
        detail = (
            f"of Harmony's channel {channel!r} to {recipient!r}: write traces and calls in fields"
        )
        raise RowProblem("malformed_message", f"{path}.channel", detail)


def _stored_call(name: Any, arguments: Any, call_id: Any) -> dict[str, Any]:
    """Build a call as a flat object; `read_calls` checks its values."""
    return {"name": name, "arguments": arguments, "id": call_id}


def _without(item: RawMessage, *keys: str) -> dict[str, Any]:
    """Copy a stored message without some keys: the others are the same in OpenAI's form."""
    return {key: value for key, value in item.items() if key not in keys}


# -- Anthropic ------------------------------------------------------------------------------------


def _from_anthropic(item: RawMessage, parts: Sequence[Any], path: str) -> Iterator[RawMessage]:
    """Split a user's message that starts with results of tools: each becomes a message."""
    user_parts: list[Any] = []
    for index, part in enumerate(parts):
        if not _is_part(part, "tool_result"):
            user_parts.append(part)
            continue
        if user_parts:
            detail = "a tool's result after other parts"
            raise RowProblem("malformed_message", f"{path}.content[{index}]", detail)
        yield {
            "role": "tool",
            "content": part.get("content"),
            "tool_call_id": part.get("tool_use_id"),
        }
    if user_parts:
        yield {**item, "content": user_parts}


# -- OpenAI's Responses ----------------------------------------------------------------------------


def _from_responses(
    items: Sequence[RawMessage], location: str
) -> Iterator[tuple[int, str, RawMessage]]:
    """Join the items of a turn, which stores trace, text and calls apart, into one message."""
    turn: dict[str, Any] = {}  # the assistant's message so far
    start = 0  # index of its first item
    for index, item in enumerate(items):
        path = f"{location}[{index}]"
        kind = item.get("type", "message")
        if kind == "function_call_output":
            if turn:
                yield start, f"{location}[{start}]", turn
            turn = {}
            call_id = item.get("call_id")
            result = {"role": "tool", "content": item.get("output"), "tool_call_id": call_id}
            yield index, path, result
            continue
        role = "assistant" if kind in ("reasoning", "function_call") else item.get("role")
        if turn and (role != "assistant" or ("content" in turn and kind != "function_call")):
            yield start, f"{location}[{start}]", turn
            turn = {}
        if role != "assistant":
            yield index, path, _strip_responses_message(item)
            continue
        if not turn:
            start = index
        turn = {**turn, **_keys_of_responses_item(turn, item, kind, path)}
    if turn:
        yield start, f"{location}[{start}]", turn


def _keys_of_responses_item(
    turn: Mapping[str, Any], item: RawMessage, kind: Any, path: str
) -> dict[str, Any]:
    """Keys that one item adds to the assistant's message."""
    if kind == "reasoning":
        trace = _read_responses_trace(item, path)
        return {"role": "assistant"} | ({"reasoning": trace} if trace else {})
    if kind == "function_call":
        call = _stored_call(
            item.get("name"), item.get("arguments"), item.get("call_id", item.get("id"))
        )
        return {"role": "assistant", "tool_calls": [*turn.get("tool_calls", ()), call]}
    if kind == "message":
        return _strip_responses_message(item)
    raise RowProblem("malformed_message", path, f"an item of type {kind!r:.80} that is not read")


def _strip_responses_message(item: RawMessage) -> dict[str, Any]:
    """Strip a message of its type and id, and of a status that only says that it ended."""
    message = _without(item, "type", "id")
    if message.get("status") == "completed":
        del message["status"]
    return message


def _read_responses_trace(item: RawMessage, path: str) -> str:
    """Read a reasoning item's trace: its text, else its summary; empty where it is encrypted."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, str):
            return parts
        if isinstance(parts, list) and parts:
            values = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
            texts = [value for value in values if isinstance(value, str)]
            if len(texts) < len(values):
                raise RowProblem("malformed_message", f"{path}.{key}", f"not texts: {parts!r:.80}")
            return "\n".join(texts)
    return ""


# -- Gemini ----------------------------------------------------------------------------------------


def _from_gemini(item: RawMessage, parts: Sequence[Any], path: str) -> Iterator[RawMessage]:
    """Convert a message of `parts`: texts, thoughts, calls, or results of tools."""
    content: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[RawMessage] = []
    for index, part in enumerate(parts):
        stored = part if isinstance(part, Mapping) else {}
        call = stored.get("functionCall")
        result = stored.get("functionResponse")
        if isinstance(call, Mapping):
            calls.append(_stored_call(call.get("name"), call.get("args"), call.get("id")))
        elif isinstance(result, Mapping):
            text = encoded(result.get("response"), "malformed_message", f"{path}.parts[{index}]")
            results.append({"role": "tool", "content": text, "name": result.get("name")})
        else:
            content.append(part)
    yield from results
    if content or calls or not results:
        message = _without(item, "parts")
        if message.get("content"):
            raise RowProblem("malformed_message", f"{path}.parts", "parts beside a content")
        yield message | {"content": content} | ({"tool_calls": calls} if calls else {})


# -- LangChain -------------------------------------------------------------------------------------


def _from_langchain(item: RawMessage) -> RawMessage:
    """Convert a message whose type is its role; more keys stand in `additional_kwargs`."""
    message = _without(item, "additional_kwargs", "type")
    message.setdefault("role", item.get("type"))
    for key, value in (item.get("additional_kwargs") or {}).items():
        if key == "tool_calls" and message.get("tool_calls"):
            message["function_call"] = value  # the same calls once more: both are compared
        elif not message.get(key):
            message[key] = value
    return message


# -- Vercel's AI SDK -------------------------------------------------------------------------------


def _list_vercel_parts(item: RawMessage) -> list[Any]:
    """List the parts of a message of an older version: its content, then its calls."""
    parts: list[Any] = []
    if item.get("content"):
        parts.append({"type": "text", "text": item["content"]})
    for invocation in item["toolInvocations"]:
        parts.append({"type": "tool-invocation", "toolInvocation": invocation})
    return parts


def _from_vercel(item: RawMessage, parts: Sequence[Any], path: str) -> Iterator[RawMessage]:
    """Convert a message in steps: text, trace and calls of each, with results in the calls."""
    texts = [part["text"] for part in parts if _is_part(part, "text") and "text" in part]
    if item.get("content") and item["content"] != "".join(map(str, texts)):
        raise RowProblem("malformed_message", f"{path}.content", "not the text of its parts")
    shared = _without(item, "parts", "content", "toolInvocations")
    step: dict[str, list[Any]] = {"content": [], "tool_calls": []}
    results: list[RawMessage] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        invocation = _read_vercel_call(part, kind)
        if invocation is None and results:  # text after results begins the next step
            yield shared | step
            yield from results
            step = {"content": [], "tool_calls": []}
            results = []
        if kind == "step-start":
            continue
        if invocation is None:
            content = part
            if kind == "reasoning":
                content = {"type": "reasoning", "text": part.get("text", part.get("reasoning"))}
            step["content"].append(content)
            continue
        call, result = invocation
        step["tool_calls"].append(call)
        if result is not None:
            if not isinstance(result, str):
                result = encoded(result, "malformed_message", f"{path}.parts[{index}]")
            results.append({"role": "tool", "content": result, "tool_call_id": call["id"]})
    if step["content"] or step["tool_calls"]:
        yield shared | step
    yield from results


def _read_vercel_call(part: Any, kind: Any) -> tuple[dict[str, Any], Any] | None:
    """Read a part's call and its result (`None` without one); `None` for any other part."""
    if not isinstance(kind, str):
        return None
    if kind == "tool-invocation":
        stored = part.get("toolInvocation") or {}
        call = _stored_call(stored.get("toolName"), stored.get("args"), stored.get("toolCallId"))
        return call, stored.get("result")
    if kind == "dynamic-tool" or kind.startswith("tool-"):
        name = part.get("toolName") or kind.removeprefix("tool-")
        call = _stored_call(name, part.get("input"), part.get("toolCallId"))
        output = part.get("output")
        return call, part.get("errorText") if output is None else output
    return None
