"""tiktoken in place of `tokenizers`, where the two can only give the same ids: it is faster.

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

Texts on which the two libraries could differ all the same, or on which tiktoken's backtracking
gives up, go to `tokenizers` one by one.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from posttrain.tokens.encode import batches

Ids = npt.NDArray[np.int32]
# characters of white space from which a text goes to `tokenizers`: a pattern gives such a run back
# character by character, and Rust's engine gives up at a million
_LONGEST_RUN = 100_000
_RUN = re.compile(rf"\s{{{_LONGEST_RUN}}}")
# every so many characters are looked at before all: a search costs a quarter of the encoding
_STRIDE = 1_000
_SAMPLED_RUN = re.compile(rf"\s{{{_LONGEST_RUN // _STRIDE}}}")
# characters that are tokenised in one call, which bounds memory
_CALL_CHARACTERS = 1 << 23
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


class TiktokenEncoder:
    """Encoder by tiktoken, made from ranks.

    Args:
        slow: encoder of the few texts that tiktoken must not be given.
    """

    def __init__(self, ranks: Ranks, *, slow: Callable[[Sequence[str]], list[Ids]]) -> None:
        # random, so that no text can hold the separator by accident or on purpose; ids do not
        # depend on it
        self._separator = f"\x00{secrets.token_hex(8)}\x01"
        self._separator_rank = len(ranks.ids)
        # by rank, the separator's last: ids, and sizes in bytes
        self._ids = np.append(ranks.ids, np.int32(-1))
        token_bytes = [*ranks.merges, *(token.encode() for token in ranks.special)]
        self._sizes = np.array([*map(len, token_bytes), 0], np.int64)
        self._nfc = ranks.nfc
        self._slow = slow
        self._odd = odd_characters(nfc=ranks.nfc)
        self._encoding = tiktoken.Encoding(
            "tokenizer.json",
            pat_str=_grouped(ranks.pattern),
            mergeable_ranks=ranks.merges,
            special_tokens={**ranks.special, self._separator: self._separator_rank},
        )

    def arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, (n,) int32; they may be views of one array."""
        results: dict[int, Ids] = {}
        fast_rows = [row for row, text in enumerate(texts) if self._is_safe(text)]
        for rows in batches(
            fast_rows,
            lambda row: len(texts[row]),
            most=_CALL_CHARACTERS,
            count=len(fast_rows),
        ):
            results |= zip(rows, self._encode_joined([texts[row] for row in rows]), strict=True)
        slow_rows = [row for row in range(len(texts)) if row not in results]
        if slow_rows:
            results |= zip(slow_rows, self._slow([texts[row] for row in slow_rows]), strict=True)
        return [results[row] for row in range(len(texts))]

    def offsets(self, text: str) -> list[tuple[int, int]] | None:
        """Character span `(start, end)` of each token; None for a text that tiktoken is not given.

        Tokens that are parts of one character have the span of the character.
        """
        if not self._is_safe(text):
            return None
        sizes = self._sizes.take(self._ranks(text))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if not text.isascii():
            # from spans in bytes to spans in characters: all bytes of a character but the first
            # begin with the bits 10
            begins_character = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
            character_of_byte = np.cumsum(begins_character) - 1
            starts = character_of_byte[starts]
            ends = character_of_byte[ends - 1] + 1
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _ranks(self, text: str) -> npt.NDArray[np.uint32]:
        return self._encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=())

    def _is_safe(self, text: str) -> bool:
        """Check that tiktoken can only give the ids of `tokenizers` for a text."""
        if _SAMPLED_RUN.search(text[::_STRIDE]) and _RUN.search(text):
            return False
        if text.isascii():
            return True
        if self._odd is not None and self._odd.search(text):
            return False
        return not self._nfc or unicodedata.is_normalized("NFC", text)

    def _encode_joined(self, texts: Sequence[str]) -> Iterable[Ids]:
        """Ids of each text, from one call: a call for each text would cost more than its ids."""
        ranks = self._ranks(self._separator.join(texts))
        separators = np.flatnonzero(ranks == self._separator_rank)
        assert len(separators) == len(texts) - 1, "only this process knows its separator"
        ids = self._ids.take(ranks)
        edges = [-1, *separators.tolist(), len(ids)]
        return (ids[start + 1 : stop] for start, stop in pairwise(edges))


def _grouped(pattern: str) -> str:
    """Put the alternatives before the look-ahead into one group, which Rust tries all at once."""
    before, look_ahead, after = pattern.partition(r"|\s+(?!\S)")
    return f"(?:{before}){look_ahead}{after}"


# -- characters on which the Unicode tables of `tokenizers` and tiktoken differ: usually none -----
# Both carry tables of some version of Unicode. What one version assigned, later ones keep, so only
# characters that Python's own table does not know can be classed in two ways.

# classes of characters in the listed patterns; (?i:…) only ever holds ASCII letters
CLASSES = (
    r"\p{L}", r"\p{N}", r"\p{M}", r"\s",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
)  # fmt: skip

