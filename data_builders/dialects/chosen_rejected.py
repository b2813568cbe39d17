"""Preference rows. For SFT the chosen conversation is the record.

{"prompt": "…", "chosen": "good", "rejected": "bad"}         texts, or messages, or lists of them
{"chosen": [{"role": "user", …}, {"role": "assistant", …}], "rejected": […]}     prompt inside both
{"conversations": […], "chosen": {"from": "gpt", "value": "…"}, "rejected": {…}}
{"chosen": "\\n\\nHuman: …\\n\\nAssistant: …", "rejected": "…"}                    transcripts
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from data_builders.dialects.alpaca import history, request
from data_builders.dialects.messages import conversation, find_list, read_messages
from data_builders.dialects.prompt_completion import read_answer, read_prompt, transcript
from data_builders.dialects.reading import Conversation, Reading, Row, RowProblem, not_a
from posttrain.records import Message

Side = Literal["chosen", "rejected"]
_ASKS = ("prompt", "question", "instruction", "input", "context", "history")


def chosen_rejected(row: Row, reading: Reading) -> Conversation:
    """The prompt and the chosen answer."""
    return read_side(row, "chosen", reading)


def read_side(row: Row, side: Side, reading: Reading) -> Conversation:
    """The whole conversation that ends on one side of the preference."""
    if "chosen" not in row or "rejected" not in row:
        raise not_a("chosen_rejected", row, "it needs chosen and rejected")
    found = find_list(row)
    prompt, read = _prompt(row, reading, found)
    if (value := row[side]) is None:
        raise RowProblem("empty_answer", side, "there is none")
    if prompt is None and isinstance(value, str):
        turns = transcript(value, reading, side)
    else:
        turns = _join(prompt or (), read_answer(value, reading, side))
    if reading.trains and not turns[-1].trained:
        raise RowProblem("untrained_turn", side, "a loss mask takes its answer out of the loss")
    where, listed = found or ("", [])
    read = ("chosen", "rejected", *read)
    return conversation(
        row, turns, reading, read=read, parts_of_prompt=_ASKS, listed=listed, where=where
    )


def _join(prompt: tuple[Message, ...], answer: tuple[Message, ...]) -> tuple[Message, ...]:
    """A side that starts with anything but the assistant is the whole conversation already."""
    if answer[0].role == "assistant":
        return (*prompt, *answer)
    if prompt and prompt[0].role == "system" and answer[0].role != "system":
        return (prompt[0], *answer)
    return answer


def _prompt(
    row: Row, reading: Reading, found: tuple[str, list[Mapping[str, Any]]] | None
) -> tuple[tuple[Message, ...] | None, tuple[str, ...]]:
    """The turns before the answer, `None` where the sides hold them, and the columns read."""
    if found is not None:
        return read_messages(found[1], reading, found[0], prompt=True), (found[0],)
    for key in ("prompt", "question"):
        if row.get(key) is not None:
            return (*history(row, reading), *read_prompt(row[key], reading, key)), (key, "history")
    if row.get("instruction") is not None:
        turns = (*history(row, reading), Message("user", request(row)))
        return turns, ("instruction", "input", "context", "history")
    return None, ()
