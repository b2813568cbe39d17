"""A message's content, plain or in parts → its text and, if a part is a trace, its reasoning.

[{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "4"}] → ("4", "…")

A part's text also stands under `value` (LLaMA-Factory), or under `text.value` (OpenAI Assistants).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_builders.dialects.reading import RowProblem
from posttrain.jsontext import encode_json
from posttrain.records import Role

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_TRACE_PARTS = frozenset({"thinking", "reasoning"})
MEDIA_FIELDS = ("images", "image", "videos", "video", "audios", "audio")


def read_content(value: Any, role: Role, where: str) -> tuple[str, str | None]:
    """(text, trace or `None`). Nothing reads as the empty text, a number as its JSON text.

    A tool's result may be any JSON value: what is not text or text parts is kept as JSON text.

    Raises:
        RowProblem: `unsupported_content` for parts that are not text, `malformed_message`, also
            for a part without its text.
    """
    if isinstance(value, list) and (role != "tool" or (value and all(map(_is_part, value)))):
        return _join(value, where)
    if role == "tool" and not isinstance(value, str) and value is not None:
        try:
            return encode_json(value), None
        except ValueError as error:
            raise RowProblem("malformed_message", where, str(error)) from None
    return read_text(value, where), None


def read_text(value: Any, where: str) -> str:
    """Text, a number as text, or nothing as the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return encode_json(value)
        except ValueError as error:
            raise RowProblem("malformed_message", where, str(error)) from None
    raise RowProblem("malformed_message", where, f"expected text, found {value!r:.80}")


def refuse_media(row: Mapping[str, Any], where: str = "") -> None:
    """Rows, messages (at `where`) and parts with pictures or sound say less without them."""
    for name in MEDIA_FIELDS:
        if row.get(name):
            raise RowProblem("unsupported_content", where + name, "it comes with media; text only")


def _is_part(item: Any) -> bool:
    return isinstance(item, Mapping) and _kind(item) in _TEXT_PARTS


def _kind(part: Mapping[str, Any]) -> str | None:
    kind = part.get("type", "text" if set(part) == {"text"} else None)
    return kind if isinstance(kind, str) else None


def _text_of(part: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    """A part's text under the first of `keys` that it fills, also as OpenAI Assistants' object."""
    given = [value for key in keys if (value := part.get(key)) is not None]
    value = next((value for value in given if value), given[0] if given else None)
    text = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        return text
    # read as empty, whole prompts would be gone
    raise RowProblem("malformed_message", where, f"a content part without its text: {part!r:.80}")


def _join(parts: list[Any], where: str) -> tuple[str, str | None]:
    texts: list[str] = []
    traces: list[str] = []
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RowProblem("malformed_message", at, f"a content part is {part!r:.80}")
        kind = _kind(part)
        if kind in _TEXT_PARTS:
            texts.append(_text_of(part, ("text", "value"), at))
        elif kind is not None and kind in _TRACE_PARTS:
            traces.append(_text_of(part, (kind, "text", "value"), at))
        else:
            raise RowProblem("unsupported_content", at, f"a content part of type {kind!r:.40}")
    return "".join(texts), "\n".join(traces) or None
