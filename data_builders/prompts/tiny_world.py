"""Rows of the tiny world → questions: training rows lose their reference, held-out rows have none.

read_tiny_world({"messages": […], "tools": […], "metadata": {"gold": "42", "turns": 1, …}}, source)
"""

from __future__ import annotations

from typing import Any

from data_builders.dialects import RowProblem
from data_builders.prompts.question import Question, Row
from data_builders.tiny_world.episodes import message_of
from posttrain.config.prompts import TinyWorldPrompts
from posttrain.records import json_text

_METADATA = ("gold", "grading", "turns", "tools_declared", "initial_state")


def read_tiny_world(row: Row, source: TinyWorldPrompts) -> Question:
    """The question of one row.

    Raises:
        RowProblem: no row of the tiny world, or one whose user answers back (`needs_replies`).
    """
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
    return Question(
        messages=tuple(message_of(message) for message in messages),
        tools=json_text(row["tools"]) if row["tools"] else None,
        gold=metadata["gold"],
        metadata=json_text(metadata),
        row=row,
        state=json_text([state, metadata["fault"]]),
        # what the tools would have told is nowhere in the question
        needs_tools=bool(row["tools"]) and bool(state),
    )
