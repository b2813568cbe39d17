"""All filters of a text's content: what a source loses after the structural checks. The first that
objects names the reason: turns, copied answers, refusals, untranslated answers, narratives,
language, truncated texts, repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from data_builders.filters.patterns import LanguageCheck, Matcher
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

_SHOWN = 200  # characters of a span, half of them from its end


class TextPart(NamedTuple):
    """One trace or answer. `message` is its message's index in the record."""

    message: int
    part: Part
    text: str

    def drop(self, reason: str, what: str, start: int = 0, end: int | None = None) -> Drop:
        """A drop for `what` in this text, with the characters `start` to `end` as its span."""
        end = len(self.text) if end is None else end
        shown = self.text[start:end]
        if len(shown) > _SHOWN:
            shown = f"{shown[: _SHOWN // 2]} … {shown[-_SHOWN // 2 :]}"
        span = TextSpan(self.message, self.part, start, end, shown)
        return Drop(reason, f"message {self.message}, {self.part}: {what}", span=span)


def text_parts(example: Example) -> Iterator[TextPart]:
    """Traces and answers in their order; empty ones are left out."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            if message.reasons:
                yield TextPart(index, "reasoning", message.reasoning or "")
            if message.content.strip():
                yield TextPart(index, "answer", message.content)


def _outside(
    value: int, least: int | None, most: int | None, unit: str, reasons: tuple[str, str]
) -> Drop | None:
    """A drop for a length below or above its bounds."""
    if least is not None and value < least:
        return Drop(reasons[0], f"{value} {unit}, at least {least} are wanted")
    if most is not None and value > most:
        return Drop(reasons[1], f"{value} {unit}, at most {most} are wanted")
    return None


def turns(example: Example, _: Sequence[TextPart], limits: LengthFilter) -> Drop | None:
    """Too few user turns, or too many."""
    count = sum(message.role == "user" for message in example.messages)
    reasons = ("too_few_turns", "too_many_turns")
    return _outside(count, limits.min_turns, limits.max_turns, "user turns", reasons)


def copied(example: Example, _: Sequence[TextPart], limits: CopiedFilter) -> Drop | None:
    """An answer that equals a question or an earlier answer, or its own trace; blanks apart."""
    before: dict[str, int] = {}
    for index, message in enumerate(example.messages):
        text = " ".join(message.content.split())
        if message.role == "assistant" and len(text) >= limits.characters:
            answer = TextPart(index, "answer", message.content)
            if text in before:
                return answer.drop("copied_answer", f"equals message {before[text]}")
            if message.reasoning and text == " ".join(message.reasoning.split()):
                return answer.drop("copied_answer", "equals its own trace")
        if message.role in ("user", "assistant"):
            before.setdefault(text, index)
    return None


# what a finished text may end on: a sentence's end, perhaps in brackets, quotes or markup; a
# formula, a fence of code, a table's row, a number
_FINISHED = re.compile(r"""[.!?…。！？:)\]}>»"'”’`*_|$~\d；;✅❌]\s*\Z|\\[a-z]+\s*\Z""")
_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_SHORTEST = 2  # characters; no token of running text is shorter on average


def truncated(
    _: Example, parts: Sequence[TextPart], limits: TruncatedFilter, encode: EncodeArrays
) -> Drop | None:
    """The first trace or answer that stops in mid-sentence at a limit of the turn's tokens."""
    trace: TextPart | None = None
    for text in parts:
        before = trace.text if trace and trace.message == text.message else ""
        trace = text if text.part == "reasoning" else None
        turn = before + text.text
        bounds = [limit for limit in limits.tokens if len(turn) >= limit // _SHORTEST]
        if not bounds or finished(text.text):
            continue
        length = len(encode([turn])[0])
        if any(abs(length - bound) <= limits.slack * bound for bound in bounds):
            what = f"stops in mid-sentence after {length:,} tokens"
            return text.drop("truncated_text", what, max(len(text.text) - 100, 0))
    return None


def finished(text: str) -> bool:
    """Whether a text ends as texts end: not within a sentence, and not within a block of code."""
    return _FINISHED.search(text[-40:]) is not None and len(_FENCE.findall(text)) % 2 == 0


# of a record, given with its texts
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
                self._checks.append(_each(reason, matcher.find, parts))
        if filters.language is not None:
            self._checks.append(_each("language", LanguageCheck(filters.language).foreign))
        if filters.truncated is not None:
            self._checks.append(partial(truncated, limits=filters.truncated, encode=encode))
        if filters.repetition is not None:
            loops = partial(find_repetition, limits=filters.repetition)
            self._checks.append(_each("repetition", loops))

    def __call__(self, example: Example) -> Drop | None:
        """What a record is dropped for, `None` for one that stays."""
        parts = list(text_parts(example))
        return next((drop for check in self._checks if (drop := check(example, parts))), None)

    def by_length(self, longest: int) -> Drop | None:
        """What a record is dropped for whose longest sequence has so many tokens."""
        limits, reasons = self._length, ("too_short", "too_long")
        if limits is None:
            return None
        return _outside(longest, limits.min_tokens, limits.max_tokens, "tokens", reasons)


# filters by patterns: drop reason, name, where they look
_PATTERNS: tuple[tuple[str, str, tuple[Part, ...]], ...] = (
    ("refusal", "refusals", ("answer",)),
    ("untranslated", "untranslated", ("answer",)),
    ("narrative", "narratives", ("reasoning", "answer")),
)


def _each(
    reason: str,
    find: Callable[[str], Match | None],
    kinds: Sequence[Part] = ("reasoning", "answer"),
) -> Check:
    """A check of a record that looks at each of its texts of these kinds."""

    def check(_: Example, parts: Sequence[TextPart]) -> Drop | None:
        for text in parts:
            if text.part in kinds and (match := find(text.text)) is not None:
                return text.drop(reason, *match)
        return None

    return check
