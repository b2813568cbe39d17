"""Messages of any dialect → `Message`s, and with a row's system text and tools a `Conversation`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from data_builders.dialects.columns import (
    CALL_ID_KEYS,
    CUSTOM_INSTRUCTIONS,
    SYSTEM_KEYS,
    TEMPLATE_ARGUMENTS,
    TOOL_KEYS,
    TOOLS_IN_ARGUMENTS,
    has_schema,
    refuse_lost,
    refuse_lost_in_message,
    refuse_media,
    unread_columns,
)
from data_builders.dialects.content import read_calls, read_content, read_id, read_tools
from data_builders.dialects.forms import in_openai_form
from data_builders.dialects.masks import (
    has_row_masks,
    is_row_mask,
    mask_key,
    row_masks,
    trained_by_masks,
)
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem, is_blank
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
# what stands under a trace's key where it switches reasoning, or says that there is none
_SWITCHES = frozenset(
    {"on", "off", "true", "false", "yes", "no", "none", "low", "medium", "high", "auto", "minimal",
     "enabled", "disabled", "null", "nil", "nan", "n/a", "na", "-"}
)  # fmt: skip
_LONGEST_SWITCH = 20  # with white space around it, ours
_NO_SYSTEM = frozenset({"none", "null", "nan", "n/a"})
_ELSEWHERE = ("parts", "text", "output", "output_text", "result", "structuredContent", "refusal")


def conversation(
    row: Row,
    turns: tuple[Message, ...],
    reading: Reading,
    *,
    read: Collection[str],
    parts_of_prompt: Collection[str] = (),
    listed: Sequence[Mapping[str, Any]] = (),
    where: str = "",
    unread_keys: Mapping[str, object] | None = None,
) -> Conversation:
    """The turns of a row with its system text and tools, once nothing of the row is lost.

    Args:
        read: columns that the turns were read from.
        parts_of_prompt: columns that say a part of the prompt in rows of other dialects.
        listed: the raw messages, under `where`; they may declare tools.
        unread_keys: keys of messages that were not read, each with a value.

    Raises:
        RowProblem: see `refuse_lost`, `with_system` and `declared_tools`.
    """
    messages = in_call_order(with_system(row, turns))
    tools = declared_tools(row, listed, where)
    refuse_media(row)
    unread = unread_columns(row, read, reading)
    parts = () if reading.maps else parts_of_prompt  # whoever maps columns knows the others
    refuse_lost(unread, messages, tools, reading, parts)
    if reading.trains:
        unread = {key: value for key, value in unread.items() if not is_row_mask(key, value)}
    return Conversation(messages, tools, {**unread, **(unread_keys or {})})


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
    for column, keys in (("metadata", TOOL_KEYS), (TEMPLATE_ARGUMENTS, TOOLS_IN_ARGUMENTS)):
        arguments = row.get(column)
        if not isinstance(arguments, Mapping):
            continue
        for key in keys:
            if arguments.get(key) and (column == TEMPLATE_ARGUMENTS or has_schema(arguments[key])):
                places.append((f"{column}.{key}", arguments[key], True))
    for index, item in enumerate(listed):
        if "tools" not in item and "functions" not in item:  # as almost every message
            continue
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
    arguments = row.get(TEMPLATE_ARGUMENTS)
    custom = arguments.get(CUSTOM_INSTRUCTIONS) if isinstance(arguments, Mapping) else None
    if custom is None and row.keys().isdisjoint(SYSTEM_KEYS):
        return messages
    for key, value in (*((key, row.get(key)) for key in SYSTEM_KEYS), (TEMPLATE_ARGUMENTS, custom)):
        if not value:
            continue
        text = read_content(value, "system", key).text
        if not text.strip() or text.strip().lower() in _NO_SYSTEM:
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
    raw: Iterable[Mapping[str, Any]],
    reading: Reading,
    where: str,
    *,
    prompt: bool = False,
    row: Row | None = None,
    unread_keys: dict[str, object] | None = None,
) -> tuple[Message, ...]:
    """All messages; a turn that only calls joins the assistant turn right before it.

    Args:
        prompt: an answer follows, so that none of these need be trained.
        row: the row whose one conversation this is: its own masks speak of these messages.
        unread_keys: takes up the keys of messages that are not read, each with a value.

    Raises:
        RowProblem: `untrained_turn`, every answer has a loss mask.
    """
    stored = list(raw)
    messages: list[Message] = []
    masked: str | None = None
    kept: list[bool] | None = None
    if row is not None and reading.trains and has_row_masks(row, reading):
        roles = [_known_role(role_of(item, reading), reading) for item in stored]
        kept = row_masks(row, reading, roles=roles)
    for index, at, item in in_openai_form(stored, where):
        message, is_call_turn, unread = _read(item, reading, at)
        if message.role == "system" and is_blank(message.content):
            continue  # some rows write a system turn of no text, which is none
        if unread_keys is not None:
            unread_keys.update({f"{where}[].{key}": value for key, value in unread.items()})
        if not message.trained:
            masked = f"{at}.{mask_key(item)}"
        elif kept is not None and not kept[index] and message.role == "assistant":
            message = replace(message, trained=False)
            masked = at
        before = messages[-1] if messages else None
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


def _known_role(name: Any, reading: Reading) -> Role | None:
    """Our role of a raw one; that of a turn that only calls is the assistant's."""
    if not isinstance(name, str):
        return None
    if name.lower() in CALL_TURNS:
        return reading.roles.get(name) or "assistant"
    return reading.roles.get(name) or ROLE_NAMES.get(name.lower())


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


