"""Messages of any dialect → `Message`s; with the row's system text and tools, a `Conversation`.

A message's content, calls and trace, and the declared tools, are read from the forms in the wild.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from data_builders.dialects.columns import (
    CALL_ID_KEYS,
    CUSTOM_INSTRUCTIONS,
    SYSTEM_KEYS,
    TEMPLATE_ARGUMENTS,
    TOOL_KEYS,
    TOOLS_IN_ARGUMENTS,
    holds_tool_schema,
    is_more_than_a_switch,
    refuse_lost_columns,
    refuse_media,
    unread_columns,
    unread_in_message,
)
from data_builders.dialects.forms import in_openai_form
from data_builders.dialects.masks import (
    has_row_masks,
    is_row_mask,
    mask_key,
    row_masks,
    trained_by_masks,
)
from data_builders.dialects.reading import (
    Conversation,
    Reading,
    Row,
    RowProblem,
    decoded,
    encoded,
    is_blank,
)
from posttrain.chat.reasoning import CLOSE, OPEN, has_tags, split_think
from posttrain.jsontext import load_json
from posttrain.records import Message, Role, ToolCall

LIST_KEYS = ("messages", "conversations", "conversation")
CALL_TURNS = frozenset({"function_call", "function-call", "tool_call", "tool_calls"})
_ROLE_ALIASES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "ai"),
    "tool": (
        "tool",
        "function",
        "observation",
        "tool_response",
        "function_response",
        "function-response",
        "ipython",
        "environment",
    ),
}
ROLE_NAMES: dict[str, Role] = {
    name: role for role, names in _ROLE_ALIASES.items() for name in names
}
# values under a trace's key that switch reasoning, or say that there is no trace
_SWITCHES = frozenset(
    [
        "on",
        "off",
        "true",
        "false",
        "yes",
        "no",
        "none",
        "low",
        "medium",
        "high",
        "auto",
        "minimal",
        "enabled",
        "disabled",
        "null",
        "nil",
        "nan",
        "n/a",
        "na",
        "-",
    ]
)
_LONGEST_SWITCH = 20  # characters with the white space around it, ours
_NO_SYSTEM = frozenset({"none", "null", "nan", "n/a"})
# keys under which a message without content may hold its text
_OTHER_TEXT_KEYS = (
    "parts",
    "text",
    "output",
    "output_text",
    "result",
    "structuredContent",
    "refusal",
)
_TEXT_PARTS = ("text", "input_text", "output_text")
_TRACE_PARTS = ("thinking", "reasoning")
_CALL_PARTS = ("tool_call", "tool_calls", "tool_use")
_MEDIA = ("image", "audio", "video", "file", "document")
_JSON_STARTS = ("[", "{", " ", "\n")
_PARTS_AS_TEXT = re.compile(r"\s{0,20}\[?\s{0,20}\{\s{0,20}\"(?:type|text|thinking)\"")


def conversation(
    row: Row,
    turns: tuple[Message, ...],
    reading: Reading,
    *,
    read_columns: Collection[str],
    parts_of_prompt: Collection[str] = (),
    raw_messages: Sequence[Mapping[str, Any]] = (),
    location: str = "",
    unread_keys: Mapping[str, object] | None = None,
) -> Conversation:
    """Complete a row's turns with its system text and tools, and refuse a row that would lose text.

    Args:
        read_columns: columns that the turns were read from.
        parts_of_prompt: columns that hold a part of the prompt in rows of other dialects.
        raw_messages: the row's list of messages, which may declare tools; empty without one.
        location: column of that list, for errors.
        unread_keys: keys of messages that were not read, each with a value.

    Raises:
        RowProblem: see `refuse_lost_columns`, `with_system` and `declared_tools`.
    """
    messages = in_call_order(with_system(row, turns))
    tools = declared_tools(row, raw_messages, location)
    refuse_media(row)
    unread = unread_columns(row, read_columns, reading)
    # a recipe that maps columns has decided about the others
    parts = () if reading.maps_columns else parts_of_prompt
    refuse_lost_columns(unread, messages, tools, reading, parts)
    if reading.trains:
        unread = {key: value for key, value in unread.items() if not is_row_mask(key, value)}
    return Conversation(messages, tools, {**unread, **(unread_keys or {})})


def in_call_order(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put results of parallel calls in the order of the calls that they name, by id or by name.

    Templates that write no ids tell results apart by their order alone.
    """
    ordered = list(messages)
    for index, message in enumerate(messages):
        if len(message.tool_calls) < 2:
            continue
        call_numbers: dict[str, int] = {}
        for number, call in enumerate(message.tool_calls):
            call_numbers[call.name] = number
            if call.id:
                call_numbers[call.id] = number
        stop = index + 1
        while stop < len(messages) and messages[stop].role == "tool":
            stop += 1
        results = messages[index + 1 : stop]
        numbers = [call_numbers.get(result.tool_call_id or result.name or "") for result in results]
        if None not in numbers and len(set(numbers)) == len(numbers):
            pairs = sorted(zip(numbers, results, strict=True), key=lambda pair: pair[0] or 0)
            ordered[index + 1 : stop] = [result for _, result in pairs]
    return tuple(ordered)


