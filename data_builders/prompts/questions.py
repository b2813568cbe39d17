"""A question as every kind of row gives it, before any setting asks it.

A row that gives none raises `RowProblem` with the reason it is counted under.
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
    """What is asked, without a setting.

    Attributes:
        messages: up to and including the turn to be answered; reasoning of earlier turns kept.
        tools: JSON text of the tools that the row itself declares.
        gold: what a grader compares with, None where there is nothing.
        metadata: JSON text of an object, for graders and environments.
        row: the raw row, for a setting's `where`.
        state: JSON text of whatever else makes it another question, e.g. what its tools will find.
        needs_tools: cannot be answered without the declared tools.
        text: the question without what the message puts around it; None: the message is all.
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
        """16 hex digits of what is asked and what is right; declared tools do not count."""
        parts = [[message_to_row(m) for m in self.messages], self.gold, self.state]
        text = json_text(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=8).hexdigest()


def field_of(row: Row, path: str) -> Any:
    """A field's value. Raises RowProblem `missing_field`."""
    try:
        return lookup(row, path)
    except KeyError:
        raise RowProblem("missing_field", path, "the row has no such field") from None


def text_of(row: Row, path: str) -> str:
    """A field that holds text or a number, as text. Raises RowProblem."""
    value = field_of(row, path)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowProblem("malformed_field", path, f"text is needed, found {value!r:.80}")
    text = str(value).strip()
    if not text:
        raise RowProblem("empty_field", path, "nothing stands there")
    return text


def carried(row: Row, paths: tuple[str, ...], **more: Any) -> str:
    """Metadata: the fields at `paths` by their last part, and `more`, as JSON text."""
    kept: dict[str, Any] = {}
    for path in paths:
        try:
            kept[path.rpartition(".")[2]] = lookup(row, path)
        except KeyError:
            continue
    try:
        return encode_json(kept | more)
    except ValueError as error:
        raise RowProblem("malformed_metadata", ", ".join(paths), str(error)) from None


def read_chat(row: Row, source: ChatPrompts) -> RowQuestion:
    """Raises RowProblem: no conversation with a user who says something, or no gold where named."""
    _, conversation = read_row(row, source.rows(), trains=False)
    messages = conversation.messages
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    until = answers[-1] if answers else len(messages)
    users = [i for i, message in enumerate(messages[:until]) if message.role == "user"]
    if not users:
        raise RowProblem("no_user", "messages", "no user turn to answer")
    messages = messages[: users[-1] + 1]
    if (empty := first_empty(messages, "user")) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return RowQuestion(
        messages=messages,
        tools=conversation.tools,
        gold=None if source.gold is None else text_of(row, source.gold),
        metadata=carried(row, source.metadata),
        row=row,
    )


def read_question(row: Row, source: QuestionPrompts) -> RowQuestion:
    """Raises RowProblem: a field is missing or empty, or the gold is not to be found in it."""
    question = text_of(row, source.question)
    options = _options(row, source, question)
    gold = None
    if source.gold is not None:
        gold = _letter(row, source, options) if options else _gold(row, source)
    system = () if source.system is None else (Message("system", source.system),)
    return RowQuestion(
        messages=(*system, Message("user", fill(source.text, question, options))),
        tools=None,
        gold=gold,
        metadata=carried(row, source.metadata, **({"options": options} if options else {})),
        row=row,
        text=question,
    )


def _gold(row: Row, source: QuestionPrompts) -> str:
    text = text_of(row, str(source.gold))
    if source.gold_pattern is None:
        return text
    found = list(re.finditer(source.gold_pattern, text))
    gold = (found[-1][1] or "").strip() if found else ""
    if not gold:
        why = f"no match of {source.gold_pattern!r}"
        raise RowProblem("gold_unreadable", str(source.gold), why)
    return gold


def _texts(row: Row, source: QuestionPrompts) -> list[str]:
    """The options' texts in the row's own order."""
    if len(source.options) == 1:
        listed = field_of(row, source.options[0])
        if not isinstance(listed, list) or not 2 <= len(listed) <= len(OPTION_LETTERS):
            raise RowProblem("malformed_field", source.options[0], "not a list of options")
        return [text_of({"option": item}, "option") for item in listed]
    return [text_of(row, path) for path in source.options]


def _options(row: Row, source: QuestionPrompts, question: str) -> dict[str, str]:
    """Letter → text, in the order shown."""
    if not source.options:
        return {}
    texts = _texts(row, source)
    if len(set(texts)) < len(texts):
        raise RowProblem("equal_options", source.options[0], "two options say the same")
    if source.shuffle:
        # by the text of each option, so that the row's own order gives nothing away
        texts.sort(key=lambda text: key64(0, "option", question, text))
    return dict(zip(OPTION_LETTERS, texts, strict=False))


