"""Hard texts on which tiktoken must give the ids of `tokenizers` before it is used.

    disagreement(encoder, slow, special=["<|im_end|>"], more=rows)  →  None, or the first bad text

The conversion is exact by construction (`tiktoken_ranks`); this is the proof that neither it nor an
installed version of either library has a fault.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

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
