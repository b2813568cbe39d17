"""Messages of any dialect → `Message`s, and with a row's system text and tools a `Conversation`."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from data_builders.dialects.columns import (
    SYSTEM_KEYS,
    TOOL_KEYS,
    kind_of,
    refuse_lost,
    refuse_lost_in_message,
    refuse_media,
    trained_by_masks,
    unread_columns,
)
from data_builders.dialects.content import read_calls, read_content, read_id, read_tools
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem
from posttrain.chat.reasoning import CLOSE, OPEN, has_tags, split_think
from posttrain.jsontext import load_json
from posttrain.records import Message, Role, ToolCall

LIST_KEYS = ("messages", "conversations", "conversation")
CALL_TURNS = frozenset({"function_call", "function-call", "tool_call", "tool_calls"})
ROLE_NAMES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "bard": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "tool_response": "tool",
    "function_response": "tool", "function-response": "tool", "ipython": "tool",
    "environment": "tool",
}  # fmt: skip
_ELSEWHERE = ("parts", "text", "output", "output_text", "result", "structuredContent", "refusal")
_CALL_ID_KEYS = ("tool_call_id", "call_id", "tool_use_id")


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


def find_list(row: Row) -> tuple[str, list[Mapping[str, Any]]] | None:
    """The one field that holds a list of messages, with its list; `None` without one.

    Raises:
        RowProblem: `unrecognised`, two such fields, which may not say the same.
    """
    found = [(key, listed) for key in LIST_KEYS if (listed := as_messages(row.get(key)))]
    if len(found) > 1:
        raise RowProblem("unrecognised", found[1][0], f"a second conversation beside {found[0][0]}")
    return found[0] if found else None


def as_messages(value: Any) -> list[Mapping[str, Any]] | None:
    """A list of message objects from a list, its JSON text or equally long columns; or `None`.

    Columns (`{"from": […], "value": […]}`) are what older `datasets` made of a list of objects.
    """
    if value is None:  # most rows have one list, and are asked for three
        return None
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            return None
    if not isinstance(value, list) and isinstance(value, Mapping):
        lengths = {len(column) if isinstance(column, list) else -1 for column in value.values()}
        if len(lengths) != 1 or -1 in lengths:
            return None
        rows = zip(*value.values(), strict=True)
        value = [dict(zip(value, cells, strict=True)) for cells in rows]
    if not isinstance(value, list) or not value:
        return None
    # a plain dict first: asking whether something is a Mapping is slow
    return value if all(type(i) is dict or isinstance(i, Mapping) for i in value) else None


def read_messages(
    raw: Iterable[Mapping[str, Any]], reading: Reading, where: str, *, prompt: bool = False
) -> tuple[Message, ...]:
    """All messages; a turn that only calls joins the assistant turn right before it.

    Args:
        prompt: an answer follows, so that none of these need be trained.

    Raises:
        RowProblem: `untrained_turn`, every answer has a loss mask.
    """
    messages: list[Message] = []
    masked: str | None = None
    for index, item in enumerate(raw):
        at = f"{where}[{index}]"
        message, is_call_turn = _read(item, reading, at)
        before = messages[-1] if messages else None
        if not message.trained:
            masked = next(f"{at}.{key}" for key in item if kind_of(key) == "mask")
        if (
            is_call_turn
            and before is not None
            and before.role == "assistant"
            and message.reasoning is None
            and message.trained == before.trained
        ):
            messages[-1] = replace(before, tool_calls=before.tool_calls + message.tool_calls)
        else:
            messages.append(message)
    if masked and not prompt and not any(m.role == "assistant" and m.trained for m in messages):
        raise RowProblem("untrained_turn", masked, "a loss mask leaves no answer to train")
    return tuple(messages)


def assistant_text(text: str, reading: Reading, *, reasoning: str | None = None) -> Message:
    """An assistant message from plain text, inline reasoning split off."""
    return _assistant(text, reasoning, (), reading, "the answer")


def role_of(raw: Mapping[str, Any], reading: Reading) -> Any:
    """The raw role of a message, `None` if it has none."""
    return _first_of(raw, (reading.role,) if reading.role else ("role", "from"))


def content_of(raw: Mapping[str, Any], reading: Reading) -> Any:
    """The raw content of a message, `None` if it has none."""
    return _first_of(raw, (reading.content,) if reading.content else ("content", "value"))


def _first_of(raw: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:  # asked of every message several times: no generator
        if (value := raw.get(key)) is not None:
            return value
    return None


def _read(raw: Mapping[str, Any], reading: Reading, where: str) -> tuple[Message, bool]:
    """A message, and whether it is a turn that only calls."""
    name = role_of(raw, reading)
    if not isinstance(name, str):
        raise RowProblem("malformed_message", where, f"its role is {name!r:.80}")
    if name not in reading.roles and name.lower() in CALL_TURNS:
        return _call_turn(raw, reading, where), True
    role = reading.roles.get(name) or ROLE_NAMES.get(name.lower())
    if role is None:
        raise RowProblem("unknown_role", where, f"role {name!r:.80}; map it under roles:")
    refuse_media(raw, f"{where}.")
    content = content_of(raw, reading)
    if not content and content != 0:
        _refuse_elsewhere(raw, reading, where)
    if content is None and role == "user":
        raise RowProblem("malformed_message", where, "a user turn without content")
    text, trace, parts = read_content(content, role, f"{where}.content")
    reasoning = reasoning_of(raw, trace, reading.keys_of_reasoning, where)
    calls = _one_of(parts, _calls(raw, where), where)
    if role == "assistant":
        message = _assistant(text, reasoning, calls, reading, where)
        return _with_mask(message, raw, content, reading, where), False
    if calls or reasoning:
        what = "calls tools" if calls else "reasons"
        raise RowProblem("malformed_message", where, f"a {role} turn that {what}")
    if role == "tool":
        call_id = read_id(_first_of(raw, _CALL_ID_KEYS), f"{where}.tool_call_id")
        answered = read_id(raw.get("name"), f"{where}.name")
        return Message(role, text, tool_call_id=call_id, name=answered), False
    return Message(role, text), False


def _refuse_elsewhere(raw: Mapping[str, Any], reading: Reading, where: str) -> None:
    """A message whose text stands under a key that is not read is not empty."""
    for key in _ELSEWHERE:
        if raw.get(key) and key not in (reading.role, reading.content, reading.reasoning):
            what = f"no content, but {raw[key]!r:.60}: map it under fields.content"
            raise RowProblem("malformed_message", f"{where}.{key}", what)


def _calls(raw: Mapping[str, Any], where: str) -> tuple[ToolCall, ...]:
    """The calls of a turn, under `tool_calls` or the older `function_call`."""
    given, given_older = raw.get("tool_calls"), raw.get("function_call")
    if given is None and given_older is None:
        return ()
    older = read_calls(given_older, f"{where}.function_call")
    return _one_of(read_calls(given, f"{where}.tool_calls"), older, where)


def _one_of(
    calls: tuple[ToolCall, ...], others: tuple[ToolCall, ...], where: str
) -> tuple[ToolCall, ...]:
    """The calls that a message spells once, or twice in the same way."""
    if not (calls and others):
        return calls or others
    if [(c.name, c.arguments) for c in calls] != [(c.name, c.arguments) for c in others]:
        raise RowProblem("malformed_tool_call", where, "calls in two places that differ")
    return calls


def _with_mask(
    message: Message, raw: Mapping[str, Any], content: Any, reading: Reading, where: str
) -> Message:
    """The assistant's message with its loss mask; keys that would be lost are refused."""
    refuse_lost_in_message(raw, message, reading, where)
    if not reading.trains:
        return message
    for index, part in enumerate(content if isinstance(content, list) else ()):
        at = f"{where}.content[{index}]"
        if isinstance(part, Mapping) and not trained_by_masks(part, at):
            raise RowProblem("malformed_message", at, "a loss mask of a part is not honoured")
    if trained_by_masks(raw, where, mapped=(reading.role, reading.content, reading.reasoning)):
        return message
    return replace(message, trained=False)


