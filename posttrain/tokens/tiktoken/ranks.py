"""A byte-level BPE of `tokenizers` as tiktoken ranks, where the two can only give the same ids.

    ranks = ranks_of(tokenizer, json.loads(tokenizer.to_str()))
    # Ranks(merges={b"a": 0, …}, special={"<|im_end|>": 100256}, …), or a reason:
    # "its pre-tokenizer is not one that tiktoken can express"

`tokenizers` merges the neighbours that its list of merges names, in the order of the list. tiktoken
merges any neighbours whose bytes together are a token, the token of the lowest rank first. Take a
token t. While a text is merged, the part that becomes t passes through the same states as t alone
would, for no merge has crossed its ends yet. So if t alone merges to [t], the last two parts before
it are always the same pair, which is a merge; and tiktoken, which sees the same neighbours, does
the same. A token that its own merges do not reach can never be made, and is left out. (With
`ignore_merges` a whole piece that is a token is looked up; such a token may stay in if its own
merges stop at three parts or more, since then no two neighbours ever spell it.)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

# bytes that occur in no UTF-8 text
_NEVER = {0xC0, 0xC1, *range(0xF5, 0x100)}
_FLAGS = ("single_word", "lstrip", "rstrip")
# what a model of byte-level BPE must say, and what it may say beside an absent or null key
_PLAIN_MODEL = {
    "dropout": (),
    "unk_token": (),
    "continuing_subword_prefix": ("",),
    "end_of_word_suffix": ("",),
    "fuse_unk": (False,),
    "byte_fallback": (False,),
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks and ids of tokens as tiktoken needs them, and the way back.

    `merges` maps a token's bytes to its rank, `special` an added token's text to its own; `ids[r]`
    is the id of rank r (int32). `nfc`: text is normalised to NFC first.
    """

    pattern: str
    merges: dict[bytes, int]
    special: dict[str, int]
    ids: npt.NDArray[np.int32]
    nfc: bool


def ranks_of(tokenizer: tokenizers.Tokenizer, parts: Mapping[str, Any]) -> Ranks | str:
    """The ranks of a tokenizer, or why tiktoken could give other ids.

    Args:
        parts: the tokenizer's `to_str()`, parsed.
    """
    model, normalizer = parts["model"], parts["normalizer"]
    pattern = pattern_of(parts["pre_tokenizer"])
    problem = (
        _not_byte_level(model)
        or ("its pre-tokenizer is not one that tiktoken can express" if pattern is None else "")
        or ("" if normalizer in (None, {"type": "NFC"}) else "it normalises text")
        or _not_plain(parts["added_tokens"], normalised=normalizer is not None)
    )
    if problem:
        return problem
    assert pattern is not None
    ranks = _merge_ranks(tokenizer, model)
    if isinstance(ranks, str):
        return ranks
    merges, ids = ranks
    special = {t["content"]: len(ids) + k for k, t in enumerate(parts["added_tokens"])}
    table = np.array([*ids, *(t["id"] for t in parts["added_tokens"])], np.int32)
    return Ranks(pattern, merges, special, table, nfc=normalizer is not None)


def _not_byte_level(model: Mapping[str, Any]) -> str:
    if model["type"] != "BPE":
        return f"its model is {model['type']}, not BPE"
    for key, allowed in _PLAIN_MODEL.items():
        if model.get(key) is not None and model[key] not in allowed:
            return f"its model sets {key}"
    return ""


def _not_plain(added: Sequence[Mapping[str, Any]], *, normalised: bool) -> str:
    """Why added tokens could be found elsewhere than by looking for the longest in the text."""
    for token in added:
        flag = next((f for f in _FLAGS if token[f]), None)
        if flag is None and normalised and token["normalized"]:
            flag = "normalized"
        if flag is not None:
            return f"its added token {token['content']!r} is {flag}"
    texts = sorted(token["content"] for token in added)
    for text, following in itertools.pairwise(texts):
        if not text or "\x00" in text:
            return f"its added token {text!r} is unusual"
        if following.startswith(text):
            return f"its added token {text!r} begins another, {following!r}"
    # without a normaliser these two kinds are looked for one after the other in the same text
    first = [t["content"] for t in added if not t["normalized"]]
    for late, early in itertools.product((t["content"] for t in added if t["normalized"]), first):
        if _overlap(late, early) or _overlap(early, late) or late in early or early in late:
            return f"its added tokens {early!r} and {late!r} can overlap"
    return ""


def _overlap(left: str, right: str) -> bool:
    return any(right.startswith(left[-k:]) for k in range(1, min(len(left), len(right)) + 1))


def _merge_ranks(
    tokenizer: tokenizers.Tokenizer, model: Mapping[str, Any]
) -> tuple[dict[bytes, int], list[int]] | str:
    """Bytes → rank and rank → id: single bytes, then merged tokens by merge, then whole pieces."""
    alphabet = _alphabet()
    vocab: dict[str, int] = model["vocab"]
    letters = [c for c in alphabet if c in vocab]
    if {alphabet[c] for c in letters} | _NEVER != set(range(256)):
        return "its vocabulary lacks bytes"
    ordered = _by_priority(model["merges"])
    if ordered is None:
        return "the merges of one token are not listed together"
    looked_up: set[str] = set()
    if model.get("ignore_merges"):
        looked_up = {t for t in vocab.keys() - {*letters, *ordered} if set(t) <= alphabet.keys()}
    parts = _part_counts(tokenizer, [*ordered, *sorted(looked_up, key=vocab.__getitem__)])
    merged = [token for token in ordered if parts[token] == 1]
    whole: list[str] = []
    if model.get("ignore_merges"):
        whole = [token for token, count in parts.items() if count > 1]
        if bad := next((token for token in whole if parts[token] < 3), None):
            return f"its token {bad!r} is a piece but no merge"
    tokens = [*letters, *merged, *whole]
    ranks = {bytes(alphabet[c] for c in token): rank for rank, token in enumerate(tokens)}
    return ranks, [vocab[token] for token in tokens]


def _by_priority(merges: Sequence[str] | Sequence[Sequence[str]]) -> list[str] | None:
    """The tokens that merges make, the first to be made first; `None` if that is no clear order."""
    products = (m.replace(" ", "", 1) if isinstance(m, str) else "".join(m) for m in merges)
    order = [token for token, _ in itertools.groupby(products)]
    return order if len(set(order)) == len(order) else None


def _part_counts(tokenizer: tokenizers.Tokenizer, tokens: Sequence[str]) -> dict[str, int]:
    """Into how many parts each token's own text is merged, whole pieces not looked up."""
    model: Any = tokenizer.model
    looks_up = model.ignore_merges
    model.ignore_merges = False
    try:
        return {token: len(model.tokenize(token)) for token in tokens}
    finally:
        model.ignore_merges = looks_up


def _alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with (GPT-2's), and their bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {**{chr(b): b for b in printable}, **{chr(256 + k): b for k, b in enumerate(others)}}


# -- regular expressions that mean the same to both libraries --------------------------------------
# `tokenizers` runs them on Oniguruma, tiktoken on Rust regexes. A pattern is only taken over if it
# is listed here: each listed one matches every text without a gap (tiktoken leaves out what a
# pattern does not match, `tokenizers` makes it a piece of its own), and asks of a character only
# what `odd_characters` compares the two engines' tables on.

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
    """The listed pattern that a `tokenizer.json`'s pre-tokenizer splits by; `None` for others."""
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
