"""Chat rows of any dialect → messages and tools, with one reader for each dialect.

    read_row({"instruction": "Add.", "input": "2 2", "output": "4"}, config)
    → ("alpaca", Conversation(messages=(…), tools=None))

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    {"instruction": "Translate.", "input": "chat", "output": "cat", "history": [["Hi", "Hello"]]}
    {"prompt": "2+2?", "completion": "4"}
    {"prompt": "…", "chosen": "good", "rejected": "bad"}

To add a dialect: one function here, one line in `DIALECTS`, its structure in `recognise`, its name
in `posttrain.config.source.DialectName`, a line in `docs/guides/dialects.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from data_builders.dialects.columns import is_more_than_a_switch
from data_builders.dialects.forms import AUTHOR_TYPES, type_of
from data_builders.dialects.masks import has_row_masks, row_masks
from data_builders.dialects.messages import (
    LIST_KEYS,
    as_messages,
    assistant_text,
    content_of,
    conversation,
    find_list,
    read_messages,
    read_text,
    reasoning_of,
    role_of,
)
from data_builders.dialects.reading import (
    Conversation,
    Reading,
    Row,
    RowProblem,
    filled_keys,
    not_a,
)
from data_builders.rows.where import lookup, named_paths
from posttrain.chat.reasoning import OPEN
from posttrain.config.source import SourceConfig
from posttrain.records import Message

__all__ = ["DIALECTS", "Conversation", "Reading", "RowProblem", "read_row", "recognise"]
OUTPUT_KEYS = ("output", "response")
COMPLETION_KEYS = ("completion", "response")
REQUEST_KEYS = ("instruction", "input", "context")
Side = Literal["chosen", "rejected"]
# a side that names another column, or a place in one: `chosen: 1` beside `responses`
_POINTER = re.compile(
    r"(?:(?:model|assistant|response|answer|output|completion|candidate)[ _-]?)?(?:[a-h]|\d{1,2})",
    re.IGNORECASE,
)
_ANSWERS = re.compile(
    r"(?:^|_)(?:response|answer|output|completion|generation|candidate)s?(?:_|$)", re.IGNORECASE
)
_NO_INPUT = frozenset({"<noinput>", "n/a", "nan"})  # the first is self-instruct's
_TRANSCRIPT = re.compile(r"\n\n(Human|Assistant):[ ]?")
# columns that hold a part of the prompt in rows of other dialects
_PARTS_OF_PROMPT = (*REQUEST_KEYS, "query", "question")
_PROMPT_COLUMNS = (*REQUEST_KEYS, "prompt", "question", "history")
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


# -- the readers -----------------------------------------------------------------------------------


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


def alpaca(row: Row, reading: Reading) -> Conversation:
    """`instruction` and, after an empty line, `input` (or Dolly's `context`) → `output`."""
    outputs = filled_keys(row, OUTPUT_KEYS)
    if "instruction" not in row or len(outputs) != 1:
        raise not_a("alpaca", row, "it needs instruction and one of output and response")
    text = read_text(row[outputs[0]], outputs[0])
    answer = assistant_text(text, reading, reasoning=_read_row_reasoning(row, reading))
    turns = (*_read_history(row, reading), Message("user", request(row)), answer)
    _refuse_row_masks(row, turns, reading)
    read_columns = {*REQUEST_KEYS, *reading.columns_of_reasoning, outputs[0], "history"}
    return conversation(row, turns, reading, read_columns=read_columns)


def prompt_completion(row: Row, reading: Reading) -> Conversation:
    """`prompt` → `completion` (or `response`)."""
    completions = filled_keys(row, COMPLETION_KEYS)
    if "prompt" not in row or len(completions) != 1:
        raise not_a("prompt_completion", row, "it needs prompt and one of completion and response")
    key = completions[0]
    prompt = read_prompt(row["prompt"], reading, "prompt")
    answer = read_answer(row[key], reading, key, reasoning=_read_row_reasoning(row, reading))
    if answer[: len(prompt)] == prompt:  # some rollouts of verifiers begin with it again
        answer = answer[len(prompt) :]
    turns = (*_read_history(row, reading), *prompt, *answer)
    _refuse_row_masks(row, turns, reading)
    read_columns = {"prompt", key, "history", *reading.columns_of_reasoning}
    return conversation(
        row, turns, reading, read_columns=read_columns, parts_of_prompt=_PARTS_OF_PROMPT
    )


def read_side(row: Row, side: Side, reading: Reading) -> Conversation:
    """Read the whole conversation that ends on one side of a preference."""
    if "chosen" not in row or "rejected" not in row:
        raise not_a("chosen_rejected", row, "it needs chosen and rejected")
    location, raw_messages = find_list(row) or ("", [])
    question_keys = [key for key in ("prompt", "question") if row.get(key) is not None]
    prompt: tuple[Message, ...] | None
    prompt_columns: tuple[str, ...]
    if raw_messages:
        prompt = read_messages(raw_messages, reading, location, prompt=True)
        prompt_columns = (location,)
    elif question_keys:
        key = question_keys[0]
        prompt = (*_read_history(row, reading), *read_prompt(row[key], reading, key))
        prompt_columns = (key, "history")
    elif row.get("instruction") is not None:
        prompt = (*_read_history(row, reading), Message("user", request(row)))
        prompt_columns = (*REQUEST_KEYS, "history")
    else:
        prompt = None  # the sides hold it
        prompt_columns = ()
    value = row[side]
    if value is None:
        raise RowProblem("empty_answer", side, "there is none")
    _refuse_pointer(row, side, reading)
    if prompt is None and isinstance(value, str):
        turns = _read_transcript(value, reading, side)
    else:
        turns = _join_turns(prompt or (), read_answer(value, reading, side))
    if reading.trains and not turns[-1].trained:
        raise RowProblem("untrained_turn", side, "a loss mask takes its answer out of the loss")
    _refuse_row_masks(row, turns, reading)
    return conversation(
        row,
        turns,
        reading,
        read_columns=("chosen", "rejected", *prompt_columns),
        parts_of_prompt=_PROMPT_COLUMNS,
        raw_messages=raw_messages,
        location=location,
    )


def _refuse_pointer(row: Row, side: Side, reading: Reading) -> None:
    """Refuse a side that says which of the answers in other columns it is."""
    if _POINTER.fullmatch(str(row[side]).strip()) is None:
        return
    for column, answers in row.items():
        is_used = column in ("chosen", "rejected") or column in reading.used_columns
        if not is_used and _ANSWERS.search(column) and is_more_than_a_switch(answers):
            detail = f"{row[side]!r} is one of the answers in {column}: map them under fields"
            raise RowProblem("malformed_message", side, detail)


def answer_beside(
    row: Row, turns: tuple[Message, ...], reading: Reading
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Read the answer, from a column, to a list of messages that ends on a question.

    Returns:
        The answer's turns and the columns that they were read from; nothing where the list ends on
        an answer, or no column of answers is filled.
    """
    if not reading.trains or not turns or turns[-1].role not in ("user", "tool"):
        return (), ()
    answer_keys = [key for key in ("completion", "response", "output") if row.get(key)]
    if len(answer_keys) != 1:
        return (), ()
    reasoning = _read_row_reasoning(row, reading)
    key = answer_keys[0]
    answer = read_answer(row[key], reading, key, reasoning=reasoning)
    _refuse_row_masks(row, turns + answer, reading)
    return answer, (key, *reading.columns_of_reasoning)


def _refuse_row_masks(row: Row, turns: Sequence[Message], reading: Reading) -> None:
    """Refuse a row whose own masks take a turn out of the loss: its turns come from columns."""
    if not reading.trains or not has_row_masks(row, reading):
        return
    trained = row_masks(row, reading, roles=[turn.role for turn in turns])
    if trained is not None and not all(trained):
        detail = "a loss mask of the row over turns that do not stand in one list is not honoured"
        raise RowProblem("malformed_message", "the row", detail)


def _join_turns(prompt: tuple[Message, ...], answer: tuple[Message, ...]) -> tuple[Message, ...]:
    """Join prompt and answer; an answer that starts with another role is the whole conversation."""
    if answer[0].role == "assistant":
        return (*prompt, *answer)
    if prompt and prompt[0].role == "system" and answer[0].role != "system":
        return (prompt[0], *answer)
    return answer


def request(row: Row) -> str:
    """Compose the user's turn of an Alpaca row."""
    instruction = read_text(row.get("instruction"), "instruction")
    texts: list[str] = []
    for key in ("input", "context"):
        text = read_text(row.get(key), key)
        texts.append("" if text.strip().lower() in _NO_INPUT else text)
    input_text, context = texts
    if input_text.strip() and context.strip():
        raise RowProblem("malformed_message", "context", "beside an input: one of them is lost")
    parts = (instruction, input_text if input_text.strip() else context)
    return "\n\n".join(part for part in parts if part.strip())


def _read_row_reasoning(row: Row, reading: Reading) -> str | None:
    """Read the trace in a column of its own: the recipe's, or one of the usual names."""
    return reasoning_of(row, None, reading.columns_of_reasoning, "the row")


def _read_history(row: Row, reading: Reading) -> list[Message]:
    """Read earlier exchanges, each a pair of texts."""
    value = row.get("history")
    if value is not None and not isinstance(value, list):
        raise RowProblem("malformed_message", "history", f"not a list: {value!r:.80}")
    turns: list[Message] = []
    for index, pair in enumerate(value or []):
        location = f"history[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowProblem("malformed_message", location, "not a pair of texts")
        question = read_text(pair[0], location)
        answer = read_text(pair[1], location)
        turns.append(Message("user", question))
        turns.append(assistant_text(answer, reading))
    return turns


def read_prompt(value: Any, reading: Reading, location: str) -> tuple[Message, ...]:
    """Read the turns before the answer: a text, one message or a list of messages."""
    if (turns := _read_turns(value, reading, location, prompt=True)) is not None:
        return turns
    text = read_text(value, location)
    if value is None:
        raise RowProblem("malformed_message", location, "there is no prompt")
    if text.startswith("\n\nHuman:"):
        turns = _read_transcript(text, reading, location)
        return turns if turns[-1].content else turns[:-1]  # it ends on "Assistant:"
    return (Message("user", text),)


def _read_transcript(text: str, reading: Reading, location: str) -> tuple[Message, ...]:
    """Read the turns of a `\\n\\nHuman: … \\n\\nAssistant: …` transcript."""
    head, *parts = _TRANSCRIPT.split(text)
    if head.strip() or not parts:
        raise RowProblem("unrecognised", location, "a text without a prompt, and no transcript")
    turns: list[Message] = []
    for speaker, turn in zip(parts[::2], parts[1::2], strict=True):
        is_user = speaker == "Human"
        turns.append(Message("user", turn) if is_user else assistant_text(turn, reading))
    return tuple(turns)


def read_answer(
    value: Any, reading: Reading, location: str, *, reasoning: str | None = None
) -> tuple[Message, ...]:
    """Read the turns of the answer: a text, one message or a list of messages."""
    turns = _read_turns(value, reading, location)
    if turns is None:
        return (assistant_text(read_text(value, location), reading, reasoning=reasoning),)
    if reasoning is not None:
        raise RowProblem("conflicting_reasoning", location, "messages beside a reasoning field")
    return turns


def _read_turns(
    value: Any, reading: Reading, location: str, *, prompt: bool = False
) -> tuple[Message, ...] | None:
    """Read turns from one message or a list of them; `None` if `value` is neither.

    An answer's text stays a text; a prompt may be the JSON text of a list of messages.
    """
    if isinstance(value, Mapping) and not all(isinstance(v, list) for v in value.values()):
        value = [value]
    is_text = isinstance(value, str)
    if (is_text and not prompt) or (raw_messages := as_messages(value)) is None:
        return None
    if is_text and not all(role_of(item, reading) for item in raw_messages):
        return None
    return read_messages(raw_messages, reading, location, prompt=prompt)


DIALECTS: dict[str, Callable[[Row, Reading], Conversation]] = {
    "chosen_rejected": lambda row, reading: read_side(row, "chosen", reading),
    "openai": partial(read_message_list, dialect="openai", key="role"),
    # an assistant's content may start with its trace
    "inline_think": partial(read_message_list, dialect="inline_think", key="role"),
    "sharegpt": partial(read_message_list, dialect="sharegpt", key="from"),
    "alpaca": alpaca,
    "prompt_completion": prompt_completion,
}