def declared_tools(
    row: Row, raw_messages: Sequence[Mapping[str, Any]], location: str
) -> str | None:
    """Tools that a row declares, in a column or in its first message, as JSON text.

    Raises:
        RowProblem: `malformed_tools`, also for two declarations that differ.
    """
    declared: str | None = None
    for path, value, may_declare in _possible_tools(row, raw_messages, location):
        if (tools := read_tools(value, path)) is None:
            continue
        if declared is None and may_declare:
            declared = tools
        elif tools != declared:
            raise RowProblem("malformed_tools", path, "tools other than those declared before")
    return declared


def _possible_tools(
    row: Row, raw_messages: Sequence[Mapping[str, Any]], location: str
) -> Iterator[tuple[str, Any, bool]]:
    """(path, value, whether it may declare tools) of everything in a row that looks like tools.

    A later message may only repeat the declaration.
    """
    for key in TOOL_KEYS:
        if row.get(key):
            yield key, row[key], True
    for column, keys in (("metadata", TOOL_KEYS), (TEMPLATE_ARGUMENTS, TOOLS_IN_ARGUMENTS)):
        arguments = row.get(column)
        if not isinstance(arguments, Mapping):
            continue
        for key in keys:
            value = arguments.get(key)
            if value and (column == TEMPLATE_ARGUMENTS or holds_tool_schema(value)):
                yield f"{column}.{key}", value, True
    for index, message in enumerate(raw_messages):
        if "tools" not in message and "functions" not in message:  # as almost every message
            continue
        for key in ("tools", "functions"):
            if message.get(key):
                yield f"{location}[{index}].{key}", message[key], index == 0


