"""Regular expressions that split text before byte-level BPE, and mean the same to two engines.

    pattern_of({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})
    → "'s|'t|'re|'ve|…"

`tokenizers` runs them on Oniguruma, tiktoken on Rust's regex. A pattern is only taken over when it
is listed here: each listed one matches every text without a gap (tiktoken leaves out what a pattern
does not match, `tokenizers` makes it a piece of its own), and asks of a character
only what `tiktoken_unicode` compares the two engines' tables on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OTHER = r" ?[^\s\p{L}\p{N}]+"

GPT_2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_OTHER}|\s+(?!\S)|\s+"
PATTERNS: dict[str, str] = {
    "gpt_2": GPT_2,
    "cl100k, llama_3": rf"{_CONTRACTION}|{_HEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER}[\r\n]*|{_SPACES}",
    "qwen_2": rf"{_CONTRACTION}|{_HEAD}\p{{L}}+|\p{{N}}|{_OTHER}[\r\n]*|{_SPACES}",
    "qwen_3_5": (
        rf"{_CONTRACTION}|{_HEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    "tekken, nemotron": (
        rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER}[\r\n/]*|{_SPACES}"
    ),
    "o200k": (
        rf"{_HEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_HEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
        rf"|\p{{N}}{{1,3}}|{_OTHER}[\r\n/]*|{_SPACES}"
    ),
    "tiny_world": r" ?\p{L}[\p{L}_]*|\p{N}|(?:\n?</?[a-z_]+[>=])+| ?[^\s\p{L}\p{N}<]+|<|\s",
}
_KNOWN = frozenset(PATTERNS.values())


def pattern_of(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """The listed pattern that a `tokenizer.json`'s pre-tokenizer splits by, `None` for any other.

    Two forms are read: GPT-2's `ByteLevel` alone, and one `Split` followed by a bare `ByteLevel`.
    """
    if pre_tokenizer is None:
        return None
    steps = [pre_tokenizer]
    if pre_tokenizer["type"] == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    *splits, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if not splits:
        return GPT_2 if last.get("use_regex", True) else None
    split = splits[0]
    if len(splits) > 1 or split["type"] != "Split" or last.get("use_regex", True):
        return None
    # where a pattern leaves no gap, cutting at its matches and keeping its matches are the same
    if (split["behavior"], split["invert"]) not in (("Isolated", False), ("Removed", True)):
        return None
    pattern = split["pattern"].get("Regex")
    return pattern if pattern in _KNOWN else None