def _read(
    raw: Mapping[str, Any], reading: Reading, where: str
) -> tuple[Message, bool, Mapping[str, Any]]:
    """A message, whether it is a turn that only calls, and the keys of it that are not read."""
    name = role_of(raw, reading)
    if not isinstance(name, str):
        raise RowProblem("malformed_message", where, f"its role is {name!r:.80}")
    if name not in reading.roles and name.lower() in CALL_TURNS:
        message = _call_turn(raw, reading, where)
        return message, True, refuse_lost_in_message(raw, message, reading, where)
    role = _known_role(name, reading)
    if role is None:
        raise RowProblem("unknown_role", where, f"role {name!r:.80}; map it under roles:")
    refuse_media(raw, f"{where}.")
    _refuse_two_contents(raw, reading, where)
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
        message = _with_mask(message, raw, content, reading, where)
    elif calls or reasoning:
        what = "calls tools" if calls else "reasons"
        raise RowProblem("malformed_message", where, f"a {role} turn that {what}")
    elif role == "tool":
        call_id = read_id(_first_of(raw, CALL_ID_KEYS), f"{where}.tool_call_id")
        answered = read_id(raw.get("name"), f"{where}.name")
        message = Message(role, text, tool_call_id=call_id, name=answered)
    else:
        message = Message(role, text)
    return message, False, refuse_lost_in_message(raw, message, reading, where)


def _refuse_two_contents(raw: Mapping[str, Any], reading: Reading, where: str) -> None:
    """Refuse a message whose `content` and `value` differ: one of them would be lost."""
    if reading.content or not raw.get("content") or not raw.get("value"):
        return
    if raw["content"] != raw["value"]:
        raise RowProblem("malformed_message", f"{where}.value", "beside a content that differs")


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
    """The assistant's message with its loss mask."""
    if not reading.trains:
        return message
    for index, part in enumerate(content if isinstance(content, list) else ()):
        at = f"{where}.content[{index}]"
        if isinstance(part, Mapping) and not trained_by_masks(part, at):
            raise RowProblem("malformed_message", at, "a loss mask of a part is not honoured")
    mapped = {reading.role, reading.content, reading.reasoning, *reading.ignored}
    if trained_by_masks(raw, where, mapped=mapped):
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
) -> str | None:
    """The one trace of a message or row, wherever it stands; two that differ are a problem.

    Args:
        keys: that a trace stands under; a switch of the model's reasoning there is no trace.
    """
    found = [trace] if trace and trace.strip() else []
    if raw.keys().isdisjoint(keys):  # as most messages: one look instead of six
        return found[0] if found else None
    for key in keys:
        value = raw.get(key)
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, str):
            raise RowProblem("malformed_message", f"{where}.{key}", f"found {value!r:.80}")
        if value.strip() and (
            len(value) > _LONGEST_SWITCH or value.strip().lower() not in _SWITCHES
        ):
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
