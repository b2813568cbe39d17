"""The words of a preference row: the conversation, and what each side finally answered.

history_of(row, how, ("context", "prompt")) → (Message("user", "2+2?"),)
answer_of("<think>2+2</think>4", how, "response_1") → "4"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.dialects.alpaca import request
from data_builders.dialects.messages_list import with_system
from data_builders.dialects.prompt_completion import read_answer, read_prompt
from data_builders.dialects.reading import Reading, Row
from data_builders.filters.structure import first_empty_user
from posttrain.jsontext import load_json
from posttrain.records import Message, json_text

CONTEXT_KEYS = ("context", "history", "messages", "conversations", "conversation", "prompt",
                "question")  # fmt: skip
RESPONSE_KEYS = (
    ("response_1", "response_2"),
    ("response1", "response2"),
    ("response_a", "response_b"),
    ("output_1", "output_2"),
    ("output1", "output2"),
)


def history_of(row: Row, how: Reading) -> tuple[Message, ...]:
    """The conversation that both responses answer, reasoning removed.

    Raises:
        RowProblem: none is there, or as `plain_history`.
    """
    for key in CONTEXT_KEYS:
        if row.get(key) is not None:
            return plain_history(with_system(row, read_prompt(row[key], how, key)))
    if row.get("instruction") is not None:
        return plain_history(with_system(row, (Message("user", request(row)),)))
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no conversation is there")


def plain_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns without their reasoning, the last of them one that is to be answered.

    Raises:
        RowProblem: `nothing_to_answer`: they end on an answer, or on an empty turn;
            `empty_user_turn` for an earlier one.
    """
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RowProblem("nothing_to_answer", "the conversation", "it does not end on a question")
    if not messages[-1].content.strip():
        raise RowProblem("nothing_to_answer", "the conversation", "its last turn is empty")
    if (empty := first_empty_user(messages)) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return tuple(replace(m, reasoning=None) for m in messages)


def responses_of(row: Row, how: Reading) -> tuple[str, str]:
    """What the two sides answered, reasoning removed. Raises RowProblem."""
    for keys in RESPONSE_KEYS:
        if all(row.get(key) is not None for key in keys):
            first, second = (answer_of(row[key], how, key) for key in keys)
            return first, second
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no two responses are there")


def answer_of(value: Any, how: Reading, where: str) -> str:
    """The final answer of a response: a text, or messages that are one assistant turn."""
    return final_answer(read_answer(value, how, where), where)


def final_answer(turns: Sequence[Message], where: str) -> str:
    """The answer of a response of one turn, with the calls that it ends with as JSON.

    Raises:
        RowProblem: `several_turns`.
    """
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowProblem("several_turns", where, "a response of more than one assistant turn")
    # as `reward.genrm_prompt.shown_answer` shows a completion
    calls = [json_text({"call": c.name, "arguments": c.arguments}) for c in turns[0].tool_calls]
    return "\n".join(part for part in (turns[0].content, *calls) if part)


def turns_of(value: Any) -> list[str] | None:
    """The texts of a list of turns, or of its JSON; None where it is no such list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = load_json(value)
        except ValueError:
            return None
    found: list[Any] = value if isinstance(value, list) else []
    return found if found and all(isinstance(turn, str) for turn in found) else None


def interleaved(asked: Sequence[str], answered: Sequence[str] | None) -> tuple[Message, ...]:
    """A conversation from its questions and its answers. Raises RowProblem."""
    if answered is None or len(asked) != len(answered):
        raise RowProblem("malformed_message", "the responses", "not an answer to every turn")
    return tuple(
        message
        for question, answer in zip(asked, answered, strict=True)
        for message in (Message("user", question), Message("assistant", answer))
    )
