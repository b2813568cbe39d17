"""A record against the evaluation items: dropped as `contaminated`, with the matched pair.

Decontaminator(index, coverage=0.6).drops([example, …])
→ [Drop("contaminated", "message 0: 94% of eval/gsm8k.jsonl:7 question: 'natalia sold …'"), None]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_builders.decontamination.counts import FileCounts, counts_of
from data_builders.decontamination.index import Overlap, RunIndex
from data_builders.decontamination.items import read_items, texts_in
from data_builders.dedup.words import words_of
from data_builders.filters.drop import Drop
from posttrain.config.decontamination import DecontaminationConfig
from posttrain.jsontext import load_json
from posttrain.records import Example

_SHOWN = 300  # characters of a passage
_CHARACTERS = 1 << 18  # looked at together


@dataclass(frozen=True)
class Decontaminator:
    """What evaluation asks, and from which share of an item's own words on a record is dropped.

    `counts` tells what is looked for of each evaluation file, `warnings` what of them is not.
    """

    index: RunIndex
    coverage: float
    counts: list[FileCounts] = field(default_factory=list[FileCounts])
    warnings: list[str] = field(default_factory=list[str])

    @classmethod
    def load(cls, config: DecontaminationConfig, base_dir: Path) -> Decontaminator:
        """Read and index all evaluation files.

        Raises:
            ConfigError: a path that matches nothing, a field that no row has, a file without text
                or without anything that could be told from a template.
            DataError: a row that cannot be read.
        """
        read = [(file, found) for file in config.files for found in read_items(file, base_dir)]
        items = (item for _, found in read for item in found.items)
        index = RunIndex.build(items, ngram=config.ngram, common=config.common)
        counts, warnings = counts_of(read, index, config)
        return cls(index, config.coverage, counts, warnings)

    def drops(self, examples: Sequence[Example]) -> list[Drop | None]:
        """The objection to each record: which item, how much of it, where in the record."""
        texts = [
            _Text(number, place, text)
            for number, example in enumerate(examples)
            for place, text in _texts(example)
        ]
        best: dict[int, tuple[str, Overlap]] = {}
        for some in _chunks(texts):
            # most texts share no run at all, which one look at many of them tells
            for at in np.flatnonzero(self.index.suspects([t.text for t in some])).tolist():
                text = some[at]
                overlap = self.index.find(words_of(text.text))
                if overlap is None or overlap.coverage < self.coverage:
                    continue
                if text.record not in best or overlap.coverage > best[text.record][1].coverage:
                    best[text.record] = text.place, overlap
        return [_drop(*best[k]) if k in best else None for k in range(len(examples))]

    def drop(self, example: Example) -> Drop | None:
        """As `drops`, of one record."""
        return self.drops([example])[0]


@dataclass(frozen=True, slots=True)
class _Text:
    record: int
    place: str
    text: str


def _chunks(texts: Sequence[_Text]) -> Iterator[list[_Text]]:
    """Texts in order, not too much at a time."""
    some: list[_Text] = []
    held = 0
    for text in texts:
        some.append(text)
        held += len(text.text)
        if held >= _CHARACTERS:
            yield some
            some, held = [], 0
    if some:
        yield some


def _drop(place: str, overlap: Overlap) -> Drop:
    item, passage = overlap.item, overlap.passage
    shown = passage if len(passage) <= _SHOWN else f"{passage[:_SHOWN]}…"
    part = " without its template" if overlap.template else ""
    found = f"{overlap.coverage:.0%} of {item.file}:{item.line} {item.field}{part}: {shown!r}"
    return Drop("contaminated", f"{place}: {found}")


def _texts(example: Example) -> Iterator[tuple[str, str]]:
    """What was asked, thought, answered and called; not what tools returned or a system said."""
    for number, message in enumerate(example.messages):
        if message.role in ("user", "assistant"):
            for text in (message.reasoning or "", message.content):
                if text:
                    yield f"message {number}", text
            for call in message.tool_calls:
                yield f"message {number}, call of {call.name!r}", _spoken(call.arguments)


def _spoken(arguments: str) -> str:
    """The texts in a call's arguments, without the escapes of JSON."""
    try:
        return "\n".join(texts_in(load_json(arguments)))
    except ValueError:
        return arguments
