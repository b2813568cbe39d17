"""Texts → ids through tiktoken, with the ids that `tokenizers` gives, several times as fast.

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
# a run that a pattern must give back character by character; Rust's engine gives up at a million
_LONGEST_RUN = 100_000
_RUN = re.compile(rf"\s{{{_LONGEST_RUN}}}")
_JOINED = 1 << 23  # characters tokenised in one call, so that memory stays bounded


class TiktokenEncoder:
    """tiktoken made from ranks; `slow` tokenises the few texts that it must not be given."""

    def __init__(self, ranks: Ranks, *, slow: Callable[[Sequence[str]], list[Ids]]) -> None:
        # no text can hold the separator by accident or on purpose; ids do not depend on it
        self._separator = f"\x00{secrets.token_hex(8)}\x01"
        self._mark = len(ranks.ids)
        self._ids = np.append(ranks.ids, np.int32(-1))
        written = [*ranks.merges, *(token.encode() for token in ranks.special)]
        self._sizes = np.array([*map(len, written), 0], np.int64)  # bytes a rank stands for
        self._nfc, self._slow = ranks.nfc, slow
        self._odd = odd_characters(nfc=ranks.nfc)
        self._encoding = tiktoken.Encoding(
            "tokenizer.json",
            pat_str=_grouped(ranks.pattern),
            mergeable_ranks=ranks.merges,
            special_tokens={**ranks.special, self._separator: self._mark},
        )

    def arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, int32; views of one array a call."""
        results: dict[int, Ids] = {}
        fast = [k for k, text in enumerate(texts) if self._takes(text)]
        for batch in batches(fast, lambda k: len(texts[k]), most=_JOINED, count=len(fast)):
            results |= zip(batch, self._joined([texts[k] for k in batch]), strict=True)
        if slow := [k for k in range(len(texts)) if k not in results]:
            results |= zip(slow, self._slow([texts[k] for k in slow]), strict=True)
        return [results[k] for k in range(len(texts))]

    def offsets(self, text: str) -> list[tuple[int, int]] | None:
        """The character span of each token, that of the character for parts of one; None for a text
        that is not given to tiktoken."""
        if not self._takes(text):
            return None
        sizes = self._sizes.take(self._ranks(text))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if not text.isascii():
            first = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
            character = np.cumsum(first) - 1
            starts, ends = character[starts], character[ends - 1] + 1
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _ranks(self, text: str) -> npt.NDArray[np.uint32]:
        return self._encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=())

    def _takes(self, text: str) -> bool:
        if len(text) >= _LONGEST_RUN and _RUN.search(text):
            return False
        if text.isascii():
            return True
        if self._odd is not None and self._odd.search(text):
            return False
        return not self._nfc or unicodedata.is_normalized("NFC", text)

    def _joined(self, texts: Sequence[str]) -> Iterable[Ids]:
        ranks = self._ranks(self._separator.join(texts))
        marks = np.flatnonzero(ranks == self._mark)
        assert len(marks) == len(texts) - 1, "only this process knows its separator"
        ids = self._ids.take(ranks)
        edges = [-1, *marks.tolist(), len(ids)]
        return (ids[start + 1 : stop] for start, stop in pairwise(edges))


def _grouped(pattern: str) -> str:
    """All alternatives before the look-ahead in one group, which Rust tries all at once."""
    before, look_ahead, after = pattern.partition(r"|\s+(?!\S)")
    return f"(?:{before}){look_ahead}{after}"


# -- characters on which the Unicode tables of `tokenizers` and tiktoken differ: usually none -----
# Both carry tables of some version of Unicode. What one version assigned, later ones keep, so only
# characters that Python's own table does not know can be classed in two ways.

# what the listed patterns ask of a character; (?i:…) only ever holds ASCII letters
CLASSES = (
    r"\p{L}", r"\p{N}", r"\p{M}", r"\s",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
)  # fmt: skip
# planes 4 to 13 are empty, the rest of 14 is private or reserved
_PLANES = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000))


@functools.cache
def odd_characters(*, nfc: bool) -> re.Pattern[str] | None:
    """A pattern for the characters that the two class, or (with `nfc`) normalise, differently."""
    unknown = [
        chr(c) for plane in _PLANES for c in range(*plane) if unicodedata.category(chr(c)) == "Cn"
    ]
    odd = differing(unknown)
    if nfc:
        normalize = normalizers.NFC().normalize_str
        # between two marks in the wrong order: anything but a character of its own is moved
        lines = [f"q\u0307{char}\u0316" for char in unknown]
        changed = normalize("\n".join(lines)).split("\n")
        odd |= {c for c, a, b in zip(unknown, lines, changed, strict=True) if a != b}
    return re.compile(f"[{''.join(map(re.escape, sorted(odd)))}]") if odd else None


def differing(chars: list[str]) -> set[str]:
    """Those of some characters that the two engines class differently."""
    text = "".join(chars)
    single_bytes = {bytes([b]): b for b in range(256)}
    different: set[str] = set()
    for name in CLASSES:
        oniguruma = pre_tokenizers.Split(Regex(name), "removed", invert=True)
        # tiktoken leaves out what its pattern does not match
        rust = tiktoken.Encoding(
            name, pat_str=name, mergeable_ranks=single_bytes, special_tokens={}
        )
        here = {piece for piece, _ in oniguruma.pre_tokenize_str(text)}
        different |= here ^ set(bytes(rust.encode_ordinary(text)).decode())
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
    """The built-in texts, and mixtures of them with white space and special tokens."""
    rng = random.Random(0)
    texts = [*_WORDS, "".join(map(chr, range(0x250)))]
    texts += [w + s + v for w, s, v in itertools.product(("a", "1", ".", "é"), _SPACES, ("b", "2"))]
    texts += [a + b for a, b in itertools.product(_SPACES, _SPACES)]
    marks = [*special[:64], *(token[:-1] for token in special[:8])]
    for _ in range(200):
        parts = rng.choices(_WORDS, k=6)
        glue = rng.choices([*_SPACES, *marks], k=6)
        texts.append("".join(itertools.chain(*zip(parts, glue, strict=True))))
    texts += [f"a{token} {token}{token}\n{token}b" for token in special[:256]]
    return texts


def disagreement(
    fast: Arrays, slow: Arrays, *, special: Sequence[str], more: Iterable[str] = ()
) -> str | None:
    """The first probe text to which the two give other ids, `None` when there is none."""
    texts = [*probe_texts(special), *more]
    for text, ours, theirs in zip(texts, fast(texts), slow(texts), strict=True):
        if not np.array_equal(ours, theirs):
            return text
    return None
