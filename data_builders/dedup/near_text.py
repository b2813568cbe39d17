"""The text by which records are compared for near-duplicates: what was said, without its layout.

near_text(example) → NearText(prompt="what is 12+7?", answer="12+7 is 19. the answer is 19")

The system text and declared tools are left out: in data for agents they are long and shared by
records that have nothing else in common, and re-published sets often come with another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from data_builders.dedup.keys import canonical_json
from posttrain.records import Example

Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint32]
_OTHER, _WORD, _SPACE = 0, 1, 2
_PLANE = 0x10000  # characters beyond the basic plane are classed as _OTHER
_SPACE_CODE = ord(" ")
_BETWEEN = "\0"  # two texts: no white space, so that it stays


@dataclass(frozen=True, slots=True)
class NearText:
    """`prompt`: all the user said. `answer`: all the assistant thought, said and called, and what
    its tools returned. Every text is squeezed (`squeeze`) and a line of its side."""

    prompt: str
    answer: str

    @property
    def words(self) -> int:
        """Words of both, by spaces and punctuation."""
        return count_words(self.prompt) + count_words(self.answer)


def near_text(example: Example) -> NearText:
    """The two sides of a conversation."""
    prompt: list[str] = []
    answer: list[str] = []
    for message in example.messages:
        if message.role == "user":
            prompt.append(message.content)
        elif message.role != "system":
            answer += [message.reasoning or "", message.content]
            answer += [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return NearText(_lines(prompt), _lines(answer))


def _lines(texts: Sequence[str]) -> str:
    squeezed = squeeze(_BETWEEN.join(texts))  # one call: most texts are short
    return "\n".join(text for text in squeezed.split(_BETWEEN) if text)


def in_key_order(text: NearText) -> NearText:
    """The same with every line that is JSON in the order of its keys.

    Not so from the start: one edit that breaks the JSON would leave its copy in another order.
    """
    return NearText(_in_key_order(text.prompt), _in_key_order(text.answer))


def _in_key_order(side: str) -> str:
    lines = side.split("\n")
    return "\n".join(
        (canonical_json(line) or line) if line.startswith(("{", "[")) else line for line in lines
    )


def squeeze(text: str) -> str:
    """Lower case, compatibility forms (NFKC), and white space only between two words.

    `{"a": 1}` and `{ "a" : 1 }` become the same; `1 2` and `12` do not.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    codes = codes_of(text.lower())
    kinds = kinds_of(codes)
    solid = np.flatnonzero(kinds != _SPACE)
    if not len(solid):
        return ""
    word = kinds[solid] == _WORD
    spaced = (np.diff(solid) > 1) & word[1:] & word[:-1]
    # every kept character, and one space before each that follows a gap between words
    at = np.arange(len(solid))
    at[1:] += np.cumsum(spaced)
    out = np.full(int(at[-1]) + 1, _SPACE_CODE, codes.dtype)
    out[at] = codes[solid]
    return out.tobytes().decode("latin-1" if out.itemsize == 1 else "utf-32-le", "surrogatepass")


def codes_of(text: str) -> Codes:
    """The code points of a text, (characters,); one byte each where that is enough."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def kinds_of(codes: Codes) -> npt.NDArray[np.uint8]:
    """Per code point whether it is part of a word, white space, or something else."""
    if codes.itemsize == 1:
        return _kinds()[:256][codes]
    return _kinds()[np.minimum(codes, _PLANE - 1)]


@cache
def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.zeros(_PLANE, np.uint8)
    for code in range(_PLANE):
        character = chr(code)
        if character.isalnum():
            kinds[code] = _WORD
        elif character.isspace():
            kinds[code] = _SPACE
    return kinds


def is_word(codes: Codes) -> npt.NDArray[np.bool_]:
    """Letters and digits."""
    return kinds_of(codes) == _WORD


def count_words(text: str) -> int:
    """Runs of word characters; each ideograph and syllable sign of East Asia is a word."""
    codes = codes_of(text)
    word = is_word(codes)
    starts = np.count_nonzero(word & ~np.concatenate([[False], word[:-1]]))
    return int(starts + np.count_nonzero(is_ideograph(codes)))


def is_ideograph(codes: Codes | npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Characters of scripts written without spaces: kana, Han, their extensions."""
    return ((codes >= 0x3040) & (codes <= 0x9FFF)) | ((codes >= 0xF900) & (codes <= 0xFAFF))
