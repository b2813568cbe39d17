"""All filters of a text's content, for a batch of records: what a source loses after structure.

    Screen(Filters(narratives=…), encode)([example, example])  →  [None, Drop("narrative", …)]

A pure function of each record. The first filter that objects names the reason: turns, copied
answers, refusals, untranslated answers, narratives, language, texts cut off, repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from data_builders.filters.conversation import copied, tokens, turns
from data_builders.filters.drop import Drop
from data_builders.filters.language import LanguageCheck
from data_builders.filters.patterns import Matcher
from data_builders.filters.repetition import find_repetitions
from data_builders.filters.said import said
from data_builders.filters.truncated import Truncation
from posttrain.config.filters import Filters, LanguageFilter
from posttrain.config.patterns import Pattern
from posttrain.records import Example
from posttrain.tokens.encode import EncodeArrays

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
            for text in said(example)
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
        for text in said(example):
            span = matcher.find(text.text) if text.part in parts else None
            if span is not None:
                matched = text.text[slice(*span)]
                return text.drop(reason, f"{matched[:100]!r}", *span)
        return None

    return check


def _by_language(limits: LanguageFilter) -> Check:
    judge = LanguageCheck(limits)

    def check(example: Example) -> Drop | None:
        for text in said(example):
            foreign = judge.foreign(text.text)
            if foreign is not None:
                what = f"{foreign.language} with probability {foreign.confidence:.2f}"
                return text.drop("language", what, foreign.start, foreign.end)
        return None

    return check
