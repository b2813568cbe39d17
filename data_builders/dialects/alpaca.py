"""Alpaca: one instruction, perhaps an input to work on, one output, perhaps earlier exchanges.

{"instruction": "Translate.", "input": "chat", "output": "cat", "history": [["Hi", "Hello"]]}
"""

from __future__ import annotations

from typing import Any

from data_builders.dialects.content import read_text, refuse_media
from data_builders.dialects.loss_masks import refuse_row_masks
from data_builders.dialects.message import assistant_text
from data_builders.dialects.messages_list import declared_tools, given_keys, not_a, with_system
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem
from posttrain.records import Message

OUTPUT_KEYS = ("output", "response")


def alpaca(row: Row, how: Reading) -> Conversation:
    """`instruction` and, after an empty line, `input` (or Dolly's `context`) → `output`."""
    outputs = given_keys(row, OUTPUT_KEYS)
    if "instruction" not in row or len(outputs) != 1:
        raise not_a("alpaca", row, "it needs instruction and one of output and response")
    refuse_media(row)
    refuse_row_masks(row, how)
    answer = assistant_text(
        read_text(row[outputs[0]], outputs[0]), how, reasoning=row_reasoning(row)
    )
    turns = (*_history(row.get("history"), how), Message("user", request(row)), answer)
    return Conversation(with_system(row, turns), declared_tools(row))


def request(row: Row) -> str:
    """The user's turn of an Alpaca row."""
    key = "input" if row.get("input") is not None else "context"
    parts = (read_text(row["instruction"], "instruction"), read_text(row.get(key), key))
    return "\n\n".join(part for part in parts if part.strip())


def row_reasoning(row: Row) -> str | None:
    """A trace in a field of its own: `reasoning_content`, or what the recipe maps to it."""
    return read_text(row.get("reasoning_content"), "reasoning_content") or None


def _history(value: Any, how: Reading) -> list[Message]:
    turns: list[Message] = []
    if value is not None and not isinstance(value, list):
        raise RowProblem("malformed_message", "history", f"not a list: {value!r:.80}")
    for index, pair in enumerate(value or []):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowProblem("malformed_message", f"history[{index}]", "not a pair of texts")
        instruction, answer = (read_text(text, f"history[{index}]") for text in pair)
        turns += [Message("user", instruction), assistant_text(answer, how)]
    return turns
