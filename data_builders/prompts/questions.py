"""Readers of the question of a row, for rows of every kind, before a setting is applied.

A reader raises `RowProblem` with the drop reason for a row without a question.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_builders.dialects import RowProblem, read_row
from data_builders.filters.structure import first_empty
from data_builders.keyed import key64
from data_builders.rows.raw import Drop, RawRow
from data_builders.rows.read import RowCounts, matching_rows, read_each, read_rows
from data_builders.rows.where import SeenFields, lookup
from data_builders.tiny_world.items import message_of
from posttrain.config.prompts import (
    AnySource,
    ChatPrompts,
    EnvironmentPrompts,
    QuestionPrompts,
    TinyWorldPrompts,
)
from posttrain.config.templates import OPTION_LETTERS, fill
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import encode_json
from posttrain.records import Message, json_text, message_to_row
from posttrain.runs import Counts
from reward.environments import find_environment
from reward.environments.base import RLVREnvironment
from reward.environments.gym_http import gym_http_row
from reward.environments.gym_rows import gym_row

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowQuestion:
    """Question of one row, without a setting.

    Attributes:
        messages: conversation up to the turn to be answered, with the reasoning of earlier turns.
        tools: JSON text of the tools that the row itself declares.
        gold: gold answer for a grader; None without one.
        metadata: JSON text of an object, for graders and environments.
        row: raw row, for a setting's `where`.
        state: JSON text of what else tells questions apart, such as the data that its tools read.
        needs_tools: True if it cannot be answered without the declared tools.
        text: question without the text that the message puts around it; None where it is the whole
            message.
    """

    messages: tuple[Message, ...]
    tools: str | None
    gold: str | None
    metadata: str
    row: Row
    state: str = ""
    needs_tools: bool = False
    text: str | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of the question and its gold in 16 hex digits; declared tools do not count."""
        messages = [message_to_row(message) for message in self.messages]
        parts = [messages, self.gold, self.state]
        text = json_text(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=8).hexdigest()


def field_of(row: Row, path: str, *, key: str = "") -> Any:
    """Look up the value of a field. Raises RowProblem `missing_field`.

    Args:
        key: key of the source that names the field, for the message.
    """
    try:
        return lookup(row, path)
    except KeyError:
        detail = f"the row has no such field, but {', '.join(row)}"
        if key:
            detail += f"; name it by {key}: of the source"
        raise RowProblem("missing_field", path, detail) from None


