"""Filters of a conversation's shape: how many turns, and answers that repeat what stood before.

copied(Example: user "Why is …?", assistant "Why is …?", CopiedFilter())
    → Drop("copied_answer", "message 1, answer: equals message 0", Span(…))
"""

from __future__ import annotations

from data_builders.filters.drop import Drop
from data_builders.filters.said import Said
from posttrain.config.filters import CopiedFilter, LengthFilter
from posttrain.records import Example


def turns(example: Example, limits: LengthFilter) -> Drop | None:
    """Too few user turns, or too many."""
    count = sum(message.role == "user" for message in example.messages)
    if limits.min_turns is not None and count < limits.min_turns:
        return Drop("too_few_turns", f"{count} user turns, at least {limits.min_turns} are wanted")
    if limits.max_turns is not None and count > limits.max_turns:
        return Drop("too_many_turns", f"{count} user turns, at most {limits.max_turns} are wanted")
    return None


def tokens(length: int, limits: LengthFilter) -> Drop | None:
    """A longest sequence of `length` tokens that is too short or too long."""
    if limits.min_tokens is not None and length < limits.min_tokens:
        return Drop("too_short", f"{length} tokens, at least {limits.min_tokens} are wanted")
    if limits.max_tokens is not None and length > limits.max_tokens:
        return Drop("too_long", f"{length} tokens, at most {limits.max_tokens} are wanted")
    return None


def copied(example: Example, limits: CopiedFilter) -> Drop | None:
    """An answer that equals a question or an earlier answer, or its own trace; blanks apart."""
    before: dict[str, int] = {}
    for index, message in enumerate(example.messages):
        text = " ".join(message.content.split())
        if message.role == "assistant" and len(text) >= limits.characters:
            answer = Said(index, "answer", message.content)
            if text in before:
                return answer.drop("copied_answer", f"equals message {before[text]}")
            if message.reasoning and text == " ".join(message.reasoning.split()):
                return answer.drop("copied_answer", "equals its own trace")
        if message.role in ("user", "assistant"):
            before.setdefault(text, index)
    return None
