"""Filters of a text by lists of patterns, and by its language.

The lists are of narratives, untranslated answers and refusals. The language is classified offline
by py3langid (Lui and Baldwin 2012), from the extra `language`.

RE2 matches in time linear in the text: a list that someone wrote cannot hang a build.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from data_builders.rows.raw import Match
from posttrain.config.filters import LanguageFilter, Pattern
from posttrain.errors import ConfigError

_AUTOMATON_BYTES = 64 << 20  # limit of the automata of one pattern


class _CompiledPattern(NamedTuple):
    """Pattern with the contexts in which a match counts, each compiled or None."""

    pattern: Any
    near: Any
    unless: Any
    within: int


class Matcher:
    """Compiled list of patterns. `name` is the key of the filter, for errors.

    Raises:
        ConfigError: a pattern does not compile; it names file and line, or the item's number.
    """

    def __init__(self, patterns: Sequence[Pattern], name: str) -> None:
        self._patterns: list[_CompiledPattern] = []
        for number, pattern in enumerate(patterns, 1):
            origin = pattern.place or f"{name}, pattern {number}"
            compiled = _compile(pattern.pattern, origin)
            near = pattern.near and _compile(pattern.near, origin)
            unless = pattern.unless and _compile(pattern.unless, origin)
            self._patterns.append(_CompiledPattern(compiled, near, unless, pattern.within))
        # most texts match nothing: one automaton of all patterns rules them out in one pass
        union = "|".join(f"(?:{pattern.pattern})" for pattern in patterns)
        self._any = re2.compile(union.encode("utf-8"), options=_options())

    def find(self, text: str) -> Match | None:
        """First match of the first pattern that matches in a context that it allows."""
        encoded = _utf8(text)
        if self._any.search(encoded) is None:
            return None
        for pattern, near, unless, within in self._patterns:
            for match in pattern.finditer(encoded):
                # RE2 counts bytes, spans are in characters
                first_byte, end_byte = match.span()
                start = len(encoded[:first_byte].decode())
                end = start + len(encoded[first_byte:end_byte].decode())
                context_start = max(start - within, 0)
                if unless and unless.search(_utf8(text[context_start : end + within])):
                    continue
                context = f"{text[context_start:start]}\n{text[end : end + within]}"
                if not near or near.search(_utf8(context)):
                    return Match(f"{text[start:end][:100]!r}", start, end)
        return None


def _utf8(text: str) -> bytes:
    """Encode a text, with a question mark for half of a surrogate pair."""
    return text.encode("utf-8", "replace")


def _options() -> Any:
    """Options of RE2: any case, errors raised and not printed, bounded automata."""
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _AUTOMATON_BYTES
    return options


def _compile(pattern: str, origin: str) -> Any:
    """Compile a pattern. Raises ConfigError with its origin if RE2 does not know it."""
    try:
        return re2.compile(pattern.encode("utf-8"), options=_options())
    except re2.error as error:
        reason = error.args[0]
        message = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise ConfigError(
            f"{origin}: {pattern!r} is no pattern that RE2 knows: {message}. "
            "RE2 has no look-around and no back-references; context goes under near and unless"
        ) from None


_PIECE_CHARACTERS = 2000
_FENCE = "```"
_NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`"  # code
    r"|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)"  # formulas
    r"|\\begin\{[a-z*]+\}.*?\\end\{[a-z*]+\}"
    r"|https?://\S+|<[^<>\n]{1,200}>|\\[a-zA-Z]+"
    r"|[\d_=+*/<>|{}\[\]#^~\\]+",
    re.DOTALL,
)
_LETTERS = re.compile(r"[^\W\d_]")
# letters of the shortest text that is judged; ours. In fewer, a name or a quotation decides
MIN_LETTERS = 200


class LanguageCheck:
    """Search for texts in a language that is not allowed.

    Args:
        min_letters: letters of the shortest text that is judged, code and formulas not counted.

    Raises:
        ConfigError: py3langid is not installed, or does not know a language code.
    """

    def __init__(self, limits: LanguageFilter, *, min_letters: int = MIN_LETTERS) -> None:
        self._limits = limits
        self._min_letters = min_letters
        self._identifier = _identifier()
        unknown = sorted(set(limits.allowed) - set(self._identifier.labels))
        if unknown:
            raise ConfigError(
                f"filters.language.allowed: {', '.join(unknown)} is no language that py3langid "
                f"knows; it knows {', '.join(sorted(self._identifier.labels))}"
            )

    def foreign(self, text: str) -> Match | None:
        """Match of the first piece, of up to three, that is in a language not allowed."""
        for start, end in _pieces(text):
            piece = _prose(text, start, end)
            if len(_LETTERS.findall(piece)) < self._min_letters:
                continue
            language, confidence = self._identifier.classify(piece)
            if language not in self._limits.allowed and confidence >= self._limits.confidence:
                return Match(f"{language} with probability {confidence:.2f}", start, end)
        return None


def _prose(text: str, start: int, end: int) -> str:
    """Piece of the text without code, formulas, addresses and numbers."""
    piece = text[start:end]
    # a piece that begins inside a block of code gets the fence that opened it
    if text.count(_FENCE, 0, start) % 2 == 1:
        piece = _FENCE + piece
    return _NOT_PROSE.sub(" ", piece)


def _pieces(text: str) -> list[tuple[int, int]]:
    """Spans of the beginning, middle and end of a text, or of the whole of a short one."""
    length = len(text)
    if length <= 3 * _PIECE_CHARACTERS:
        return [(0, length)]
    starts = (0, (length - _PIECE_CHARACTERS) // 2, length - _PIECE_CHARACTERS)
    return [(start, start + _PIECE_CHARACTERS) for start in starts]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """Load py3langid's model, once. Raises ConfigError if it is not installed."""
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError:
        raise ConfigError(
            "filters.language needs py3langid, which is not installed: "
            "pip install 'posttrain[language]'"
        ) from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
