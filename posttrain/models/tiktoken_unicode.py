"""Characters on which the Unicode tables of `tokenizers` and tiktoken differ: usually none.

    odd_characters(nfc=False)  →  None, or a pattern that matches any of them

Both libraries carry tables of some version of Unicode. What one version assigned, later ones keep,
so only characters that Python's own table does not know can be classed in two ways.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

# what the listed patterns ask of a character; (?i:…) only ever holds ASCII letters
CLASSES = (
    r"\p{L}", r"\p{N}", r"\p{M}", r"\s",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
)  # fmt: skip
# planes 4 to 13 are empty, the rest of 14 is private or reserved
_PLANES = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000))


@functools.cache
def odd_characters(*, nfc: bool) -> re.Pattern[str] | None:
    """A pattern for the characters that the two class, or normalise, differently.

    Args:
        nfc: the tokenizer normalises to NFC, which is left to Python's table of it.
    """
    unknown = [chr(c) for plane in _PLANES for c in range(*plane) if _unassigned(chr(c))]
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
    found: set[str] = set()
    for name in CLASSES:
        found |= _in_class_here(text, name) ^ _in_class_there(text, name)
    return found


def _unassigned(char: str) -> bool:
    return unicodedata.category(char) == "Cn"


def _in_class_here(text: str, name: str) -> set[str]:
    """Characters that Oniguruma finds in a class."""
    only = pre_tokenizers.Split(Regex(name), "removed", invert=True)
    return {piece for piece, _ in only.pre_tokenize_str(text)}


def _in_class_there(text: str, name: str) -> set[str]:
    """Characters that Rust's engine finds: tiktoken leaves out what its pattern does not match."""
    byte_ids = {bytes([b]): b for b in range(256)}
    single = tiktoken.Encoding(name, pat_str=name, mergeable_ranks=byte_ids, special_tokens={})
    return set(bytes(single.encode_ordinary(text)).decode())
