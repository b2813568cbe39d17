"""Filters of a text by lists of patterns: narratives, untranslated answers and refusals.

RE2 matches in time linear in the text: a list that someone wrote cannot hang a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import re2

from data_builders.rows.raw import Match
from posttrain.config.filters import Pattern
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
