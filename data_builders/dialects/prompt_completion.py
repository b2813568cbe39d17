"""Prompt and completion, each a text or messages.

{"prompt": "2+2?", "completion": "4"}
{"prompt": [{"role": "user", "content": "2+2?"}], "completion": [{"role": "assistant", …}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from data_builders.dialects.alpaca import history, row_reasoning
from data_builders.dialects.content import read_text
from data_builders.dialects.messages import (
    as_messages,
    assistant_text,
    conversation,
    read_messages,
    role_of,
)
from data_builders.dialects.reading import (
    Conversation,
    Reading,
    Row,
    RowProblem,
    given_keys,
    not_a,
)
from posttrain.records import Message

COMPLETION_KEYS = ("completion", "response")
_TRANSCRIPT = re.compile(r"\n\n(Human|Assistant):[ ]?")
_PARTS_OF_PROMPT = ("instruction", "input", "context", "query", "question")


def prompt_completion(row: Row, reading: Reading) -> Conversation:
    """`prompt` → `completion` (or `response`)."""
    completions = given_keys(row, COMPLETION_KEYS)
    if "prompt" not in row or len(completions) != 1:
        raise not_a("prompt_completion", row, "it needs prompt and one of completion and response")
    key = completions[0]
    turns = (
        *history(row, reading),
        *read_prompt(row["prompt"], reading, "prompt"),
        *read_answer(row[key], reading, key, reasoning=row_reasoning(row, reading)),
    )
    read = {"prompt", key, "history", *reading.columns_of_reasoning}
    return conversation(row, turns, reading, read=read, parts_of_prompt=_PARTS_OF_PROMPT)


def read_prompt(value: Any, reading: Reading, where: str) -> tuple[Message, ...]:
    """The turns before the answer, from a text, one message or a list of messages."""
    if (turns := read_turns(value, reading, where, prompt=True)) is not None:
        return turns
    text = read_text(value, where)
    if value is None:
        raise RowProblem("malformed_message", where, "there is no prompt")
    if text.startswith("\n\nHuman:"):
        turns = transcript(text, reading, where)
        return turns if turns[-1].content else turns[:-1]  # it ends on "Assistant:"
    return (Message("user", text),)


def transcript(text: str, reading: Reading, where: str) -> tuple[Message, ...]:
    """Turns of a `\\n\\nHuman: … \\n\\nAssistant: …` transcript."""
    head, *parts = _TRANSCRIPT.split(text)
    if head.strip() or not parts:
        raise RowProblem("unrecognised", where, "a text without a prompt, and no transcript")
    return tuple(
        Message("user", turn) if who == "Human" else assistant_text(turn, reading)
        for who, turn in zip(parts[::2], parts[1::2], strict=True)
    )


def read_answer(
    value: Any, reading: Reading, where: str, *, reasoning: str | None = None
) -> tuple[Message, ...]:
    """The answer's turns, from a text, one message or a list of messages."""
    turns = read_turns(value, reading, where)
    if turns is None:
        return (assistant_text(read_text(value, where), reading, reasoning=reasoning),)
    if reasoning is not None:
        raise RowProblem("conflicting_reasoning", where, "messages beside a reasoning field")
    return turns


def read_turns(
    value: Any, reading: Reading, where: str, *, prompt: bool = False
) -> tuple[Message, ...] | None:
    """One message or a list of them; `None` if `value` is neither.

    An answer's text stays a text; a prompt may be the JSON text of a list of messages.
    """
    if isinstance(value, Mapping) and not all(isinstance(v, list) for v in value.values()):
        value = [value]
    is_text = isinstance(value, str)
    if (is_text and not prompt) or (listed := as_messages(value)) is None:
        return None
    if is_text and not all(role_of(item, reading) for item in listed):
        return None
    return read_messages(listed, reading, where, prompt=prompt)
