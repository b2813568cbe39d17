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

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from data_builders.dialects.calls import read_tools
from data_builders.dialects.columns import SYSTEM_KEYS, TOOL_KEYS, refuse_lost, unread_columns
from data_builders.dialects.content import read_content
from data_builders.dialects.message import as_messages, read_messages
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem
from posttrain.records import Message

LIST_KEYS = ("messages", "conversations", "conversation")


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


def read_list(row: Row, reading: Reading, *, dialect: str, key: str) -> Conversation:
    """The conversation of a row whose messages carry their author under `key`."""
    found = find_list(row)
    if found is None:
        raise not_a(dialect, row, f"no list of messages under {', '.join(LIST_KEYS)}")
    where, listed = found
    if reading.role is None and not all(item.get(key) is not None for item in listed):
        raise not_a(dialect, row, f"not every message of {where} has {key!r}")
    return conversation(
        row,
        read_messages(listed, reading, where),
        reading,
        read=(where,),
        listed=listed,
        where=where,
    )


def conversation(
    row: Row,
    turns: tuple[Message, ...],
    reading: Reading,
    *,
    read: Collection[str],
    parts_of_prompt: Collection[str] = (),
    listed: Sequence[Mapping[str, Any]] = (),
    where: str = "",
) -> Conversation:
    """The turns of a row with its system text and tools, once nothing of the row is lost.

    Args:
        read: columns that the turns were read from.
        parts_of_prompt: columns that say a part of the prompt in rows of other dialects.
        listed: the raw messages, under `where`; they may declare tools.

    Raises:
        RowProblem: see `refuse_lost`, `with_system` and `declared_tools`.
    """
    messages = in_call_order(with_system(row, turns))
    tools = declared_tools(row, listed, where)
    unread = unread_columns(row, read, reading)
    parts = () if reading.maps else parts_of_prompt  # whoever maps columns knows the others
    refuse_lost(row, unread, messages, tools, reading, parts)
    return Conversation(messages, tools, unread)


def in_call_order(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Results of parallel calls in the order of the calls that they name, by id or else by name.

    Templates that write no ids tell results apart by their order alone.
    """
    ordered = list(messages)
    for index, message in enumerate(messages):
        if len(message.tool_calls) < 2:
            continue
        places = {key: n for n, c in enumerate(message.tool_calls) for key in (c.name, c.id) if key}
        stop = index + 1
        while stop < len(messages) and messages[stop].role == "tool":
            stop += 1
        results = messages[index + 1 : stop]
        keys = [places.get(r.tool_call_id or r.name or "") for r in results]
        if None not in keys and len(set(keys)) == len(keys):
            by_place = sorted(zip(keys, results, strict=True), key=lambda pair: pair[0] or 0)
            ordered[index + 1 : stop] = [result for _, result in by_place]
    return tuple(ordered)


def declared_tools(row: Row, listed: Sequence[Mapping[str, Any]], where: str) -> str | None:
    """The tools that a row declares, in a column of its own or in its first message.

    Raises:
        RowProblem: `malformed_tools`, also for two declarations that differ.
    """
    declared: str | None = None
    places = [(key, row[key], True) for key in TOOL_KEYS if row.get(key)]
    for index, item in enumerate(listed):
        for key in ("tools", "functions"):
            if item.get(key):
                places.append((f"{where}[{index}].{key}", item[key], index == 0))
    for place, value, declares in places:
        if (tools := read_tools(value, place)) is None:
            continue
        if declared is None and declares:
            declared = tools
        elif tools != declared:
            raise RowProblem("malformed_tools", place, "tools other than those declared before")
    return declared


def with_system(row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the row's own system text, unless they start with the same."""
    for key in SYSTEM_KEYS:
        if not (value := row.get(key)):
            continue
        text = read_content(value, "system", key).text
        if not text.strip():
            continue
        if not messages or messages[0].role != "system":
            messages = (Message("system", text), *messages)
        elif messages[0].content.strip() != text.strip():
            raise RowProblem("malformed_message", key, "not the conversation's own system text")
    return messages


def given_keys(row: Row, keys: tuple[str, ...]) -> list[str]:
    """Which of some alternative fields a row has; a `null` counts only where all of them are."""
    present = [key for key in keys if key in row]
    return [key for key in present if row[key] is not None] or present[:1]


def not_a(dialect: str, row: Row, why: str) -> RowProblem:
    """The problem of a row that does not have the shape of `dialect`."""
    names = ", ".join(map(str, row)) or "(no field)"
    fields = names if len(names) <= 200 else names[:200] + " …"
    return RowProblem("unrecognised", fields, f"not {dialect}: {why}")


# messages with `role` and `content`; an assistant's content may start with its trace
openai = partial(read_list, dialect="openai", key="role")
inline_think = partial(read_list, dialect="inline_think", key="role")
# turns with `from` and `value`
sharegpt = partial(read_list, dialect="sharegpt", key="from")
