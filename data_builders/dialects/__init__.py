"""Chat rows of any dialect → messages and tools, with one reader for each dialect.

    read_row({"instruction": "Add.", "input": "2 2", "output": "4"}, config)
    → ("alpaca", Conversation(messages=(…), tools=None))

To add a dialect: one function here, one line in `DIALECTS`, its structure in `recognise`, its name
in `posttrain.config.source.DialectName`, a line in `docs/guides/dialects.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from data_builders.dialects.forms import AUTHOR_TYPES, type_of
from data_builders.dialects.messages import (
    LIST_KEYS,
    as_messages,
    content_of,
    conversation,
    find_list,
    read_messages,
    role_of,
)
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem, not_a
from data_builders.dialects.texts import (
    COMPLETION_KEYS,
    OUTPUT_KEYS,
    alpaca,
    answer_beside,
    prompt_completion,
    read_side,
)
from data_builders.rows.where import lookup, named_paths
from posttrain.chat.reasoning import OPEN
from posttrain.config.source import SourceConfig

__all__ = ["DIALECTS", "Conversation", "Reading", "RowProblem", "read_row", "recognise"]


def read_list(row: Row, reading: Reading, *, dialect: str, key: str) -> Conversation:
    """Conversation of a row with a list of messages, which name their author under `key`."""
    column = find_list(row)
    if column is None:
        raise not_a(dialect, row, f"no list of messages under {', '.join(LIST_KEYS)}")
    location, raw_messages = column
    if reading.role is None and not all(_names_author(message, key) for message in raw_messages):
        raise not_a(dialect, row, f"not every message of {location} has {key!r}")
    unread_keys: dict[str, object] = {}
    turns = read_messages(raw_messages, reading, location, row=row, unread_keys=unread_keys)
    answer, answer_columns = answer_beside(row, turns, reading)
    return conversation(
        row,
        turns + answer,
        reading,
        read_columns=(location, *answer_columns),
        raw_messages=raw_messages,
        location=location,
        unread_keys=unread_keys,
    )


def _names_author(message: Mapping[str, Any], key: str) -> bool:
    """True if a message names its author, under `key` or by a type that other services use."""
    return message.get(key) is not None or (key == "role" and type_of(message) in AUTHOR_TYPES)


DIALECTS: dict[str, Callable[[Row, Reading], Conversation]] = {
    "chosen_rejected": lambda row, reading: read_side(row, "chosen", reading),
    "openai": partial(read_list, dialect="openai", key="role"),
    # an assistant's content may start with its trace
    "inline_think": partial(read_list, dialect="inline_think", key="role"),
    "sharegpt": partial(read_list, dialect="sharegpt", key="from"),
    "alpaca": alpaca,
    "prompt_completion": prompt_completion,
}
_ANSWERS = frozenset({*OUTPUT_KEYS, *COMPLETION_KEYS})
_IN_MESSAGE = ("role", "content")


def read_row(
    row: Row, config: SourceConfig, reading: Reading | None = None, *, trains: bool = True
) -> tuple[str, Conversation]:
    """Read a row. Returns its dialect (the recipe's, else by structure) and its conversation.

    Args:
        reading: `reading_of(config)`, for callers that read many rows.
        trains: see `Reading`.

    Raises:
        RowProblem: the row fits no dialect, or something in it is malformed.
    """
    reading = reading or reading_of(config, trains=trains)
    canonical_row = canonical(row, config)
    try:
        dialect = config.dialect or recognise(canonical_row, reading)
        return dialect, DIALECTS[dialect](canonical_row, reading)
    except RecursionError:
        raise RowProblem("malformed_json", "the row", "nested too deep") from None


def fitting(row: Row, config: SourceConfig) -> list[str]:
    """Names of the dialects that the row can be read as."""
    names: list[str] = []
    for name in DIALECTS:
        with suppress(RowProblem):
            read_row(row, config.model_copy(update={"dialect": name}))
            names.append(name)
    return names


def reading_of(config: SourceConfig, *, trains: bool = True) -> Reading:
    """Build the settings for reading a source's rows from its recipe."""
    return Reading(
        roles=config.roles,
        role=config.fields.get("role"),
        content=config.fields.get("content"),
        reasoning=config.fields.get("reasoning"),
        prefilled_think=config.prefilled_think,
        trains=trains,
        maps_columns=bool(config.fields),
        used_columns=frozenset(path.partition(".")[0] for path in named_paths(config)),
        ignored=frozenset(config.ignored_keys),
    )


def canonical(row: Row, config: SourceConfig) -> Row:
    """Rename a row's fields to their canonical names; a renamed field loses its own name."""
    fields: dict[str, str] = {}
    for name, path in config.fields.items():
        fields["reasoning_content" if name == "reasoning" else name] = path
    return stored_response(gym_rollout(mapped(row, fields)))


def gym_rollout(row: Row) -> Row:
    """Put the request and the response of a rollout of NeMo Gym where one of Responses has them."""
    request = row.get("responses_create_params")
    response = row.get("response")
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return row
    turns: Any = request.get("input")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if request.get("instructions") and isinstance(turns, list):
        turns = [{"role": "system", "content": request["instructions"]}, *turns]
    parts = ("responses_create_params", "response")
    other_columns = {key: value for key, value in row.items() if key not in parts}
    tools = request.get("tools") or None  # [] declares none
    return {**other_columns, "input": turns, "output": response.get("output"), "tools": tools}


def stored_response(row: Row) -> Row:
    """Join a request and response of OpenAI's Responses, `input` and `output`, into one list."""
    output = row.get("output")
    if not isinstance(output, list) or not output or any(row.get(key) for key in LIST_KEYS):
        return row
    request = row.get("input")
    if isinstance(request, str):
        request = [{"role": "user", "content": request}]
    if not isinstance(request, list) or as_messages([*request, *output]) is None:
        return row
    other_columns = {key: value for key, value in row.items() if key not in ("input", "output")}
    return {**other_columns, "messages": [*request, *output]}


def mapped(row: Row, fields: Mapping[Any, str]) -> Row:
    """Put each field under the name that it is mapped to; fields inside messages stay."""
    paths = {name: path for name, path in fields.items() if name not in _IN_MESSAGE}
    if not paths:
        return row
    mapped_row = {key: value for key, value in row.items() if key not in paths.values()}
    for name, path in paths.items():
        try:
            mapped_row[name] = lookup(row, path)
        except KeyError:
            # without it the row fits another dialect or none; never a half-mapped one
            mapped_row.pop(name, None)
    return mapped_row


def recognise(row: Row, reading: Reading) -> str:
    """Recognise the dialect of a row by its structure.

    A row that fits two goes to the first of: chosen/rejected, a list of messages, Alpaca or
    prompt/completion (never both of these).

    Raises:
        RowProblem: `unrecognised`.
    """
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return "chosen_rejected"
    if (column := find_list(row)) is not None:
        return _recognise_list(row, column[1], reading)
    # tables joined from several sets have every column in every row, most of them null
    filled_columns = {key for key, value in row.items() if value is not None}
    # a column of answers counts even if it is null: such a row has an empty answer
    text_columns = filled_columns | (_ANSWERS & set(row))
    dialects = _text_dialects(text_columns) or _text_dialects(set(row))
    if len(dialects) > 1:
        raise not_a("any one dialect", row, "both alpaca and prompt_completion; name one")
    if dialects:
        return dialects[0]
    for key in LIST_KEYS:
        if row.get(key) is not None:
            raise RowProblem("unrecognised", key, f"not a list of messages: {row[key]!r:.80}")
    detail = "if it holds a conversation, map its columns (fields: {prompt: …, completion: …})"
    raise not_a("any known dialect", row, detail)


def _text_dialects(columns: set[str]) -> list[str]:
    """Names of the text dialects whose columns are all there."""
    dialects: list[str] = []
    if "instruction" in columns and not columns.isdisjoint(OUTPUT_KEYS):
        dialects.append("alpaca")
    if "prompt" in columns and not columns.isdisjoint(COMPLETION_KEYS):
        dialects.append("prompt_completion")
    return dialects


def _recognise_list(row: Row, messages: list[Mapping[str, Any]], reading: Reading) -> str:
    """Recognise the dialect of a row with a list of messages by the keys of their authors."""
    if all(_names_author(message, reading.role or "role") for message in messages):
        has_inline_trace = any(_starts_with_trace(message, reading) for message in messages)
        return "inline_think" if has_inline_trace else "openai"
    if all(message.get("from") is not None for message in messages):
        return "sharegpt"
    raise not_a("any known dialect", row, "not every message has role, nor every one from")


def _starts_with_trace(message: Mapping[str, Any], reading: Reading) -> bool:
    """True if a message of no user starts with an opening think tag."""
    content = content_of(message, reading)
    has_tag = isinstance(content, str) and content.lstrip().startswith(OPEN)
    return has_tag and role_of(message, reading) != "user"
