"""Filters by lists of patterns: narratives, answers that cannot translate, refusals.

RE2 matches in time linear in the text: a list that someone wrote cannot hang a build. It has no
look-around and no back-references; context has keys of its own, `near` and `unless`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import re2

from data_builders.rows.raw import Match
from posttrain.config.filters import Pattern
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