def _letter(row: Row, source: QuestionPrompts, options: Mapping[str, str]) -> str:
    """The letter, among those shown, of the right option."""
    own, path = _texts(row, source), str(source.gold)
    value = field_of(row, path)
    gold = _gold(row, source)
    readings = {text for text in own if text == gold}
    if isinstance(value, int) and not isinstance(value, bool):
        readings.update(own[value : value + 1] if value >= 0 else ())
    elif len(gold) == 1 and gold in OPTION_LETTERS:
        place = OPTION_LETTERS.index(gold)
        readings.update(own[place : place + 1])
    if len(readings) != 1:
        kind = "gold_ambiguous" if readings else "gold_unreadable"
        raise RowProblem(kind, path, f"{value!r:.80} names {len(readings)} of the options")
    return next(letter for letter, text in options.items() if text in readings)


_METADATA = ("gold", "grading", "turns", "tools_declared", "initial_state")


def read_tiny_world(row: Row, source: TinyWorldPrompts) -> RowQuestion:
    """Raises RowProblem: not a row of the tiny world, or its user answers back."""
    metadata: Any = row.get("metadata")
    if not isinstance(metadata, dict) or not all(key in metadata for key in _METADATA):
        raise RowProblem("unrecognised", "metadata", "not a row of the tiny world")
    if metadata["grading"] == "question":
        raise RowProblem("needs_replies", "metadata.grading", "its user answers back")
    messages = row["messages"]
    if "reference" not in row:
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        messages = messages[: users[metadata["turns"] - 1] + 1]
    state = metadata["initial_state"]
    return RowQuestion(
        messages=tuple(message_of(message) for message in messages),
        tools=json_text(row["tools"]) if row["tools"] else None,
        gold=metadata["gold"],
        metadata=json_text(metadata),
        row=row,
        state=json_text([state, metadata["fault"]]),
        # what the tools would have told is nowhere in the question
        needs_tools=bool(row["tools"]) and bool(state),
    )


def _environment(source: EnvironmentPrompts) -> RLVREnvironment:
    environment = find_environment(source.environment)
    assert environment is not None, "the plan has looked it up"
    return environment


def read_environment(row: Row, source: EnvironmentPrompts) -> RowQuestion:
    """Of a row of ours or of NeMo Gym's; raises RowProblem where it is of no such environment."""
    try:
        own = row
        if source.server_url is not None:
            own = gym_http_row(row, url=source.server_url.rstrip("/"))
        elif "responses_create_params" in row:
            own = gym_row(row, server=source.server, environment=source.environment)
        if source.match is not None:
            own = {**own, "metadata": {**own.get("metadata", {}), "match": source.match}}
    except DataError as error:
        reason, _, why = str(error).partition(": ")
        raise RowProblem(reason, "agent_ref", why) from None
    environment = _environment(source)
    names = {source.environment, getattr(environment, "own_name", source.environment)}
    if (named := own.get("environment", source.environment)) not in names:
        raise RowProblem("other_environment", "environment", f"the row is of {named!r:.80}")
    try:
        prompt = environment.prompt(own, source=source.name)
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
    total = RowCounts()
    for counts in sources:
        total.rows_in += counts.rows_in
        total.kept += counts.kept
        total.dropped += counts.dropped
    return Counts(total.rows_in, total.kept, dict(sorted(total.dropped.items())))


def distinct_questions(
    source: AnySource, counts: RowCounts, *, seen: set[str], base_dir: Path
) -> Iterator[RowQuestion]:
    """Each question of a source once; `seen` (their digests) lasts over all sources.

    Rows that are no question or that `where` refuses are counted. Raises as `read_rows` does.
    """
    read, config = READERS[source.format], source.rows()
    if isinstance(source, EnvironmentPrompts) and source.generated is not None:
        environment, place = _environment(source), source.environment
        made = environment.rows(seed=source.generated, count=source.count or 0)
        if not made:
            raise ConfigError(f"source {source.name!r}: {place} generates no rows; give a path")
        raws = (RawRow(row, place, number) for number, row in enumerate(made, start=1))
        rows = matching_rows(raws, SeenFields(config))
    else:
        rows = read_rows(config, base_dir)
    for item in read_each(rows, config, read=lambda raw: read(raw.row, source), counts=counts):
        if isinstance(item, Drop):
            continue
        if item.digest in seen:
            counts.drop("duplicate")
        else:
            seen.add(item.digest)
            yield item
