"""A message's content, plain or in parts → its text, its reasoning and its calls.

[{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "4"}] → Content("4", "…", ())

A part's text also stands under `value` (LLaMA-Factory), or under `text.value` (OpenAI Assistants).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from data_builders.dialects.calls import read_calls
from data_builders.dialects.columns import refuse_media
from data_builders.dialects.reading import RowProblem, encoded
from posttrain.records import Role, ToolCall

_TEXT_PARTS = ("text", "input_text", "output_text")
_TRACE_PARTS = ("thinking", "reasoning")
_CALL_PARTS = ("tool_call", "tool_calls")
_MEDIA = ("image", "audio", "video", "file", "document")


class Content(NamedTuple):
    """What one message's content holds; `trace` is `None` without a part that reasons."""

    text: str
    trace: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read_content(value: Any, role: Role | str, where: str) -> Content:
    """Text, parts, one part, nothing (the empty text) or a number (its JSON text).

    A tool's result may be any JSON value: what is not text or text parts is kept as JSON text.

    Raises:
        RowProblem: `unsupported_content` for media, `malformed_message` for any other part that is
            not read or lacks its text.
    """
    if isinstance(value, Mapping) and (
        _is_text_part(value) or (role != "tool" and "type" in value)
    ):
        return _join([value], where)  # MCP's single part
    if isinstance(value, list) and (role != "tool" or any(map(_is_text_part, value))):
        return _join(value, where)
    if role == "tool" and not isinstance(value, str) and value is not None:
        return Content(encoded(value, "malformed_message", where))
    return Content(read_text(value, where))


def read_text(value: Any, where: str) -> str:
    """Text, a number as text, or nothing as the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return encoded(value, "malformed_message", where)
    raise RowProblem("malformed_message", where, f"expected text, found {value!r:.80}")


def _is_text_part(item: Any) -> bool:
    return isinstance(item, Mapping) and _kind(item) in _TEXT_PARTS


def _kind(part: Mapping[str, Any]) -> Any:
    return part.get("type", "text" if set(part) == {"text"} else None)


def _text_of(part: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    """A part's text under the first of `keys` that it fills, also as OpenAI Assistants' object."""
    given = [value for key in keys if (value := part.get(key)) is not None]
    value = next((value for value in given if value), given[0] if given else None)
    text = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        return text
    # read as empty, whole prompts would be gone
    raise RowProblem("malformed_message", where, f"a content part without its text: {part!r:.80}")


def _join(parts: list[Any], where: str) -> Content:
    texts: list[str] = []
    traces: list[str] = []
    calls: tuple[ToolCall, ...] = ()
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RowProblem("malformed_message", at, f"a content part is {part!r:.80}")
        refuse_media(part, f"{at}.")
        kind = _kind(part)
        if kind in _TEXT_PARTS:
            texts.append(_text_of(part, ("text", "value"), at))
        elif kind in _TRACE_PARTS:
            traces.append(_text_of(part, (kind, "text", "value"), at))
        elif kind in _CALL_PARTS:
            calls += read_calls(part.get("value", part.get(kind)), at)
        else:
            media = isinstance(kind, str) and any(word in kind for word in _MEDIA)
            reason = "unsupported_content" if media else "malformed_message"
            raise RowProblem(reason, at, f"a content part that is not read: {part!r:.80}")
    return Content("".join(texts), "\n".join(traces) or None, calls)
