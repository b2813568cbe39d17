"""Encoder by tiktoken, with the ids that `tokenizers` gives, several times as fast.

Texts on which the two libraries could differ, or on which tiktoken's backtracking gives up, go to
`tokenizers` one by one.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

from posttrain.tokens.encode import batches
from posttrain.tokens.tiktoken.ranks import Ranks

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

_SPACES = (" ", "  ", "\n", "\r\n", "\t", "\r", "\u00a0", "\u2028", "\u3000", "\u200b", "\x0b")
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
    for parts in itertools.product(("a", "1", ".", "é"), _SPACES, ("b", "2")):
        texts.append("".join(parts))
    for spaces in itertools.product(_SPACES, _SPACES):
        texts.append("".join(spaces))
    # whole special tokens, and some without their last character
    token_texts = [*special[:64], *(token[:-1] for token in special[:8])]
    for _ in range(200):
        words = rng.choices(_WORDS, k=6)
        glue = rng.choices([*_SPACES, *token_texts], k=6)
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