# planes 4 to 13 are empty, the rest of 14 is private or reserved
_PLANES = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000))


@functools.cache
def odd_characters(*, nfc: bool) -> re.Pattern[str] | None:
    """Pattern for the characters that the two libraries class differently; None without any.

    Args:
        nfc: True to include the characters that they normalise differently.
    """
    unknown: list[str] = []
    for plane in _PLANES:
        for code in range(*plane):
            # unassigned, as far as Python's table knows
            if unicodedata.category(chr(code)) == "Cn":
                unknown.append(chr(code))
    odd = differing(unknown)
    if nfc:
        normalize = normalizers.NFC().normalize_str
        # between two marks in the wrong order: NFC changes the line only if `tokenizers` knows the
        # character as one that combines or decomposes
        lines = [f"q\u0307{char}\u0316" for char in unknown]
        normalised_lines = normalize("\n".join(lines)).split("\n")
        for char, line, normalised in zip(unknown, lines, normalised_lines, strict=True):
            if line != normalised:
                odd.add(char)
    if not odd:
        return None
    return re.compile(f"[{''.join(map(re.escape, sorted(odd)))}]")


def differing(chars: list[str]) -> set[str]:
    """Characters, out of those given, that the two engines class differently."""
    text = "".join(chars)
    single_bytes = {bytes([b]): b for b in range(256)}
    different: set[str] = set()
    for name in CLASSES:
        oniguruma = pre_tokenizers.Split(Regex(name), "removed", invert=True)
        # tiktoken leaves out what its pattern does not match
        rust = tiktoken.Encoding(
            name, pat_str=name, mergeable_ranks=single_bytes, special_tokens={}
        )
        oniguruma_members = {piece for piece, _ in oniguruma.pre_tokenize_str(text)}
        rust_members = set(bytes(rust.encode_ordinary(text)).decode())
        different |= oniguruma_members ^ rust_members
    return different


# -- hard texts: the proof that neither the conversion nor an installed version has a fault --------

Arrays = Callable[[Sequence[str]], list[npt.NDArray[np.int32]]]

_WHITE_SPACE = (" ", "  ", "\n", "\r\n", "\t", "\r", "\u00a0", "\u2028", "\u3000", "\u200b", "\x0b")

_WORDS = (
    "", "a", "It's", "I'LL", "they'Re", "x'ſy", "don’t", "'s", "1", "12", "1234567890123",
    "3.14159e-10", "\u0661\u0662\u0663", "½²₃", "Ⅷ", "\u0e51", "ABCdefGHI", "aB1", "ǅǆ", "ʰʱ",
    "café", "cafe\u0301", "\u0301", "a\u0301\u0302\u0303b", "\u1100\u1161\u11a8", "한국어",
    "日本語の文", "中文，标点。", "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e2\u05d1\u05e8\u05d9\u05ea", "русский",
    "😀", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f",
    "\U0001d400\U0001d401", "\U00020000\U00020001", "\ufffd", "\ufeff", "\ue000", "\u0378",
    "\x00", "\x01\x02", "\x7f", "\x85", "...", "?!", "--->", "/*/", "//\n/", '{"a": [1, 2]}',
    "<think>", "</think>", "<|x|>", "a_b__c", "def f(x):\n\treturn x**2  # ok\n\n\n",
    "$\\frac{1}{2}$", "https://a.b/c?d=e&f=%20g#h", "QmFzZTY0IGlzIG5vdCB0ZXh0IQ==",
    "-" * 300, "a" * 3000, "ab" * 1000, " " * 500, "\n" * 300, "1" * 400,
)  # fmt: skip


def probe_texts(special: Sequence[str]) -> list[str]:
    """Hard texts: built-in ones, and mixtures of them with white space and special tokens."""
    rng = random.Random(0)
    texts = [*_WORDS, "".join(map(chr, range(0x250)))]
    for parts in itertools.product(("a", "1", ".", "é"), _WHITE_SPACE, ("b", "2")):
        texts.append("".join(parts))
    for spaces in itertools.product(_WHITE_SPACE, _WHITE_SPACE):
        texts.append("".join(spaces))
    # whole special tokens, and some without their last character
    token_texts = [*special[:64], *(token[:-1] for token in special[:8])]
    for _ in range(200):
        words = rng.choices(_WORDS, k=6)
        glue = rng.choices([*_WHITE_SPACE, *token_texts], k=6)
        texts.append("".join(itertools.chain(*zip(words, glue, strict=True))))
    texts += [f"a{token} {token}{token}\n{token}b" for token in special[:256]]
    return texts


def disagreement(
    fast: Arrays, slow: Arrays, *, special: Sequence[str], more: Iterable[str] = ()
) -> str | None:
    """Find the first probe text to which two encoders give different ids; None without one.

    Args:
        special: special tokens of the tokenizer.
        more: texts to probe beside the built-in ones.
    """
    texts = [*probe_texts(special), *more]
    for text, fast_ids, slow_ids in zip(texts, fast(texts), slow(texts), strict=True):
        if not np.array_equal(fast_ids, slow_ids):
            return text
    return None
