"""tiktoken ranks of a byte-level BPE of `tokenizers`, where the two can only give the same ids.

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
_NON_UTF8_BYTES = {0xC0, 0xC1, *range(0xF5, 0x100)}
_FLAGS = ("single_word", "lstrip", "rstrip")
# keys of a BPE model → values beside null that leave it a plain byte-level one
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
    """Ranks of tokens, as tiktoken needs them, and ids by rank.

    Attributes:
        pattern: Regular expression that splits texts into pieces.
        merges: Bytes of a token → its rank.
        special: Text of an added token → its rank.
        ids: (ranks,) int32, id of each rank.
        nfc: True if texts are normalised to NFC first.
    """

    pattern: str
    merges: dict[bytes, int]
    special: dict[str, int]
    ids: npt.NDArray[np.int32]
    nfc: bool


def ranks_of(tokenizer: tokenizers.Tokenizer, parts: Mapping[str, Any]) -> Ranks | str:
    """Convert a tokenizer to ranks.

    Args:
        parts: the tokenizer's `to_str()`, parsed.

    Returns:
        The ranks, or the reason why tiktoken could give other ids.
    """
    model = parts["model"]
    normalizer = parts["normalizer"]
    added_tokens = parts["added_tokens"]
    problem = _model_problem(model)
    if problem:
        return problem
    pattern = pattern_of(parts["pre_tokenizer"])
    if pattern is None:
        return "its pre-tokenizer is not one that tiktoken can express"
    if normalizer not in (None, {"type": "NFC"}):
        return "it normalises text"
    problem = _added_token_problem(added_tokens, normalised=normalizer is not None)
    if problem:
        return problem
    ranks = _merge_ranks(tokenizer, model)
    if isinstance(ranks, str):
        return ranks
    merges, ids = ranks
    special: dict[str, int] = {}
    for index, token in enumerate(added_tokens):
        special[token["content"]] = len(ids) + index
    ids_by_rank = np.array([*ids, *(token["id"] for token in added_tokens)], np.int32)
    return Ranks(pattern, merges, special, ids_by_rank, nfc=normalizer is not None)


def _model_problem(model: Mapping[str, Any]) -> str:
    """Reason why a model is no plain byte-level BPE; "" for one that is."""
    if model["type"] != "BPE":
        return f"its model is {model['type']}, not BPE"
    for key, allowed in _PLAIN_MODEL.items():
        if model.get(key) is not None and model[key] not in allowed:
            return f"its model sets {key}"
    return ""


def _added_token_problem(added_tokens: Sequence[Mapping[str, Any]], *, normalised: bool) -> str:
    """Reason why the two libraries could find added tokens at different places; "" without one.

    tiktoken looks for the longest added token at each place of the text as it is given.

    Args:
        normalised: True if the tokenizer normalises texts.
    """
    for token in added_tokens:
        flags = [name for name in _FLAGS if token[name]]
        if normalised and token["normalized"]:
            flags.append("normalized")
        if flags:
            return f"its added token {token['content']!r} is {flags[0]}"
    texts = sorted(token["content"] for token in added_tokens)
    for text, following in itertools.pairwise(texts):
        if not text or "\x00" in text:
            return f"its added token {text!r} is unusual"
        if following.startswith(text):
            return f"its added token {text!r} begins another, {following!r}"
    # without a normaliser these two kinds are looked for one after the other in the same text
    early_texts = [token["content"] for token in added_tokens if not token["normalized"]]
    late_texts = [token["content"] for token in added_tokens if token["normalized"]]
    for late, early in itertools.product(late_texts, early_texts):
        if _overlap(late, early) or _overlap(early, late) or late in early or early in late:
            return f"its added tokens {early!r} and {late!r} can overlap"
    return ""


def _overlap(left: str, right: str) -> bool:
    """Check whether an end of `left` is a beginning of `right`."""
    lengths = range(1, min(len(left), len(right)) + 1)
    return any(right.startswith(left[-length:]) for length in lengths)


def _merge_ranks(
    tokenizer: tokenizers.Tokenizer, model: Mapping[str, Any]
) -> tuple[dict[bytes, int], list[int]] | str:
    """Rank a vocabulary: single bytes, then merged tokens in order of merges, then whole pieces.

    Returns:
        Bytes → rank, and the id of each rank; or the reason why tiktoken could give other ids.
    """
    alphabet = _alphabet()
    vocab: dict[str, int] = model["vocab"]
    byte_tokens = [char for char in alphabet if char in vocab]
    covered_bytes = {alphabet[char] for char in byte_tokens}
    if covered_bytes | _NON_UTF8_BYTES != set(range(256)):
        return "its vocabulary lacks bytes"
    merge_order = _merged_tokens(model["merges"])
    if merge_order is None:
        return "the merges of one token are not listed together"
    # tokens that no merge makes: found only where a whole piece is looked up
    unmerged: list[str] = []
    if model.get("ignore_merges"):
        for token in vocab.keys() - {*byte_tokens, *merge_order}:
            if set(token) <= alphabet.keys():
                unmerged.append(token)
    unmerged.sort(key=vocab.__getitem__)
    part_counts = _part_counts(tokenizer, [*merge_order, *unmerged])
    merged = [token for token in merge_order if part_counts[token] == 1]
    pieces: list[str] = []
    if model.get("ignore_merges"):
        pieces = [token for token, count in part_counts.items() if count > 1]
        for token in pieces:
            # tiktoken would merge the two parts wherever they are neighbours
            if part_counts[token] < 3:
                return f"its token {token!r} is a piece but no merge"
    tokens = [*byte_tokens, *merged, *pieces]
    ranks: dict[bytes, int] = {}
    for rank, token in enumerate(tokens):
        ranks[bytes(alphabet[char] for char in token)] = rank
    return ranks, [vocab[token] for token in tokens]


def _merged_tokens(merges: Sequence[str] | Sequence[Sequence[str]]) -> list[str] | None:
    """Tokens that merges make, in the order of the merges; None if one is made at two places."""
    products: list[str] = []
    for merge in merges:
        # "a b" in older files, ["a", "b"] in newer ones
        products.append(merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge))
    order = [token for token, _ in itertools.groupby(products)]
    return order if len(set(order)) == len(order) else None


def _part_counts(tokenizer: tokenizers.Tokenizer, tokens: Sequence[str]) -> dict[str, int]:
    """Count the parts that merges leave of each token's text, whole pieces not looked up."""
    model: Any = tokenizer.model
    looks_up = model.ignore_merges
    model.ignore_merges = False
    try:
        return {token: len(model.tokenize(token)) for token in tokens}
    finally:
        model.ignore_merges = looks_up


