"""Rows that hold a list of messages: OpenAI's, with or without inline reasoning, and ShareGPT's.

{"messages": [{"role": "user", "content": "2+2?"},
              {"role": "assistant", "reasoning_content": "…", "content": "4"}], "tools": […]}
{"messages": [{"role": "user", "content": "2+2?"},
              {"role": "assistant", "content": "<think>\\n2 and 2\\n</think>\\n\\n4"}]}
{"conversations": [{"from": "human", "value": "Weather in Oslo?"},
                   {"from": "function_call", "value": "{\\"name\\": \\"w\\", \\"arguments\\": {}}"},
                   {"from": "observation", "value": "rain"},
                   {"from": "gpt", "value": "It rains."}], "tools": "[…]", "system": "…"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_builders.dialects.calls import read_tools
from data_builders.dialects.content import read_text, refuse_media
from data_builders.dialects.loss_masks import refuse_row_masks
from data_builders.dialects.message import as_messages, read_messages
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem
from posttrain.records import Message

LIST_KEYS = ("messages", "conversations", "conversation")
_SYSTEM_KEYS = ("system", "system_prompt")
_TOOL_KEYS = ("tools", "functions")


def find_list(row: Row) -> tuple[str, list[Mapping[str, Any]]] | None:
    """The one field that holds a list of messages, with its list; `None` without one.

    Raises:
        RowProblem: `unrecognised`, two such fields, which may not say the same.
    """
    given = [(key, row[key]) for key in LIST_KEYS if row.get(key) is not None]
    found = [(key, listed) for key, value in given if (listed := as_messages(value))]
    if len(found) > 1:
        raise RowProblem("unrecognised", found[1][0], f"a second conversation beside {found[0][0]}")
    return found[0] if found else None


def read_list(row: Row, how: Reading, *, dialect: str, key: str) -> Conversation:
    """The conversation of a row whose messages carry their author under `key`."""
    found = find_list(row)
    if found is None:
        raise not_a(dialect, row, f"no list of messages under {', '.join(LIST_KEYS)}")
    where, listed = found
    if how.role is None and not all(item.get(key) is not None for item in listed):
        raise not_a(dialect, row, f"not every message of {where} has {key!r}")
    refuse_media(row)
    refuse_row_masks(row, how)
    messages = with_system(row, read_messages(listed, how, where))
    return Conversation(messages, declared_tools(row, listed))


def declared_tools(row: Row, listed: list[Mapping[str, Any]] | None = None) -> str | None:
    """The row's declared tools, else those that its system message carries."""
    for key in _TOOL_KEYS:
        if (tools := read_tools(row.get(key), key)) is not None:
            return tools
    first = listed[0] if listed else {}
    for key in _TOOL_KEYS:
        if (tools := read_tools(first.get(key), f"the first message's {key}")) is not None:
            return tools
    return None


def with_system(row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the row's own system text, unless they start with the same."""
    for key in _SYSTEM_KEYS:
        text = read_text(row.get(key), key)
        if not text.strip():
            continue
        if messages and messages[0].role == "system":
            if messages[0].content.strip() == text.strip():
                return messages
            raise RowProblem("malformed_message", key, "not the conversation's own system text")
        return (Message("system", text), *messages)
    return messages


def given_keys(row: Row, keys: tuple[str, ...]) -> list[str]:
    """Which of some alternative fields a row has; a `null` counts only where all of them are."""
    present = [key for key in keys if key in row]
    return [key for key in present if row[key] is not None] or present[:1]


def not_a(dialect: str, row: Row, why: str) -> RowProblem:
    """The problem of a row that does not have the shape of `dialect`."""
    # names come from the row: they may be many, or hold what no report can be written with
    names = ", ".join(map(str, row)).encode("utf-8", "backslashreplace").decode() or "(no field)"
    fields = names if len(names) <= 200 else names[:200] + " …"
    return RowProblem("unrecognised", fields, f"not {dialect}: {why}")


def openai(row: Row, how: Reading) -> Conversation:
    """Messages with `role` and `content`, under `messages` or `conversations`."""
    return read_list(row, how, dialect="openai", key="role")


def inline_think(row: Row, how: Reading) -> Conversation:
    """Messages with `role` and `content`; an assistant's content may start with its trace."""
    return read_list(row, how, dialect="inline_think", key="role")


def sharegpt(row: Row, how: Reading) -> Conversation:
    """Turns with `from` and `value`, under `conversations` or `messages`."""
    return read_list(row, how, dialect="sharegpt", key="from")
