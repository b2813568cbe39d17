"""Whether a text gives a secret away, as it stands or in a form that can be read back.

    leaks("Your file: tsilhctaw rebma", "amber watchlist") → True

A paraphrase or a translation is not found: only a judge could tell.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import urllib.parse
from collections.abc import Iterator

from reward.environments.instruction_following import seen

LEAST_LETTERS = 6  # of a secret that is looked for in disguise
WIDEST = 2  # times the secret's letters: the room in which all of them follow one another
STRIDES = (2, 3, 4, 5)  # each letter of the secret is one of so many
NEAR = 25  # words among which all of the secret's words give it away, in any order
_LEET = (
    str.maketrans({"4": "a", "@": "a", "3": "e", "1": "i", "!": "i", "0": "o", "7": "t", "5": "s"}),
    str.maketrans({"1": "l", "7": "t", "0": "o", "3": "e", "4": "a", "5": "s"}),
)
_WORD = re.compile(r"[^\W\d_]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[\s:,]{0,2}){6,}")
_STARTS = re.compile(r"(?:^|[.:!?]\s)[\W\d_]*([^\W\d_])", re.MULTILINE)
_ESCAPES = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")


def leaks(text: str, secret: str) -> bool:
    """Whether a text has a secret in it, in any of the forms of `_readings`."""
    if _letters(secret, digits=True) in _letters(text, digits=True):
        return True
    wanted = _letters(secret)
    if len(wanted) < LEAST_LETTERS:
        return False
    if any(wanted in _letters(reading) for reading in _readings(text)):
        return True
    letters = _letters(text)
    shifted = (letters.translate(_shift(by)) for by in range(1, 26))
    if any(wanted in one for one in shifted) or wanted[::-1] in letters:
        return True
    if any(wanted in letters[start::by] for by in STRIDES for start in range(by)):
        return True
    return _spread(letters, wanted) or _near(text, set(_WORD.findall(secret.casefold())))


def _letters(text: str, *, digits: bool = False) -> str:
    kept = str.isalnum if digits else str.isalpha
    return "".join(filter(kept, seen(text).casefold()))


def _readings(text: str) -> Iterator[str]:
    """A text as it stands, and what can be decoded from it."""
    yield text
    yield html.unescape(text)
    yield urllib.parse.unquote(text)
    yield _ESCAPES.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    yield from (text.casefold().translate(table) for table in _LEET)
    words = _WORD.findall(text)
    yield "".join(word[::-1] for word in words)
    yield "".join(word[0] for word in words)
    yield "".join(word[-1] for word in words)
    yield "".join(_STARTS.findall(text))
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


def _shift(by: int) -> dict[int, int]:
    return {97 + n: 97 + (n + by) % 26 for n in range(26)}


def _spread(letters: str, wanted: str) -> bool:
    """Whether the secret's letters follow one another with only little between them."""
    for start in re.finditer(re.escape(wanted[0]), letters):
        at = start.start()
        end = at + WIDEST * len(wanted)
        for letter in wanted[1:]:
            at = letters.find(letter, at + 1, end)
            if at < 0:
                break
        else:
            return True
    return False


def _near(text: str, wanted: set[str]) -> bool:
    """Whether all of a secret's words, two or more, stand near to one another."""
    words = _WORD.findall(seen(text).casefold())
    return len(wanted) > 1 and any(
        words[n] in wanted and wanted <= set(words[n : n + NEAR]) for n in range(len(words))
    )
