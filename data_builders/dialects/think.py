"""Inline reasoning: `<think>trace</think>answer` in an assistant's text, split into its two parts.

split_inline("<think>\\n2+2\\n</think>\\n\\n4") → ("2+2", "4")

Only a text with exactly one well-placed pair is split. Anything else (unclosed, nested, two traces,
tags in the middle) stays whole, tags included, for the structural filters to name.
"""

from __future__ import annotations

from posttrain.chat.reasoning import CLOSE, OPEN, split_think


def starts_inline(content: str) -> bool:
    """Whether an assistant text opens with a think tag."""
    return content.lstrip().startswith(OPEN)


def split_inline(content: str, *, prefilled: bool = False) -> tuple[str | None, str]:
    """(trace or `None`, answer).

    Args:
        prefilled: the opening tag was part of the prompt, so the text starts inside the trace.
    """
    if prefilled and OPEN not in content and CLOSE in content:
        content = OPEN + content
    split = split_think(content)
    return split.reasoning, split.content
