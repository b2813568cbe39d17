"""Detection of a secret in a text, verbatim or in a form that can be read back.

    leaks("Your file: tsilhctaw rebma", "amber watchlist") → True

A paraphrase or a translation is not detected: only a judge could tell.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import urllib.parse
from collections.abc import Iterator

from reward.environments.instruction_following import without_look_alikes

LEAST_LETTERS = 6  # of a secret that is looked for in disguise; shorter ones occur by chance
MAX_SPREAD = 2  # text in which the secret's letters follow one another, in lengths of the secret
STRIDES = (2, 3, 4, 5)  # distances between the letters of a secret that is spread evenly
NEARBY_WORDS = 25  # window in which all words of the secret, in any order, give it away
_LEET = (
    str.maketrans({"4": "a", "@": "a", "3": "e", "1": "i", "!": "i", "0": "o", "7": "t", "5": "s"}),
    str.maketrans({"1": "l", "7": "t", "0": "o", "3": "e", "4": "a", "5": "s"}),
)
_WORD = re.compile(r"[^\W\d_]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[\s:,]{0,2}){6,}")
_SENTENCE_INITIAL = re.compile(r"(?:^|[.:!?]\s)[\W\d_]*([^\W\d_])", re.MULTILINE)
_ESCAPES = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")


def leaks(text: str, secret: str) -> bool:
    """Tell whether a text contains a secret, verbatim, encoded, reversed, shifted or spread out."""
    if _letters(secret, digits=True) in _letters(text, digits=True):
        return True
    secret_letters = _letters(secret)
    if len(secret_letters) < LEAST_LETTERS:
        return False
    if any(secret_letters in _letters(decoded) for decoded in _decodings(text)):
        return True
    text_letters = _letters(text)
    if secret_letters[::-1] in text_letters:
        return True
    for shift in range(1, 26):
        if secret_letters in text_letters.translate(_caesar_table(shift)):
            return True
    for stride in STRIDES:
        for start in range(stride):
            if secret_letters in text_letters[start::stride]:
                return True
    if _spread_out(text_letters, secret_letters):
        return True
    return _words_nearby(text, set(_WORD.findall(secret.casefold())))


def _letters(text: str, *, digits: bool = False) -> str:
    """Letters of a text in lower case, without look-alikes; with its digits if `digits`."""
    keep = str.isalnum if digits else str.isalpha
    return "".join(filter(keep, without_look_alikes(text).casefold()))


def _decodings(text: str) -> Iterator[str]:
    """A text itself, and the texts that can be decoded from it."""
    yield text
    yield html.unescape(text)
    yield urllib.parse.unquote(text)
    yield _ESCAPES.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    yield from (text.casefold().translate(table) for table in _LEET)
    words = _WORD.findall(text)
    yield "".join(word[::-1] for word in words)
    yield "".join(word[0] for word in words)
    yield "".join(word[-1] for word in words)
    yield "".join(_SENTENCE_INITIAL.findall(text))
    for token in _BASE64.findall(text):
        try:
            padded = token.rstrip("=") + "=" * (-len(token.rstrip("=")) % 4)
            yield base64.urlsafe_b64decode(padded.replace("+", "-").replace("/", "_")).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    for token in _HEX.findall(text):
        yield codecs.decode(re.sub(r"[\s:,]", "", token), "hex").decode("latin-1")
    numbers = [int(number) for number in re.findall(r"(?<!\d)\d{1,3}(?!\d)", text)]
    yield "".join(chr(number + 96) for number in numbers if 1 <= number <= 26)
    yield "".join(chr(number) for number in numbers if 32 <= number < 127)


def _caesar_table(shift: int) -> dict[int, int]:
    """Table for `str.translate` that shifts each letter of a to z."""
    return {97 + n: 97 + (n + shift) % 26 for n in range(26)}


def _spread_out(text_letters: str, secret_letters: str) -> bool:
    """Tell whether the letters of a secret follow one another with little between them."""
    for start in re.finditer(re.escape(secret_letters[0]), text_letters):
        position = start.start()
        end = position + MAX_SPREAD * len(secret_letters)
        for letter in secret_letters[1:]:
            position = text_letters.find(letter, position + 1, end)
            if position < 0:
                break
        else:
            return True
    return False


def _words_nearby(text: str, secret_words: set[str]) -> bool:
    """Tell whether all words of a secret, two or more, stand near one another."""
    if len(secret_words) < 2:
        return False
    words = _WORD.findall(without_look_alikes(text).casefold())
    for start, word in enumerate(words):
        if word in secret_words and secret_words <= set(words[start : start + NEARBY_WORDS]):
            return True
    return False
