"""All filters of a text's content, for a batch of records: what a source loses after structure.

    Screen(Filters(narratives=…), encode)([example, example])  →  [None, Drop("narrative", …)]

A pure function of each record. The first filter that objects names the reason: turns, copied
answers, refusals, untranslated answers, narratives, language, texts cut off, repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data_builders.filters.drop import Drop, Part, span_in
from data_builders.filters.language import LanguageCheck
from data_builders.filters.patterns import Matcher
from data_builders.filters.repetition import find_repetitions
from posttrain.config.filters import (
    CopiedFilter,
    Filters,
    LanguageFilter,
    LengthFilter,
    TruncatedFilter,
)
from posttrain.config.patterns import Pattern
from posttrain.records import Example
from posttrain.tokens.encode import EncodeArrays


@dataclass(frozen=True, slots=True)
class TextPart:
    """One trace or answer. `message` is its message's index in the record."""

    message: int
    part: Part
    text: str

    def drop(self, reason: str, what: str, start: int = 0, end: int | None = None) -> Drop:
        """A drop for `what` in this text, with the characters `start` to `end` as its span."""
        until = len(self.text) if end is None else end
        span = span_in(self.text, start, until, message=self.message, part=self.part)
        return Drop(reason, f"message {self.message}, {self.part}: {what}", span)


def text_parts(example: Example) -> Iterator[TextPart]:
    """Traces and answers in their order; empty ones are left out."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            if message.reasons:
                yield TextPart(index, "reasoning", message.reasoning or "")
            if message.content.strip():
                yield TextPart(index, "answer", message.content)


def turns(example: Example, limits: LengthFilter) -> Drop | None:
    """Too few user turns, or too many."""
    count = sum(message.role == "user" for message in example.messages)
    if limits.min_turns is not None and count < limits.min_turns:
        return Drop("too_few_turns", f"{count} user turns, at least {limits.min_turns} are wanted")
    if limits.max_turns is not None and count > limits.max_turns:
        return Drop("too_many_turns", f"{count} user turns, at most {limits.max_turns} are wanted")
    return None


def tokens(length: int, limits: LengthFilter) -> Drop | None:
    """A longest sequence of `length` tokens that is too short or too long."""
    if limits.min_tokens is not None and length < limits.min_tokens:
        return Drop("too_short", f"{length} tokens, at least {limits.min_tokens} are wanted")
    if limits.max_tokens is not None and length > limits.max_tokens:
        return Drop("too_long", f"{length} tokens, at most {limits.max_tokens} are wanted")
    return None


def copied(example: Example, limits: CopiedFilter) -> Drop | None:
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


class Truncation:
    """Finds texts cut off at a limit; `encode` counts their tokens."""

    def __init__(self, limits: TruncatedFilter, encode: EncodeArrays) -> None:
        self._limits = limits
        self._encode = encode

    def find(self, example: Example) -> Drop | None:
        """The first trace or answer that stops in mid-sentence at a limit."""
        trace: TextPart | None = None
        for text in text_parts(example):
            before = trace.text if trace and trace.message == text.message else ""
            if not finished(text.text):
                length = self._at_limit(before + text.text)
                if length is not None:
                    what = f"stops in mid-sentence after {length:,} tokens"
                    return text.drop("truncated_text", what, max(len(text.text) - 100, 0))
            trace = text if text.part == "reasoning" else None
        return None

    def _at_limit(self, text: str) -> int | None:
        """The text's tokens, if a limit is as near as the recipe asks."""
        limits = [limit for limit in self._limits.tokens if len(text) >= limit // _SHORTEST]
        if not limits:
            return None
        length = len(self._encode([text])[0])
        near = any(abs(length - limit) <= self._limits.slack * limit for limit in limits)
        return length if near else None


def finished(text: str) -> bool:
    """Whether a text ends as texts end: not within a sentence, and not within a block of code."""
    return _FINISHED.search(text[-40:]) is not None and len(_FENCE.findall(text)) % 2 == 0


Check = Callable[[Example], Drop | None]


class Screen:
    """The content filters of one source.

    Args:
        filters: which, and how.
        encode: the recipe's tokenizer, for filters that count tokens.

    Raises:
        ConfigError: a pattern does not compile, or a library that a filter needs is missing.
    """

    def __init__(self, filters: Filters, encode: EncodeArrays) -> None:
        self._filters = filters
        self._checks: list[Check] = []
        length, copies, cut = filters.length, filters.copied, filters.truncated
        if length is not None:
            self._checks.append(lambda example: turns(example, length))
        if copies is not None:
            self._checks.append(lambda example: copied(example, copies))
        for reason, name, patterns, parts in (
            ("refusal", "refusals", filters.refusals, ("answer",)),
            ("untranslated", "untranslated", filters.untranslated, ("answer",)),
            ("narrative", "narratives", filters.narratives, ("reasoning", "answer")),
        ):
            if patterns is not None:
                self._checks.append(_by_patterns(reason, name, patterns, parts))
        if filters.language is not None:
            self._checks.append(_by_language(filters.language))
        if cut is not None:
            self._checks.append(Truncation(cut, encode).find)

    def __call__(self, examples: Sequence[Example]) -> list[Drop | None]:
        """What each record is dropped for, `None` for those that stay."""
        drops = [self._first(example) for example in examples]
        limits = self._filters.repetition
        if limits is None:
            return drops
        texts = [
            (at, text)
            for at, (example, drop) in enumerate(zip(examples, drops, strict=True))
            if drop is None
            for text in text_parts(example)
        ]
        found = find_repetitions([text.text for _, text in texts], limits)
        for (at, text), loop in zip(texts, found, strict=True):
            if loop is not None and drops[at] is None:
                what = f"{loop.rule}: {loop.detail}"
                drops[at] = text.drop("repetition", what, loop.start, loop.end)
        return drops

    def by_length(self, longest: int) -> Drop | None:
        """What a record is dropped for whose longest sequence has so many tokens."""
        limits = self._filters.length
        return tokens(longest, limits) if limits is not None else None

    def _first(self, example: Example) -> Drop | None:
        return next((drop for check in self._checks if (drop := check(example)) is not None), None)


def _by_patterns(
    reason: str, name: str, patterns: Sequence[Pattern], parts: Sequence[str]
) -> Check:
    matcher = Matcher(patterns, f"filters.{name}")

    def check(example: Example) -> Drop | None:
        for text in text_parts(example):
            span = matcher.find(text.text) if text.part in parts else None
            if span is not None:
                matched = text.text[slice(*span)]
                return text.drop(reason, f"{matched[:100]!r}", *span)
        return None

    return check


def _by_language(limits: LanguageFilter) -> Check:
    judge = LanguageCheck(limits)

    def check(example: Example) -> Drop | None:
        for text in text_parts(example):
            foreign = judge.foreign(text.text)
            if foreign is not None:
                what = f"{foreign.language} with probability {foreign.confidence:.2f}"
                return text.drop("language", what, foreign.start, foreign.end)
        return None

    return check
