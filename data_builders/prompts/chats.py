"""Conversations of any dialect → questions: everything up to the last user turn.

    {"messages": [{"role": "user", …}, {"role": "assistant", …}, {"role": "user", …}, …]}

A row without an assistant turn is a prompt as it stands. In one that ends on a user's turn after
answers (some logs close with the user's thanks) that turn is no question, and the one before it is.
"""

from __future__ import annotations

from data_builders.dialects import RowProblem, read_row
from data_builders.filters.structure import first_empty_user
from data_builders.prompts.question import Question, Row, carried, text_of
from posttrain.config.prompts import ChatPrompts


def read_chat(row: Row, source: ChatPrompts) -> Question:
    """The question of one row.

    Raises:
        RowProblem: no conversation, none with a user or one who says nothing, or no gold where one
            is named.
    """
    _, conversation = read_row(row, source.rows(), trains=False)
    messages = conversation.messages
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    until = answers[-1] if answers else len(messages)
    users = [i for i, message in enumerate(messages[:until]) if message.role == "user"]
    if not users:
        raise RowProblem("no_user", "messages", "no user turn to answer")
    messages = messages[: users[-1] + 1]
    if (empty := first_empty_user(messages)) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return Question(
        messages=messages,
        tools=conversation.tools,
        gold=None if source.gold is None else text_of(row, source.gold),
        metadata=carried(row, source.metadata),
        row=row,
    )
