"""Texts that their sampler cut off: they stop in mid-sentence, just at a limit that is known.

Truncation(TruncatedFilter(tokens=(16384,)), encode).find(example)
    → Drop("truncated_text", "message 1, reasoning: stops in mid-sentence after 16,384 tokens", …)

A trace without its closing tag is found by `unclosed_think`, whatever its length.
"""

from __future__ import annotations

import re

from data_builders.filters.drop import Drop
from data_builders.filters.said import Said, said
from posttrain.config.filters import TruncatedFilter
from posttrain.records import Example
from posttrain.tokens.encode import EncodeArrays

# what a finished text may end on: a sentence's end, perhaps in brackets, quotes or markup; a
# formula, a fence of code, a table's row, a number
_FINISHED = re.compile(r"""[.!?…。！？:)\]}>»"'”’`*_|$~\d；;✅❌]\s*\Z|\\[a-z]+\s*\Z""")
_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_SHORTEST = 2  # characters; no token of running text is shorter on average


class Truncation:
    """Finds texts cut off at a limit; `encode` counts their tokens."""

    def __init__(self, limits: TruncatedFilter, encode: EncodeArrays) -> None:
        self._limits = limits
        self._encode = encode

    def find(self, example: Example) -> Drop | None:
        """The first trace or answer that stops in mid-sentence at a limit."""
        trace: Said | None = None
        for text in said(example):
            before = trace.text if trace and trace.message == text.message else ""
            if not finished(text.text):
                length = self._at_limit(before + text.text)
                if length is not None:
                    what = f"stops in mid-sentence after {length:,} tokens"
                    return text.drop("truncated_text", what, max(len(text.text) - 100, 0))
            trace = text if text.part == "reasoning" else None
        return None

    def _at_limit(self, text: str) -> int | None:
        """The text's tokens, if a limit is as near as the recipe asks."""
        limits = [limit for limit in self._limits.tokens if len(text) >= limit // _SHORTEST]
        if not limits:
            return None
        length = len(self._encode([text])[0])
        near = any(abs(length - limit) <= self._limits.slack * limit for limit in limits)
        return length if near else None


def finished(text: str) -> bool:
    """Whether a text ends as texts end: not within a sentence, and not within a block of code."""
    return _FINISHED.search(text[-40:]) is not None and len(_FENCE.findall(text)) % 2 == 0