def text_of(row: Row, path: str, *, key: str = "") -> str:
    """Read the text of a field that holds text or a number. Raises RowProblem if it is empty.

    Args:
        key: as for `field_of`.
    """
    value = field_of(row, path, key=key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowProblem("malformed_field", path, f"text is needed, found {value!r:.80}")
    text = str(value).strip()
    if not text:
        raise RowProblem("empty_field", path, "nothing stands there")
    return text


def metadata_text(row: Row, paths: tuple[str, ...], **more: Any) -> str:
    """Collect the metadata of a question as JSON text; fields that the row lacks are left out.

    Args:
        paths: fields of the row to carry along, each under the last part of its path.
        more: further keys.

    Raises:
        RowProblem: `malformed_metadata`, a value that JSON cannot express.
    """
    metadata: dict[str, Any] = {}
    for path in paths:
        try:
            metadata[path.rpartition(".")[2]] = lookup(row, path)
        except KeyError:
            continue
    try:
        return encode_json(metadata | more)
    except ValueError as error:
        raise RowProblem("malformed_metadata", ", ".join(paths), str(error)) from None


def read_chat(row: Row, source: ChatPrompts) -> RowQuestion:
    """Read the last answered question of a conversation.

    Raises:
        RowProblem: no conversation, no user turn with text, or no gold where the source names one.
    """
    _, conversation = read_row(row, source.rows(), trains=False)
    messages = conversation.messages
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    # the last answer goes, with everything between it and its question
    end = answers[-1] if answers else len(messages)
    user_turns = [i for i, message in enumerate(messages[:end]) if message.role == "user"]
    if not user_turns:
        raise RowProblem("no_user", "messages", "no user turn to answer")
    messages = messages[: user_turns[-1] + 1]
    if (empty := first_empty(messages, "user")) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return RowQuestion(
        messages=messages,
        tools=conversation.tools,
        gold=None if source.gold is None else text_of(row, source.gold, key="gold"),
        metadata=metadata_text(row, source.metadata),
        row=row,
    )


def read_question(row: Row, source: QuestionPrompts) -> RowQuestion:
    """Read a question from named columns, with options where the source has them.

    Raises:
        RowProblem: a field is missing or empty, or its gold cannot be read.
    """
    question = text_of(row, source.question, key="question")
    options = _shown_options(row, source, question)
    gold = None
    if source.gold is not None:
        gold = _gold_letter(row, source, options) if options else _gold_text(row, source)
    system = () if source.system is None else (Message("system", source.system),)
    shown_options = {"options": options} if options else {}
    return RowQuestion(
        messages=(*system, Message("user", fill(source.text, question, options))),
        tools=None,
        gold=gold,
        metadata=metadata_text(row, source.metadata, **shown_options),
        row=row,
        text=question,
    )


def _gold_text(row: Row, source: QuestionPrompts) -> str:
    """Read the gold of a row: the whole field, or the last match of the source's pattern in it."""
    text = text_of(row, str(source.gold), key="gold")
    if source.gold_pattern is None:
        return text
    matches = list(re.finditer(source.gold_pattern, text))
    gold = (matches[-1][1] or "").strip() if matches else ""
    if not gold:
        detail = f"no match of {source.gold_pattern!r}"
        raise RowProblem("gold_unreadable", str(source.gold), detail)
    return gold


def _option_texts(row: Row, source: QuestionPrompts) -> list[str]:
    """Read the texts of the options, in the order of the row."""
    if len(source.options) == 1:
        values = field_of(row, source.options[0])
        if not isinstance(values, list) or not 2 <= len(values) <= len(OPTION_LETTERS):
            raise RowProblem("malformed_field", source.options[0], "not a list of options")
        return [text_of({"option": value}, "option") for value in values]
    return [text_of(row, path) for path in source.options]


def _shown_options(row: Row, source: QuestionPrompts, question: str) -> dict[str, str]:
    """Letter → text of each option, in the order in which the prompt shows them; maybe shuffled."""
    if not source.options:
        return {}
    texts = _option_texts(row, source)
    if len(set(texts)) < len(texts):
        raise RowProblem("equal_options", source.options[0], "two options say the same")
    if source.shuffle:
        # keyed by the text of each option, so that the order of the row gives nothing away
        texts.sort(key=lambda text: key64(0, "option", question, text))
    return dict(zip(OPTION_LETTERS, texts, strict=False))


def _gold_letter(row: Row, source: QuestionPrompts, options: Mapping[str, str]) -> str:
    """Letter of the right option in the prompt.

    The row may name it by its text, by an index from 0 or by a letter in the order of the row.
    """
    texts = _option_texts(row, source)
    path = str(source.gold)
    value = field_of(row, path)
    gold = _gold_text(row, source)
    readings = {text for text in texts if text == gold}
    index: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        index = value
    elif len(gold) == 1 and gold in OPTION_LETTERS:
        index = OPTION_LETTERS.index(gold)
    if index is not None and 0 <= index < len(texts):
        readings.add(texts[index])
    if len(readings) != 1:
        reason = "gold_ambiguous" if readings else "gold_unreadable"
        raise RowProblem(reason, path, f"{value!r:.80} names {len(readings)} of the options")
    return next(letter for letter, text in options.items() if text in readings)


_TINY_WORLD_METADATA = ("gold", "grading", "turns", "tools_declared", "initial_state", "fault")


def read_tiny_world(row: Row, source: TinyWorldPrompts) -> RowQuestion:
    """Read a question of the tiny world.

    Raises:
        RowProblem: not a row of the tiny world, or one whose user replies to the answer.
    """
    metadata: Any = row.get("metadata")
    if not isinstance(metadata, dict) or not all(key in metadata for key in _TINY_WORLD_METADATA):
        needed = ", ".join(_TINY_WORLD_METADATA)
        raise RowProblem("unrecognised", "metadata", f"a row of the tiny world has {needed}")
    if metadata["grading"] == "question":
        raise RowProblem("needs_replies", "metadata.grading", "its user answers back")
    messages = row["messages"]
    if "reference" not in row:  # a row for training: its answer stands among the messages
        user_turns = [i for i, message in enumerate(messages) if message["role"] == "user"]
        messages = messages[: user_turns[metadata["turns"] - 1] + 1]
    state = metadata["initial_state"]
    return RowQuestion(
        messages=tuple(message_of(message) for message in messages),
        tools=json_text(row["tools"]) if row.get("tools") else None,
        gold=metadata["gold"],
        metadata=json_text(metadata),
        row=row,
        state=json_text([state, metadata["fault"]]),
        # the question does not contain what its tools would return
        needs_tools=bool(row.get("tools")) and bool(state),
    )


def _environment_of(source: EnvironmentPrompts) -> RLVREnvironment:
    """Environment of a source, by its name."""
    environment = find_environment(source.environment)
    assert environment is not None, "the plan has looked it up"
    return environment


def read_environment(row: Row, source: EnvironmentPrompts) -> RowQuestion:
    """Read the question of an environment's row, in our form or in that of NeMo Gym.

    Raises:
        RowProblem: the row belongs to another environment, or cannot be read.
    """
    try:
        native_row = row
        if source.server_url is not None:
            native_row = gym_http_row(row, url=source.server_url.rstrip("/"))
        elif "responses_create_params" in row:
            native_row = gym_row(row, server=source.server, environment=source.environment)
        if source.match is not None:
            metadata = {**native_row.get("metadata", {}), "match": source.match}
            native_row = {**native_row, "metadata": metadata}
    except DataError as error:
        reason, _, detail = str(error).partition(": ")
        raise RowProblem(reason, "agent_ref", detail) from None
    environment = _environment_of(source)
    names = {source.environment, getattr(environment, "own_name", source.environment)}
    row_environment = native_row.get("environment", source.environment)
    if row_environment not in names:
        detail = f"the row is of {row_environment!r:.80}"
        raise RowProblem("other_environment", "environment", detail)
    try:
        prompt = environment.prompt(native_row, source=source.name)
    except DataError as error:
        raise RowProblem("malformed_row", source.environment, str(error)) from None
    return RowQuestion(
        messages=prompt.messages,
        tools=prompt.tools,
        gold=prompt.gold,
        metadata=prompt.metadata,
        row=row,
        state=prompt.metadata,
    )


READERS: Mapping[str, Callable[[Row, Any], RowQuestion]] = {
    "tiny_world": read_tiny_world,
    "question": read_question,
    "chat": read_chat,
    "environment": read_environment,
}


def total_counts(sources: Iterable[RowCounts]) -> Counts:
    """Add up the counts of all sources."""
    total = RowCounts()
    for counts in sources:
        total.rows_in += counts.rows_in
        total.kept += counts.kept
        total.dropped += counts.dropped
    return Counts(total.rows_in, total.kept, dict(sorted(total.dropped.items())))


def distinct_questions(
    source: AnySource, counts: RowCounts, *, seen: set[str], base_dir: Path
) -> Iterator[RowQuestion]:
    """Yield the questions of a source without duplicates, and count its rows, kept and dropped.

    Args:
        seen: digests of the questions of earlier sources; those of this one are added.

    Raises:
        ConfigError: an environment that generates no rows; also the errors of `read_rows`.
        DataError: see `read_rows`.
    """
    read_row_question = READERS[source.format]
    config = source.rows()
    if isinstance(source, EnvironmentPrompts) and source.generated is not None:
        name = source.environment
        generated = _environment_of(source).rows(seed=source.generated, count=source.count or 0)
        if not generated:
            raise ConfigError(f"source {source.name!r}: {name} generates no rows; give a path")
        raw_rows = (RawRow(row, name, number) for number, row in enumerate(generated, start=1))
        rows = matching_rows(raw_rows, SeenFields(config))
    else:
        rows = read_rows(config, base_dir)
    questions = read_each(
        rows, config, read=lambda raw: read_row_question(raw.row, source), counts=counts
    )
    for question in questions:
        if isinstance(question, Drop):
            continue
        if question.digest in seen:
            counts.drop("duplicate")
        else:
            seen.add(question.digest)
            yield question