def _alphabet() -> dict[str, int]:
    """Characters that byte-level vocabularies write bytes with (GPT-2's) → the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + index): byte for index, byte in enumerate(unprintable)}
    return alphabet


# -- regular expressions that mean the same to both libraries --------------------------------------
# `tokenizers` runs them on Oniguruma, tiktoken on Rust regexes. A pattern is only taken over if it
# is listed here: each listed one matches every text without a gap (tiktoken leaves out what a
# pattern does not match, `tokenizers` makes it a piece of its own), and asks of a character only
# what `odd_characters` compares the two engines' tables on.

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
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
    """Listed pattern that the pre-tokenizer of a `tokenizer.json` splits by; None for any other."""
    if pre_tokenizer is None:
        return None
    steps = [pre_tokenizer]
    if pre_tokenizer["type"] == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    *splits, byte_level = steps
    if byte_level["type"] != "ByteLevel" or byte_level["add_prefix_space"]:
        return None
    # its own regular expression is GPT-2's
    uses_gpt_2 = byte_level.get("use_regex", True)
    if not splits:
        return GPT_2 if uses_gpt_2 else None
    split = splits[0]
    if len(splits) > 1 or split["type"] != "Split" or uses_gpt_2:
        return None
    # where a pattern leaves no gap, cutting at its matches and keeping its matches are the same
    if (split["behavior"], split["invert"]) not in (("Isolated", False), ("Removed", True)):
        return None
    pattern = split["pattern"].get("Regex")
    return pattern if pattern in _KNOWN else None
