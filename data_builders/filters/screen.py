"""Content filters of a source, which run after the structural ones.

The first that objects names the reason: turns, copied answers, refusals, untranslated answers,
narratives, language, truncated texts, repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from data_builders.filters.language import LanguageCheck
from data_builders.filters.patterns import Matcher
from data_builders.filters.repetition import find_repetition
from data_builders.rows.raw import Drop, Match, Part, TextSpan
from posttrain.config.filters import (
    CopiedFilter,
    Filters,
    LengthFilter,
    TruncatedFilter,
)
from posttrain.records import Example
from posttrain.tokens.encode import EncodeArrays

_SHOWN_CHARACTERS = 200  # of a span, half of them from its end


class TextPart(NamedTuple):
    """One trace or answer, and the index of its message in the record."""

    message: int
    part: Part
    text: str

    def drop(self, reason: str, detail: str, start: int = 0, end: int | None = None) -> Drop:
        """Drop with the characters `start` to `end` of this text as its span."""
        end = len(self.text) if end is None else end
        excerpt = self.text[start:end]
        if len(excerpt) > _SHOWN_CHARACTERS:
            half = _SHOWN_CHARACTERS // 2
            excerpt = f"{excerpt[:half]} … {excerpt[-half:]}"
        span = TextSpan(self.message, self.part, start, end, excerpt)
        return Drop(reason, f"message {self.message}, {self.part}: {detail}", span=span)


def text_parts(example: Example) -> Iterator[TextPart]:
    """Traces and answers of a record in order, without the empty ones."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            if message.reasons:
                yield TextPart(index, "reasoning", message.reasoning or "")
            if message.content.strip():
                yield TextPart(index, "answer", message.content)


def _check_bounds(
    value: int, minimum: int | None, maximum: int | None, unit: str, reasons: tuple[str, str]
) -> Drop | None:
    """Drop for a length outside its bounds; `reasons` are those of a small and a large one."""
    too_small, too_large = reasons
    if minimum is not None and value < minimum:
        return Drop(too_small, f"{value} {unit}, at least {minimum} are wanted")
    if maximum is not None and value > maximum:
        return Drop(too_large, f"{value} {unit}, at most {maximum} are wanted")
    return None


def turns(example: Example, _: Sequence[TextPart], limits: LengthFilter) -> Drop | None:
    """Drop a record with too few or too many user turns."""
    count = sum(message.role == "user" for message in example.messages)
    reasons = ("too_few_turns", "too_many_turns")
    return _check_bounds(count, limits.min_turns, limits.max_turns, "user turns", reasons)


def copied(example: Example, _: Sequence[TextPart], limits: CopiedFilter) -> Drop | None:
    """Drop an answer that equals an earlier turn or its own trace, but for blanks."""
    first_index: dict[str, int] = {}  # text of a turn → index of its message
    for index, message in enumerate(example.messages):
        text = " ".join(message.content.split())
        if message.role == "assistant" and len(text) >= limits.characters:
            answer = TextPart(index, "answer", message.content)
            if text in first_index:
                return answer.drop("copied_answer", f"equals message {first_index[text]}")
            if message.reasoning and text == " ".join(message.reasoning.split()):
                return answer.drop("copied_answer", "equals its own trace")
        if message.role in ("user", "assistant"):
            first_index.setdefault(text, index)
    return None


# Last characters of a finished text: the end of a sentence, perhaps in brackets, quotes or markup;
# of a formula, a fence of code, a row of a table, a number.
_FINISHED = re.compile(r"""[.!?…。！？:)\]}>»"'”’`*_|$~\d；;✅❌]\s*\Z|\\[a-z]+\s*\Z""")
_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_MIN_TOKEN_CHARACTERS = 2  # no token of running text is shorter on average
# relative difference from a limit: it may have been counted in another tokenizer's tokens
_TRUNCATION_TOLERANCE = 0.01


def truncated(
    _: Example, parts: Sequence[TextPart], limits: TruncatedFilter, encode: EncodeArrays
) -> Drop | None:
    """Drop a trace or answer that stops in mid-sentence at a token limit of its turn."""
    trace: TextPart | None = None
    for part in parts:
        # the limit of a sampler covers the trace and the answer of a turn together
        same_turn = trace is not None and trace.message == part.message
        turn = (trace.text if trace is not None and same_turn else "") + part.text
        trace = part if part.part == "reasoning" else None
        # encoding is the costly step: skip limits that so few characters cannot reach
        bounds = [limit for limit in limits.tokens if len(turn) >= limit // _MIN_TOKEN_CHARACTERS]
        if not bounds or finished(part.text):
            continue
        length = len(encode([turn])[0])
        if any(abs(length - bound) <= _TRUNCATION_TOLERANCE * bound for bound in bounds):
            detail = f"stops in mid-sentence after {length:,} tokens"
            return part.drop("truncated_text", detail, max(len(part.text) - 100, 0))
    return None


def finished(text: str) -> bool:
    """True where a text ends neither within a sentence nor within a block of code."""
    return _FINISHED.search(text[-40:]) is not None and len(_FENCE.findall(text)) % 2 == 0


Check = Callable[[Example, Sequence[TextPart]], Drop | None]


class Screen:
    """The content filters of one source.

    Raises:
        ConfigError: a pattern does not compile, or a library that a filter needs is missing.
    """

    def __init__(self, filters: Filters, encode: EncodeArrays) -> None:
        self._length = filters.length
        self._checks: list[Check] = []
        if filters.length is not None:
            self._checks.append(partial(turns, limits=filters.length))
        if filters.copied is not None:
            self._checks.append(partial(copied, limits=filters.copied))
        for reason, name, parts in _PATTERNS:
            if (patterns := getattr(filters, name)) is not None:
                matcher = Matcher(patterns, f"filters.{name}")
                self._checks.append(_check_each(reason, matcher.find, parts))
        if filters.language is not None:
            self._checks.append(_check_each("language", LanguageCheck(filters.language).foreign))
        if filters.truncated is not None:
            self._checks.append(partial(truncated, limits=filters.truncated, encode=encode))
        if filters.repetition is not None:
            loops = partial(find_repetition, limits=filters.repetition)
            self._checks.append(_check_each("repetition", loops))

    def __call__(self, example: Example) -> Drop | None:
        """Drop of the first check that objects to a record, `None` where none does."""
        parts = list(text_parts(example))
        for check in self._checks:
            if drop := check(example, parts):
                return drop
        return None

    def by_length(self, longest: int) -> Drop | None:
        """Drop of a record by the number of tokens of its longest sequence, `None` if it fits."""
        limits = self._length
        if limits is None:
            return None
        reasons = ("too_short", "too_long")
        return _check_bounds(longest, limits.min_tokens, limits.max_tokens, "tokens", reasons)


# Filters by patterns: drop reason, name of the key, parts of a turn that they read.
_PATTERNS: tuple[tuple[str, str, tuple[Part, ...]], ...] = (
    ("refusal", "refusals", ("answer",)),
    ("untranslated", "untranslated", ("answer",)),
    ("narrative", "narratives", ("reasoning", "answer")),
)


def _check_each(
    reason: str,
    find: Callable[[str], Match | None],
    searched: Sequence[Part] = ("reasoning", "answer"),
) -> Check:
    """Check that searches the traces or the answers of a record, or both, for a match."""

    def check(_: Example, parts: Sequence[TextPart]) -> Drop | None:
        for part in parts:
            if part.part in searched and (match := find(part.text)) is not None:
                return part.drop(reason, match.detail, match.start, match.end)
        return None

    return check