def _call_turn(raw: Mapping[str, Any], reading: Reading, where: str) -> Message:
    value = content_of(raw, reading)
    trace = None
    if isinstance(value, str):
        trace, value = split_inline(value, prefilled=reading.prefilled_think)
    calls = read_calls(value, where)
    if not calls:
        raise RowProblem("malformed_tool_call", where, "a call turn without a call")
    reasoning = reasoning_of(raw, trace, reading.keys_of_reasoning, where)
    return _with_mask(Message("assistant", "", reasoning, calls), raw, None, reading, where)


def _assistant(
    text: str, reasoning: str | None, calls: tuple[ToolCall, ...], reading: Reading, where: str
) -> Message:
    trace, answer = split_inline(text, prefilled=reading.prefilled_think and reasoning is None)
    if trace is not None and reasoning is not None and trace.strip() != reasoning.strip():
        raise RowProblem(
            "conflicting_reasoning", where, "an inline trace beside another reasoning field"
        )
    return Message("assistant", answer, reasoning=reasoning or trace, tool_calls=calls)


def reasoning_of(
    raw: Mapping[str, Any],
    trace: str | None,
    keys: Iterable[str],
    where: str,
    *,
    switches: Container[str] = (),
) -> str | None:
    """The one trace of a message or row, wherever it stands; two that differ are a problem.

    Args:
        keys: that a trace stands under.
        switches: texts that are no trace.
    """
    found = [trace] if trace and trace.strip() else []
    for key in keys:
        value = raw.get(key)
        if value is None or (switches and isinstance(value, bool)):
            continue
        if not isinstance(value, str):
            raise RowProblem("malformed_message", f"{where}.{key}", f"found {value!r:.80}")
        if value.strip() and not (switches and value.strip().lower() in switches):
            found.append(value)
    if len(found) > 1 and len({text.strip() for text in found}) > 1:
        raise RowProblem("conflicting_reasoning", where, "two reasoning fields that differ")
    return found[0] if found else None


def split_inline(content: str, *, prefilled: bool = False) -> tuple[str | None, str]:
    """(trace or `None`, answer).

    Args:
        prefilled: the opening tag was part of the prompt, so the text starts inside the trace.
    """
    if prefilled and OPEN not in content and CLOSE in content:
        content = OPEN + content
    if not has_tags(content):
        return None, content
    split = split_think(content)
    return split.reasoning, split.content
