"""Reasoning traces inside messages: splitting them off, removing them, cutting them to a budget.

split_think("<think>\\n2+2 is 4.\\n</think>\\n\\n4") → ThinkSplit("2+2 is 4.", "4", None)
    split_think("<think>\\n2+2 is") → ThinkSplit(None, "<think>\\n2+2 is", "unclosed_think")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posttrain.records import Example, with_messages

OPEN = "<think>"
CLOSE = "</think>"
# a text without it has neither tag: one search instead of two
_TAG_END = "think>"
ThinkProblem = Literal["unclosed_think", "unopened_think", "nested_think", "second_think"]
Offsets = Callable[[str], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class ThinkSplit:
    """An assistant's text, split into trace and answer; not split if there is a problem."""

    reasoning: str | None
    content: str
    problem: ThinkProblem | None


def split_think(text: str) -> ThinkSplit:
    """Split one leading `<think>…</think>` from an assistant's text.

    White space around the trace and before the answer is layout; tags anywhere else are left in
    place and named as a problem.
    """
    if not has_tags(text):
        return ThinkSplit(None, text, None)
    problem = _think_problem(text)
    if problem is not None:
        return ThinkSplit(None, text, problem)
    trace, _, answer = text.lstrip()[len(OPEN) :].partition(CLOSE)
    return ThinkSplit(trace.strip() or None, answer.lstrip("\r\n"), None)


def has_tags(text: str) -> bool:
    """Check a text for a think tag."""
    return _TAG_END in text and (OPEN in text or CLOSE in text)


def _think_problem(text: str) -> ThinkProblem | None:
    """Name what is wrong with a text's think tags; None for one leading pair."""
    open_count = text.count(OPEN)
    close_count = text.count(CLOSE)
    if close_count == 0:
        return "unclosed_think"
    if open_count == 0:
        return "unopened_think"
    if open_count == close_count == 1:
        return None if text.lstrip().startswith(OPEN) else "second_think"
    first_close = text.find(CLOSE)
    second_open = text.find(OPEN, text.find(OPEN) + 1)
    if -1 < second_open < first_close or open_count < close_count:
        return "nested_think"
    return "second_think"


def strip_reasoning(example: Example) -> Example:
    """Remove every trace: the same answers with reasoning off (paper 3.1.5)."""
    return with_messages(example, (replace(m, reasoning=None) for m in example.messages))


def truncate_reasoning(trace: str, *, budget: int, offsets: Offsets) -> str | None:
    """Cut a trace to its first `budget` tokens; `None` when it is no longer than that.

    The cut falls between characters; white space at it is dropped: templates write their own.

    Args:
        trace: the reasoning.
        budget: number of tokens, at least 1.
        offsets: function from a text to the character span of each of its tokens, in order.
    """
    if budget < 1:
        raise ValueError(f"a reasoning budget is at least 1 token, got {budget}")
    spans = offsets(trace)
    if len(spans) <= budget:
        return None
    end = spans[budget - 1][1]
    # tokens of one multi-byte character share its span: cutting inside it would keep half
    while budget > 1 and spans[budget][0] < end:
        budget -= 1
        end = spans[budget - 1][1]
    return trace[:end].rstrip() or None
