"""Structural checks on the turns of a conversation: their order, their text.

role_order(Example: user, user, assistant) → Drop("role_order", "message 1: user after user")
"""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.filters.drop import Drop
from posttrain.records import Example

_AFTER = {
    # a turn → the turns that may stand right before it ("" is the start)
    "system": ("",),
    "user": ("", "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def role_order(example: Example) -> Drop | None:
    """A system turn first if at all, then a user; answers after questions, results after calls."""
    before = ""
    for index, message in enumerate(example.messages):
        if before not in _AFTER[message.role]:
            place = f"after {before}" if before else "first"
            return Drop("role_order", f"message {index}: {message.role} {place}")
        before = message.role
    return None


def empty_answer(example: Example) -> Drop | None:
    """An assistant turn with neither text nor calls; a trace alone is no answer."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant" and not message.tool_calls and not message.content.strip():
            detail = "a trace without an answer" if message.reasons else "no text and no call"
            return Drop("empty_answer", f"message {index}: {detail}")
    return None


def bad_unicode(example: Example) -> Drop | None:
    """Text with half a surrogate pair: no tokenizer or file can hold it."""
    for place, text in _texts(example):
        try:
            if text is not None and not text.isascii():  # which costs nothing to know
                text.encode("utf-8")
        except UnicodeEncodeError as error:
            where = place if isinstance(place, str) else f"message {place}"
            return Drop("bad_unicode", f"{where}: {error.reason} at character {error.start}")
    return None


def _texts(example: Example) -> Iterator[tuple[int | str, str | None]]:
    """All text of a record, with its message's index or another place."""
    for index, message in enumerate(example.messages):
        yield index, message.content
        yield index, message.reasoning
        yield index, message.tool_call_id
        yield index, message.name
        for call in message.tool_calls:
            yield index, f"{call.name}{call.arguments}{call.id}"
    yield "tools", example.tools
    yield "metadata", example.metadata
    yield "license", example.license
