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


def read_message_list(row: Row, reading: Reading, *, dialect: str, key: str) -> Conversation:
    """Read a row's list of messages, and an answer that a column beside the list holds.

    Args:
        key: key under which a message names its author.
    """
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
    "openai": partial(read_message_list, dialect="openai", key="role"),
    # an assistant's content may start with its trace
    "inline_think": partial(read_message_list, dialect="inline_think", key="role"),
    "sharegpt": partial(read_message_list, dialect="sharegpt", key="from"),
    "alpaca": alpaca,
    "prompt_completion": prompt_completion,
}
_ANSWER_COLUMNS = frozenset({*OUTPUT_KEYS, *COMPLETION_KEYS})
# a recipe maps these inside each message: `Reading` has them, the row's columns stay
_MAPPED_IN_MESSAGES = ("role", "content")


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
    canonical_row = canonicalise(row, config)
    try:
        dialect = config.dialect or recognise(canonical_row, reading)
        return dialect, DIALECTS[dialect](canonical_row, reading)
    except RecursionError:
        raise RowProblem("malformed_json", "the row", "nested too deep") from None


def fitting_dialects(row: Row, config: SourceConfig) -> list[str]:
    """Names of the dialects whose readers read the row without a problem."""
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


def canonicalise(row: Row, config: SourceConfig) -> Row:
    """Rename a row's mapped columns, and turn a stored request and response into messages."""
    fields: dict[str, str] = {}
    for name, path in config.fields.items():
        canonical_name = "reasoning_content" if name == "reasoning" else name
        fields[canonical_name] = path
    renamed_row = rename_columns(row, fields)
    return join_stored_response(unwrap_gym_rollout(renamed_row))


def unwrap_gym_rollout(row: Row) -> Row:
    """Move a NeMo Gym rollout to `input`, `output` and `tools`, as OpenAI's Responses name them.

    Other rows are returned as they are.
    """
    request = row.get("responses_create_params")
    response = row.get("response")
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return row
    turns: Any = request.get("input")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if request.get("instructions") and isinstance(turns, list):
        turns = [{"role": "system", "content": request["instructions"]}, *turns]
    rollout_columns = ("responses_create_params", "response")
    other_columns = {key: value for key, value in row.items() if key not in rollout_columns}
    tools = request.get("tools") or None  # [] declares none
    return {**other_columns, "input": turns, "output": response.get("output"), "tools": tools}


def join_stored_response(row: Row) -> Row:
    """Join `input` and `output` of OpenAI's Responses into one list under `messages`.

    Other rows are returned as they are.
    """
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


def rename_columns(row: Row, fields: Mapping[Any, str]) -> Row:
    """Rename columns as a recipe maps them; a name whose path is missing is removed.

    Args:
        fields: canonical name → path in the row. Those of keys inside messages are left alone.
    """
    paths = {name: path for name, path in fields.items() if name not in _MAPPED_IN_MESSAGES}
    if not paths:
        return row
    mapped_row = {key: value for key, value in row.items() if key not in paths.values()}
    for name, path in paths.items():
        try:
            mapped_row[name] = lookup(row, path)
        except KeyError:
            # without it the row fits another dialect or none. A column that has the name already
            # was not meant by the recipe, so the row is never read half mapped
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
    text_columns = filled_columns | (_ANSWER_COLUMNS & set(row))
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
    """Names of those among alpaca and prompt_completion whose columns are all there."""
    dialects: list[str] = []
    if "instruction" in columns and not columns.isdisjoint(OUTPUT_KEYS):
        dialects.append("alpaca")
    if "prompt" in columns and not columns.isdisjoint(COMPLETION_KEYS):
        dialects.append("prompt_completion")
    return dialects


def _recognise_list(row: Row, messages: list[Mapping[str, Any]], reading: Reading) -> str:
    """Recognise the dialect of a list of messages by its authors' keys and an inline trace."""
    if all(_names_author(message, reading.role or "role") for message in messages):
        has_inline_trace = any(_starts_with_trace(message, reading) for message in messages)
        return "inline_think" if has_inline_trace else "openai"
    if all(message.get("from") is not None for message in messages):
        return "sharegpt"
    raise not_a("any known dialect", row, "not every message has role, nor every one from")


def _starts_with_trace(message: Mapping[str, Any], reading: Reading) -> bool:
    """True if a message that is not a user's starts with an opening think tag."""
    content = content_of(message, reading)
    has_tag = isinstance(content, str) and content.lstrip().startswith(OPEN)
    return has_tag and role_of(message, reading) != "user"
