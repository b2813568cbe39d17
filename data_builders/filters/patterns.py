"""Filters by lists of patterns: narratives, answers that cannot translate, refusals.

Matcher(patterns).find("… for our great nation must …")  →  Match("'our great nation'", 6, 22)

RE2 matches in time linear in the text, whatever the pattern: a list that someone wrote cannot hang
a build, and no clock decides what is dropped. It has no look-around and no back-references; context
has keys of its own, `near` and `unless`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from data_builders.filters.drop import Match
from posttrain.config.patterns import Pattern
from posttrain.errors import ConfigError

_MEMORY = 64 << 20  # bytes for one pattern's automata


@dataclass(frozen=True, slots=True)
class _Compiled:
    pattern: Any
    near: Any
    unless: Any
    within: int


class Matcher:
    """A list of patterns, compiled.

    Args:
        patterns: the list.
        name: of the filter, for messages.

    Raises:
        ConfigError: a pattern does not compile; it names file and line, or the item's number.
    """

    def __init__(self, patterns: Sequence[Pattern], name: str) -> None:
        self._each = [
            _Compiled(
                _compiled(item.pattern, item, number, name),
                item.near and _compiled(item.near, item, number, name),
                item.unless and _compiled(item.unless, item, number, name),
                item.within,
            )
            for number, item in enumerate(patterns, 1)
        ]
        # most texts match nothing: one automaton says so for all patterns together
        together = "|".join(f"(?:{item.pattern})" for item in patterns)
        self._any = re2.compile(together.encode("utf-8"), options=_options())

    def find(self, text: str) -> Match | None:
        """The first match of the first pattern that matches."""
        encoded = _utf8(text)
        if self._any.search(encoded) is None:
            return None
        return next((match for item in self._each for match in _matches(item, text, encoded)), None)


def _matches(item: _Compiled, text: str, encoded: bytes) -> Iterator[Match]:
    """Matches whose surroundings are as the pattern wants them."""
    for match in item.pattern.finditer(encoded):
        begin, stop = match.span()
        start = len(encoded[:begin].decode())
        end = start + len(encoded[begin:stop].decode())
        before, after = text[max(start - item.within, 0) : start], text[end : end + item.within]
        if item.unless is not None and item.unless.search(
            _utf8(text[start - len(before) : end] + after)
        ):
            continue
        if item.near is not None and not item.near.search(_utf8(f"{before}\n{after}")):
            continue
        yield Match(f"{text[start:end][:100]!r}", start, end)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _options() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _MEMORY
    return options


def _compiled(pattern: str, item: Pattern, number: int, name: str) -> Any:
    try:
        return re2.compile(pattern.encode("utf-8"), options=_options())
    except re2.error as error:
        reason = error.args[0]
        message = reason.decode() if isinstance(reason, bytes) else str(reason)
        place = item.place or f"{name}, pattern {number}"
        raise ConfigError(
            f"{place}: {pattern!r} is no pattern that RE2 knows: {message}. "
            "RE2 has no look-around and no back-references; context goes under near and unless"
        ) from None
