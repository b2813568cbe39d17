"""Long texts in pieces, for `tokenizers`: on one long piece it takes half as long again.

    cut_lines("…2,100 characters…\\nNext line …")  →  ["…2,100 characters…\\n", "Next line …"]

A text is cut behind a line's end and before an ASCII letter or digit. Of the patterns named here no
match holds both: what a match takes up to the line's end it also takes at the end of a text, and
the next one begins with the letter. So pieces have, one after the other, the ids of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.models.tiktoken_patterns import PATTERNS, pattern_of

PIECE = 2048  # characters, at least
_LINE = re.compile(r"\n(?=[A-Za-z0-9])")
# GPT-2's takes another number of line ends in a row before a letter than at the end
_PART_AT_LINES = ("cl100k, llama_3", "qwen_2", "qwen_3_5", "tekken, nemotron", "o200k")


def parts_at_lines(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of a decoded `tokenizer.json` parts every text at such places.

    Added tokens must not reach across line ends, nor take the white space beside them.
    """
    pattern = pattern_of(tokenizer["pre_tokenizer"])
    plain = all(
        not (token["lstrip"] or token["rstrip"] or token["single_word"])
        and "\n" not in token["content"]
        for token in tokenizer["added_tokens"]
    )
    return (
        tokenizer["model"]["type"] == "BPE"
        and tokenizer["model"].get("dropout") is None
        and tokenizer["normalizer"] in (None, {"type": "NFC"})
        and pattern in {PATTERNS[name] for name in _PART_AT_LINES}
        and plain
    )


def cut_lines(text: str) -> list[str]:
    """The text in pieces of about `PIECE` characters, or in longer ones where lines are."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > 2 * PIECE and (found := _LINE.search(text, start + PIECE)):
        pieces.append(text[start : found.end()])
        start = found.end()
    return [*pieces, text[start:]]


def pieces_of(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """The pieces of all texts, and how many each text has."""
    cut = [[text] if len(text) <= 2 * PIECE else cut_lines(text) for text in texts]
    return [piece for pieces in cut for piece in pieces], list(map(len, cut))
