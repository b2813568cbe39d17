"""Rows that are judging prompts already, as NVIDIA released them: where their two responses stand.

split_prompt("… [The Begin of Response 1]\\nA\\n[The End of Response 1] …")
    → (Frame("… [The Begin of Response 1]\\n", …), "A", "B")
"""

from __future__ import annotations

from collections.abc import Sequence

from data_builders.dialects import RowProblem
from data_builders.genrm.pair import Frame
from posttrain.records import Message

# as the prompts of Nemotron-RLHF-GenRM-v1 mark them
_MARKS = tuple((f"[The Begin of Response {n}]", f"[The End of Response {n}]") for n in (1, 2))


def frame_of(messages: Sequence[Message], where: str) -> tuple[Frame, str, str]:
    """The texts around the responses, and the responses as they stand between their marks.

    Raises:
        RowProblem: `unsplit_prompt`: not one user turn with each mark once, in this order. Then a
            response holds a mark, or the prompt is laid out in another way.
    """
    if len(messages) != 1 or messages[0].role != "user":
        raise RowProblem("unsplit_prompt", where, "a judging prompt is one user turn")
    text = messages[0].content
    places: list[int] = []
    for begin, end in _MARKS:
        for mark in (begin, end):
            if text.count(mark) != 1:
                raise RowProblem("unsplit_prompt", where, f"{mark} stands {text.count(mark)} times")
        places += _inside(text, text.index(begin) + len(begin), text.index(end))
    if places != sorted(places):
        raise RowProblem("unsplit_prompt", where, "the marks of the responses are out of order")
    a, b, c, d = places
    return Frame(text[:a], text[b:c], text[d:]), text[a:b], text[c:d]


def _inside(text: str, start: int, end: int) -> tuple[int, int]:
    """The place without the white space around it."""
    given = text[start:end]
    start += len(given) - len(given.lstrip())
    return start, start + len(given.strip())
