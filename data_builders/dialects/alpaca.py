"""Alpaca: one instruction, perhaps an input to work on, one output, perhaps earlier exchanges.

{"instruction": "Translate.", "input": "chat", "output": "cat", "history": [["Hi", "Hello"]]}
"""

from __future__ import annotations

from data_builders.dialects.content import read_text
from data_builders.dialects.messages import assistant_text, conversation, reasoning_of
from data_builders.dialects.reading import (
    Conversation,
    Reading,
    Row,
    RowProblem,
    given_keys,
    not_a,
)
from posttrain.records import Message

OUTPUT_KEYS = ("output", "response")
REQUEST_KEYS = ("instruction", "input", "context")
# what a column beside an answer says when it switches a model's reasoning
_SWITCHES = frozenset(
    {"on", "off", "true", "false", "yes", "no", "none", "low", "medium", "high", "auto"}
)


def alpaca(row: Row, reading: Reading) -> Conversation:
    """`instruction` and, after an empty line, `input` (or Dolly's `context`) → `output`."""
    outputs = given_keys(row, OUTPUT_KEYS)
    if "instruction" not in row or len(outputs) != 1:
        raise not_a("alpaca", row, "it needs instruction and one of output and response")
    text = read_text(row[outputs[0]], outputs[0])
    answer = assistant_text(text, reading, reasoning=row_reasoning(row, reading))
    turns = (*history(row, reading), Message("user", request(row)), answer)
    read = {*REQUEST_KEYS, *reading.columns_of_reasoning, outputs[0], "history"}
    return conversation(row, turns, reading, read=read)


def request(row: Row) -> str:
    """The user's turn of an Alpaca row."""
    instruction, given, context = (read_text(row.get(key), key) for key in REQUEST_KEYS)
    if given.strip() and context.strip():
        raise RowProblem("malformed_message", "context", "beside an input: one of them is lost")
    parts = (instruction, given if given.strip() else context)
    return "\n\n".join(part for part in parts if part.strip())


def row_reasoning(row: Row, reading: Reading) -> str | None:
    """A trace in a column of its own: the recipe's, or one of the usual names."""
    return reasoning_of(row, None, reading.columns_of_reasoning, "the row", switches=_SWITCHES)


def history(row: Row, reading: Reading) -> list[Message]:
    """Earlier exchanges, each a pair of texts."""
    value = row.get("history")
    turns: list[Message] = []
    if value is not None and not isinstance(value, list):
        raise RowProblem("malformed_message", "history", f"not a list: {value!r:.80}")
    for index, pair in enumerate(value or []):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowProblem("malformed_message", f"history[{index}]", "not a pair of texts")
        instruction, answer = (read_text(text, f"history[{index}]") for text in pair)
        turns += [Message("user", instruction), assistant_text(answer, reading)]
    return turns