def with_system(row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put the system text of the row's columns before the messages.

    Raises:
        RowProblem: the messages start with another system text.
    """
    arguments = row.get(TEMPLATE_ARGUMENTS)
    custom = arguments.get(CUSTOM_INSTRUCTIONS) if isinstance(arguments, Mapping) else None
    if custom is None and row.keys().isdisjoint(SYSTEM_KEYS):
        return messages
    columns = [(key, row.get(key)) for key in SYSTEM_KEYS]
    for key, value in (*columns, (TEMPLATE_ARGUMENTS, custom)):
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
    """Name and messages of the one column that holds a list of messages; `None` without one.

    Raises:
        RowProblem: `unrecognised`, two such columns, which may not say the same.
    """
    lists: list[tuple[str, list[Mapping[str, Any]]]] = []
    for key in LIST_KEYS:
        if messages := as_messages(row.get(key)):
            lists.append((key, messages))
    if len(lists) > 1:
        raise RowProblem("unrecognised", lists[1][0], f"a second conversation beside {lists[0][0]}")
    return lists[0] if lists else None


def as_messages(value: Any) -> list[Mapping[str, Any]] | None:
    """A list of message objects from a list, its JSON text or equally long columns; or `None`.

    Columns (`{"from": […], "value": […]}`) are what older `datasets` made of a list of objects. An
    object that holds `messages` alone is what a column of chat rows in JSON holds.
    """
    if value is None:  # the common case: most rows fill one of three columns
        return None
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            return None
    if isinstance(value, Mapping) and value.keys() == {"messages"}:
        value = value["messages"]
    if not isinstance(value, list) and isinstance(value, Mapping):
        lengths = {len(column) if isinstance(column, list) else -1 for column in value.values()}
        if len(lengths) != 1 or -1 in lengths:
            return None
        rows = zip(*value.values(), strict=True)
        value = [dict(zip(value, cells, strict=True)) for cells in rows]
    if not isinstance(value, list) or not value:
        return None
    # plain dicts first: `isinstance(…, Mapping)` is slow
    return value if all(type(i) is dict or isinstance(i, Mapping) for i in value) else None


def read_messages(
    raw_messages: Iterable[Mapping[str, Any]],
    reading: Reading,
    location: str,
    *,
    prompt: bool = False,
    row: Row | None = None,
    unread_keys: dict[str, object] | None = None,
) -> tuple[Message, ...]:
    """Convert stored messages; a turn that only calls joins the assistant turn right before it.

    Args:
        location: path of the list, for errors.
        prompt: an answer follows elsewhere, so that none of these need be trained.
        row: the row whose one conversation this is: its own masks apply to these messages.
        unread_keys: receives the keys of messages that are not read, each with a value.

    Raises:
        RowProblem: `untrained_turn`, every answer has a loss mask.
    """
    stored = list(raw_messages)
    row_flags: list[bool] | None = None
    if row is not None and reading.trains and has_row_masks(row, reading):
        roles = [_canonical_role(role_of(item, reading), reading) for item in stored]
        row_flags = row_masks(row, reading, roles=roles)
    messages: list[Message] = []
    last_mask: str | None = None  # path of a mask that was honoured
    for index, path, raw in in_openai_form(stored, location):
        message, is_call_turn, unread = _read_message(raw, reading, path)
        if message.role == "system" and is_blank(message.content):
            continue  # some rows write a system turn without text: there is no system turn
        if unread_keys is not None:
            unread_keys.update({f"{location}[].{key}": value for key, value in unread.items()})
        if not message.trained:
            last_mask = f"{path}.{mask_key(raw)}"
        elif row_flags is not None and not row_flags[index] and message.role == "assistant":
            message = replace(message, trained=False)
            last_mask = path
        if is_call_turn and messages and _calls_belong_to(messages[-1], message):
            calls = messages[-1].tool_calls + message.tool_calls
            messages[-1] = replace(messages[-1], tool_calls=calls)
        else:
            messages.append(message)
    is_trained = any(message.role == "assistant" and message.trained for message in messages)
    if last_mask and not prompt and not is_trained:
        raise RowProblem("untrained_turn", last_mask, "a loss mask leaves no answer to train")
    return tuple(messages)


def _calls_belong_to(previous: Message, call_turn: Message) -> bool:
    """True if the calls of a call turn belong to the previous message."""
    return (
        previous.role == "assistant"
        and call_turn.reasoning is None
        and call_turn.trained == previous.trained
    )


def _canonical_role(name: Any, reading: Reading) -> Role | None:
    """Our role for a raw role, or `None`; a turn that only calls is the assistant's."""
    if not isinstance(name, str):
        return None
    if name.lower() in CALL_TURNS:
        return reading.roles.get(name) or "assistant"
    return reading.roles.get(name) or ROLE_NAMES.get(name.lower())


def assistant_text(text: str, reading: Reading, *, reasoning: str | None = None) -> Message:
    """Build an assistant message from plain text; inline reasoning is split off."""
    return _assistant_message(text, reasoning, (), reading, "the answer")


def role_of(raw: Mapping[str, Any], reading: Reading) -> Any:
    """Raw role of a message, `None` if it has none."""
    return _first_value(raw, (reading.role,) if reading.role else ("role", "from"))


def content_of(raw: Mapping[str, Any], reading: Reading) -> Any:
    """Raw content of a message, `None` if it has none."""
    return _first_value(raw, (reading.content,) if reading.content else ("content", "value"))


def _first_value(raw: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """First value that is not null under the keys, in their order."""
    for key in keys:  # no generator: this runs several times a message
        if (value := raw.get(key)) is not None:
            return value
    return None


def _read_message(
    raw: Mapping[str, Any], reading: Reading, location: str
) -> tuple[Message, bool, Mapping[str, Any]]:
    """Read a message: (message, whether it is a turn that only calls, its unread keys)."""
    name = role_of(raw, reading)
    if not isinstance(name, str):
        raise RowProblem("malformed_message", location, f"its role is {name!r:.80}")
    if name not in reading.roles and name.lower() in CALL_TURNS:
        message = _read_call_turn(raw, reading, location)
        return message, True, unread_in_message(raw, message, reading, location)
    role = _canonical_role(name, reading)
    if role is None:
        raise RowProblem("unknown_role", location, f"role {name!r:.80}; map it under roles:")
    refuse_media(raw, f"{location}.")
    _refuse_two_contents(raw, reading, location)
    content = content_of(raw, reading)
    if not content and content != 0:
        _refuse_text_elsewhere(raw, reading, location)
    if content is None and role == "user":
        raise RowProblem("malformed_message", location, "a user turn without content")
    text, inline_trace, calls_in_parts = read_content(content, role, f"{location}.content")
    reasoning = reasoning_of(raw, inline_trace, reading.keys_of_reasoning, location)
    calls = _require_same_calls(calls_in_parts, _read_calls_of_message(raw, location), location)
    if role == "assistant":
        message = _assistant_message(text, reasoning, calls, reading, location)
        message = _apply_message_mask(message, raw, content, reading, location)
    elif calls or reasoning:
        detail = "calls tools" if calls else "reasons"
        raise RowProblem("malformed_message", location, f"a {role} turn that {detail}")
    elif role == "tool":
        call_id = read_id(_first_value(raw, CALL_ID_KEYS), f"{location}.tool_call_id")
        tool_name = read_id(raw.get("name"), f"{location}.name")
        message = Message(role, text, tool_call_id=call_id, name=tool_name)
    else:
        message = Message(role, text)
    return message, False, unread_in_message(raw, message, reading, location)


def _refuse_two_contents(raw: Mapping[str, Any], reading: Reading, location: str) -> None:
    """Refuse a message whose `content` and `value` differ: one of them would be lost."""
    if reading.content or not raw.get("content") or not raw.get("value"):
        return
    if raw["content"] != raw["value"]:
        raise RowProblem("malformed_message", f"{location}.value", "beside a content that differs")


def _refuse_text_elsewhere(raw: Mapping[str, Any], reading: Reading, location: str) -> None:
    """Refuse a message without content whose text stands under a key that is not read."""
    for key in _OTHER_TEXT_KEYS:
        if raw.get(key) and key not in (reading.role, reading.content, reading.reasoning):
            detail = f"no content, but {raw[key]!r:.60}: map it under fields.content"
            raise RowProblem("malformed_message", f"{location}.{key}", detail)


def _read_calls_of_message(raw: Mapping[str, Any], location: str) -> tuple[ToolCall, ...]:
    """Read the calls of a message, under `tool_calls` or the older `function_call`."""
    stored = raw.get("tool_calls")
    older_calls = raw.get("function_call")
    if stored is None and older_calls is None:
        return ()
    function_call = read_calls(older_calls, f"{location}.function_call")
    return _require_same_calls(
        read_calls(stored, f"{location}.tool_calls"), function_call, location
    )


def _require_same_calls(
    calls: tuple[ToolCall, ...], other_calls: tuple[ToolCall, ...], location: str
) -> tuple[ToolCall, ...]:
    """Return a message's calls, which it may store twice; refuse two lists that differ."""
    if not (calls and other_calls):
        return calls or other_calls
    # ids may differ: the older form of a call has none
    contents = [(call.name, call.arguments) for call in calls]
    if contents != [(call.name, call.arguments) for call in other_calls]:
        raise RowProblem("malformed_tool_call", location, "calls in two places that differ")
    return calls


def _apply_message_mask(
    message: Message, raw: Mapping[str, Any], content: Any, reading: Reading, location: str
) -> Message:
    """Mark an assistant's message as untrained if its own loss mask says so."""
    if not reading.trains:
        return message
    for index, part in enumerate(content if isinstance(content, list) else ()):
        path = f"{location}.content[{index}]"
        if isinstance(part, Mapping) and not trained_by_masks(part, path):
            raise RowProblem("malformed_message", path, "a loss mask of a part is not honoured")
    mapped = {reading.role, reading.content, reading.reasoning, *reading.ignored}
    if trained_by_masks(raw, location, mapped=mapped):
        return message
    return replace(message, trained=False)


def _read_call_turn(raw: Mapping[str, Any], reading: Reading, location: str) -> Message:
    """Read a turn whose content is calls (`from: function_call`)."""
    value = content_of(raw, reading)
    trace = None
    if isinstance(value, str):
        trace, value = split_inline(value, prefilled=reading.prefilled_think)
    calls = read_calls(value, location)
    if not calls:
        raise RowProblem("malformed_tool_call", location, "a call turn without a call")
    reasoning = reasoning_of(raw, trace, reading.keys_of_reasoning, location)
    return _apply_message_mask(
        Message("assistant", "", reasoning, calls), raw, None, reading, location
    )


def _assistant_message(
    text: str, reasoning: str | None, calls: tuple[ToolCall, ...], reading: Reading, location: str
) -> Message:
    """Build an assistant message; a trace inside its text is split off."""
    trace, answer = split_inline(text, prefilled=reading.prefilled_think and reasoning is None)
    if trace is not None and reasoning is not None and trace.strip() != reasoning.strip():
        raise RowProblem(
            "conflicting_reasoning", location, "an inline trace beside another reasoning field"
        )
    return Message("assistant", answer, reasoning=reasoning or trace, tool_calls=calls)


def reasoning_of(
    raw: Mapping[str, Any], inline_trace: str | None, keys: Iterable[str], location: str
) -> str | None:
    """Read the trace of a message or row; `None` without one.

    Args:
        inline_trace: a trace that was found in the content.
        keys: keys that may hold a trace; one that only switches reasoning holds none.

    Raises:
        RowProblem: `conflicting_reasoning`, two traces that differ.
    """
    traces = [inline_trace] if inline_trace and inline_trace.strip() else []
    if raw.keys().isdisjoint(keys):  # as most messages: one look instead of six
        return traces[0] if traces else None
    for key in keys:
        value = raw.get(key)
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, str):
            raise RowProblem("malformed_message", f"{location}.{key}", f"found {value!r:.80}")
        is_switch = len(value) <= _LONGEST_SWITCH and value.strip().lower() in _SWITCHES
        if value.strip() and not is_switch:
            traces.append(value)
    if len({text.strip() for text in traces}) > 1:
        raise RowProblem("conflicting_reasoning", location, "two reasoning fields that differ")
    return traces[0] if traces else None


def split_inline(content: str, *, prefilled: bool = False) -> tuple[str | None, str]:
    """Split a text into (trace or `None`, answer).

    Args:
        prefilled: the opening tag was part of the prompt, so the text starts inside the trace.
    """
    if prefilled and OPEN not in content and CLOSE in content:
        content = OPEN + content
    if not has_tags(content):
        return None, content
    split = split_think(content)
    return split.reasoning, split.content


# -- a message's content and calls, and declared tools ---------------------------------------------


class Content(NamedTuple):
    """Text, trace and calls of one message's content."""

    text: str
    trace: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read_content(value: Any, role: Role | str, location: str) -> Content:
    """Read text, parts, one part, nothing (the empty text) or a number (its JSON text).

    A tool's result may be any JSON value: one that is neither text nor text parts is kept as JSON
    text.

    Raises:
        RowProblem: `unsupported_content` for media, `malformed_message` for any other part that is
            not read or lacks its text.
    """
    if isinstance(value, Mapping) and (
        _is_text_part(value) or (role != "tool" and "type" in value)
    ):
        return _read_parts([value], location)  # MCP's single part
    if isinstance(value, list) and (role != "tool" or any(map(_is_text_part, value))):
        return _read_parts(value, location)
    if role == "tool" and not isinstance(value, str) and value is not None:
        _refuse_media_parts(value, location)
        return Content(encoded(value, "malformed_message", location))
    text = read_text(value, location)
    if text[:1] in _JSON_STARTS and role != "tool" and _PARTS_AS_TEXT.match(text):
        _refuse_parts_as_text(text, location)
    return Content(text)


def _refuse_media_parts(value: Any, location: str) -> None:
    """Refuse a tool's result that lists pictures or sound: as JSON text it would be their bytes."""
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if _is_media_type(kind) and any(part.get(key) for key in ("source", "data", kind)):
            path = f"{location}[{index}]"
            raise RowProblem("unsupported_content", path, f"a part of type {kind!r:.40}")


def _is_media_type(kind: Any) -> bool:
    """True if a part's type names pictures, sound or a file."""
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def _refuse_parts_as_text(text: str, location: str) -> None:
    """Refuse a text that is the JSON of content parts: trained as it stands, it would be JSON."""
    try:
        value = load_json(text)
    except ValueError:
        return
    parts = value if isinstance(value, list) else [value]
    part_types = (*_TEXT_PARTS, *_TRACE_PARTS, *_CALL_PARTS)
    if parts and all(isinstance(p, Mapping) and p.get("type") in part_types for p in parts):
        detail = "the JSON text of content parts: store them as a list"
        raise RowProblem("malformed_message", location, detail)


def read_text(value: Any, location: str) -> str:
    """Read text as it is, a number as text, null as the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return encoded(value, "malformed_message", location)
    raise RowProblem("malformed_message", location, f"expected text, found {value!r:.80}")


def _is_text_part(part: Any) -> bool:
    """True if a part has the type of a text, whether or not it holds one."""
    return isinstance(part, Mapping) and _part_type(part) in _TEXT_PARTS


def _part_type(part: Mapping[str, Any]) -> Any:
    """Type of a content part; one with nothing but `text` is text."""
    return part.get("type", "text" if set(part) == {"text"} else None)


def _part_text(part: Mapping[str, Any], keys: tuple[str, ...], location: str) -> str:
    """Text under the first of `keys` that a part fills, else its empty text, else RowProblem.

    OpenAI's Assistants store an object with the text under `value`.
    """
    values = [part[key] for key in keys if part.get(key) is not None]
    filled_values = [value for value in values if value]
    # an empty text only where no key has more
    value = next(iter(filled_values or values), None)
    text = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        return text
    # read as empty, whole prompts would be gone
    raise RowProblem(
        "malformed_message", location, f"a content part without its text: {part!r:.80}"
    )


def _read_parts(parts: list[Any], location: str) -> Content:
    """Content of a list of parts: texts joined without a separator, traces with a line end."""
    texts: list[str] = []
    traces: list[str] = []
    calls: tuple[ToolCall, ...] = ()
    for index, part in enumerate(parts):
        path = f"{location}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RowProblem("malformed_message", path, f"a content part is {part!r:.80}")
        refuse_media(part, f"{path}.")
        kind = _part_type(part)
        if part.get("thought") is True:  # Gemini's
            traces.append(_part_text(part, ("text",), path))
        elif kind in _TEXT_PARTS:
            texts.append(_part_text(part, ("text", "value"), path))
        elif kind in _TRACE_PARTS:
            traces.append(_part_text(part, (kind, "text", "value"), path))
        elif kind in _CALL_PARTS:
            value = part if kind == "tool_use" else part.get("value", part.get(kind))
            calls += read_calls(value, path)
        else:
            reason = "unsupported_content" if _is_media_type(kind) else "malformed_message"
            raise RowProblem(reason, path, f"a content part that is not read: {part!r:.80}")
    return Content("".join(texts), "\n".join(traces) or None, calls)


_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")

# other keys that a call may have; a cache's mark is no part of the call
_CALL_KEYS = {"name", *_ARGUMENT_KEYS, "id", "type", "index", "function", "cache_control"}


def read_calls(value: Any, location: str) -> tuple[ToolCall, ...]:
    """Read a message's calls: a list of calls, one call, the JSON text of either, or nothing."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        value = decoded(value, "malformed_tool_call", location)
    if value is None:
        return ()
    if not isinstance(value, list):
        return (read_call(value, location),)
    return tuple(read_call(item, f"{location}[{i}]") for i, item in enumerate(value))


def read_call(value: Any, location: str) -> ToolCall:
    """Read one call, nested under `function` or flat, or its JSON text.

    Raises:
        RowProblem: `malformed_tool_call` or `malformed_arguments`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tool_call", location)
    if not isinstance(value, Mapping):
        raise RowProblem(
            "malformed_tool_call", location, f"a call is an object, found {value!r:.80}"
        )
    function = value.get("function")
    if function is None or isinstance(function, str):
        # flat; `function` as a bare name appears with `arguments` beside it
        function = {"name": function, **value} if function else value
    if not isinstance(function, Mapping):
        raise RowProblem("malformed_tool_call", location, f"function is {function!r:.80}")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tool_call", location, f"the call's name is {name!r:.80}")
    arguments_key = next((key for key in _ARGUMENT_KEYS if function.get(key) is not None), None)
    unknown_keys = sorted(set(function) - _CALL_KEYS)
    if arguments_key is None and unknown_keys:
        raise RowProblem("malformed_tool_call", location, f"no arguments, but {unknown_keys[0]!r}")
    for key, stored in (*value.items(), *function.items()):
        has_content = isinstance(stored, list | Mapping) or is_more_than_a_switch(stored)
        if key not in _CALL_KEYS and has_content:
            path = f"{location}.{key:.80}"
            raise RowProblem("malformed_tool_call", path, f"not read: {stored!r:.60}")
    stored_arguments = function[arguments_key] if arguments_key else None
    arguments = _read_arguments(stored_arguments, f"{location}.arguments")
    return ToolCall(name, arguments, read_id(value.get("id"), f"{location}.id"))


def read_id(value: Any, location: str) -> str | None:
    """Read an identifier or name: text, a whole number, or nothing."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowProblem("malformed_message", location, f"expected text, found {value!r:.80}")


def read_tools(value: Any, location: str = "tools") -> str | None:
    """Read declared tools as the JSON text of a list of OpenAI schemas; `None` without any.

    Takes a list, one schema, or JSON text of either; items may be JSON text themselves, bare
    functions, or have Anthropic's `input_schema` or MCP's `inputSchema`.
    """
    if isinstance(value, str):
        value = decoded(value, "malformed_tools", location) if value.strip() else None
    if value is None or value == []:
        return None
    items = value if isinstance(value, list) else [value]
    tools = [_read_tool(item, f"{location}[{i}]") for i, item in enumerate(items)]
    return encoded(tools, "malformed_tools", location)


def _read_tool(item: Any, location: str) -> dict[str, Any]:
    """Read one declared tool as an OpenAI schema."""
    if isinstance(item, str):
        item = decoded(item, "malformed_tools", location)
    if not isinstance(item, Mapping):
        raise RowProblem("malformed_tools", location, f"a tool is an object, found {item!r:.80}")
    function = item.get("function")
    if isinstance(function, Mapping):
        kind = item.get("type", "function")
        tool = {"type": "function", **item}
    else:
        # flat: OpenAI's Responses say `function`, Anthropic says `custom` or nothing
        kind = item.get("type")
        if kind in (None, "custom"):
            kind = "function"
        function = {key: value for key, value in item.items() if key != "type"}
        for key in ("input_schema", "inputSchema"):
            if key in function and "parameters" not in function:
                function["parameters"] = function.pop(key)
        tool = {"type": "function", "function": function}
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowProblem("malformed_tools", location, f"the tool's name is {name!r:.80}")
    if kind != "function":
        raise RowProblem("malformed_tools", location, f"a tool of type {kind!r:.80}")
    return tool


def _read_arguments(value: Any, location: str) -> str:
    """Read a call's arguments as the JSON text of an object."""
    if isinstance(value, str) and value.strip():
        value = decoded(value, "malformed_arguments", location)
        if isinstance(value, str) and value.lstrip()[:1] == "{":  # some rows encode them twice
            value = decoded(value, "malformed_arguments", location)
    elif value is None or isinstance(value, str):
        return "{}"
    if not isinstance(value, Mapping):
        raise RowProblem("malformed_arguments", location, f"not an object: {value!r:.80}")
    return encoded(value, "malformed_arguments", location)
