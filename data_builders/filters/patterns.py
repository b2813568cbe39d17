"""Filters of a text by lists of patterns (narratives, answers that cannot translate, refusals), and
by its language, as py3langid says it (Lui and Baldwin 2012), offline; extra `language`.

RE2 matches in time linear in the text: a list that someone wrote cannot hang a build.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

from data_builders.rows.raw import Match
from posttrain.config.filters import LanguageFilter, Pattern
from posttrain.errors import ConfigError

_MEMORY = 64 << 20  # bytes for one pattern's automata


class Matcher:
    """A list of patterns, compiled; `name` is the filter's.

    Raises:
        ConfigError: a pattern does not compile; it names file and line, or the item's number.
    """

    def __init__(self, patterns: Sequence[Pattern], name: str) -> None:
        # of each: the pattern, near, unless, within
        self._each: list[tuple[Any, Any, Any, int]] = []
        for number, item in enumerate(patterns, 1):
            place = item.place or f"{name}, pattern {number}"
            given = (item.pattern, item.near, item.unless)
            pattern, near, unless = (p and _compiled(p, place) for p in given)
            self._each.append((pattern, near, unless, item.within))
        # most texts match nothing: one automaton says so for all patterns together
        together = "|".join(f"(?:{item.pattern})" for item in patterns)
        self._any = re2.compile(together.encode("utf-8"), options=_options())

    def find(self, text: str) -> Match | None:
        """The first match of the first pattern that matches."""
        encoded = _utf8(text)
        if self._any.search(encoded) is None:
            return None
        for pattern, near, unless, within in self._each:
            for match in pattern.finditer(encoded):
                begin, stop = match.span()
                start = len(encoded[:begin].decode())
                end = start + len(encoded[begin:stop].decode())
                first = max(start - within, 0)
                if unless and unless.search(_utf8(text[first : end + within])):
                    continue
                around = f"{text[first:start]}\n{text[end : end + within]}"
                if not near or near.search(_utf8(around)):
                    return Match(f"{text[start:end][:100]!r}", start, end)
        return None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _options() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _MEMORY
    return options


def _compiled(pattern: str, place: str) -> Any:
    try:
        return re2.compile(pattern.encode("utf-8"), options=_options())
    except re2.error as error:
        reason = error.args[0]
        message = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise ConfigError(
            f"{place}: {pattern!r} is no pattern that RE2 knows: {message}. "
            "RE2 has no look-around and no back-references; context goes under near and unless"
        ) from None


_PIECE = 2000  # characters
_FENCE = "```"
_NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`"  # code
    r"|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)"  # formulas
    r"|\\begin\{[a-z*]+\}.*?\\end\{[a-z*]+\}"
    r"|https?://\S+|<[^<>\n]{1,200}>|\\[a-zA-Z]+"
    r"|[\d_=+*/<>|{}\[\]#^~\\]+",
    re.DOTALL,
)
_LETTERS = re.compile(r"[^\W\d_]")


class LanguageCheck:
    """Says of a text whether it is in a language that is not allowed.

    Raises:
        ConfigError: py3langid is not installed, or a code is none it knows.
    """

    def __init__(self, limits: LanguageFilter) -> None:
        self._limits = limits
        self._identifier = _identifier()
        unknown = sorted(set(limits.allowed) - set(self._identifier.labels))
        if unknown:
            raise ConfigError(
                f"filters.language.allowed: {', '.join(unknown)} is no language that py3langid "
                f"knows; it knows {', '.join(sorted(self._identifier.labels))}"
            )

    def foreign(self, text: str) -> Match | None:
        """The first of three pieces that is in a language not allowed."""
        for start, end in _pieces(text):
            piece = _prose(text, start, end)
            if len(_LETTERS.findall(piece)) < self._limits.letters:
                continue
            language, confidence = self._identifier.classify(piece)
            if language not in self._limits.allowed and confidence >= self._limits.confidence:
                return Match(f"{language} with probability {confidence:.2f}", start, end)
        return None


def _prose(text: str, start: int, end: int) -> str:
    """The piece without code, formulas, addresses and numbers."""
    in_code = text.count(_FENCE, 0, start) % 2 == 1
    return _NO_LANGUAGE.sub(" ", (_FENCE if in_code else "") + text[start:end])


def _pieces(text: str) -> list[tuple[int, int]]:
    """Three pieces of the text, or the whole of a short one."""
    if len(text) <= 3 * _PIECE:
        return [(0, len(text))]
    middle = (len(text) - _PIECE) // 2
    return [(0, _PIECE), (middle, middle + _PIECE), (len(text) - _PIECE, len(text))]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError:
        raise ConfigError(
            "filters.language needs py3langid, which is not installed: "
            "pip install 'posttrain[language]'"
        ) from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
