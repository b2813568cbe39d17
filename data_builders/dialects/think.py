"""Inline reasoning: `<think>trace</think>answer` in an assistant's text, split into its two parts.

split_inline("<think>\\n2+2\\n</think>\\n\\n4") → ("2+2", "4")

Only a text with exactly one well-placed pair is split. Anything else (unclosed, nested, two traces,
tags in the middle) stays whole, tags included, for the structural filters to name.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def starts_inline(content: str) -> bool:
    """Whether an assistant text opens with a think tag."""
    return content.lstrip().startswith(OPEN)


def split_inline(content: str, *, prefilled: bool = False) -> tuple[str | None, str]:
    """(trace or `None`, answer). The newlines that frame trace and answer belong to the tags.

    Args:
        prefilled: the opening tag was part of the prompt, so the text may start inside the trace.
    """
    opened = starts_inline(content)
    if content.count(CLOSE) != 1 or content.count(OPEN) != int(opened):
        return None, content
    if not opened and not prefilled:
        return None, content
    trace, _, answer = content.partition(CLOSE)
    if opened:
        trace = trace.lstrip()[len(OPEN) :]
    return (trace.strip("\r\n") if trace.strip() else None), answer.lstrip("\r\n")
