"""A record against the evaluation items: dropped as `contaminated`, with the matched pair.

Decontaminator(index, coverage=0.6).drop(example)
→ Drop("contaminated", "message 0: 94 % of eval/gsm8k.jsonl:7 question: 'natalia sold clips …'")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_builders.decontamination.index import SHORTEST, RunIndex
from data_builders.decontamination.items import as_source, read_items, texts_in
from data_builders.decontamination.words import words_of
from data_builders.filters.drop import Drop
from data_builders.sources import find_files
from posttrain.config.decontamination import DecontaminationConfig
from posttrain.errors import ConfigError
from posttrain.json_values import load_json
from posttrain.records import Example

_SHOWN = 300  # characters of a passage
_BETWEEN = "\0"  # of two texts: no letter


@dataclass(frozen=True)
class Decontaminator:
    """`longest_whole`: characters of the longest item that is only found as a whole message."""

    index: RunIndex
    coverage: float
    longest_whole: int

    @classmethod
    def load(cls, config: DecontaminationConfig, base_dir: Path) -> Decontaminator:
        """Read and index all evaluation files.

        Raises:
            ConfigError: a path that matches nothing, a field that no row has, a file without text.
            DataError: a row that cannot be read.
        """
        items = (item for file in config.files for item in read_items(file, base_dir))
        index = RunIndex.build(items, ngram=config.ngram, common=config.common)
        _check_each(config, base_dir, {item.file for item in index.items})
        lengths = [len(index.items[number].text) for number in index.whole.values()]
        return cls(index, config.coverage, 2 * max(lengths, default=0))

    def drop(self, example: Example) -> Drop | None:
        """The objection to a record: which item, how much of it, where in the record."""
        texts = list(_texts(example))
        # most records share no run at all, which one look at all their texts tells
        if not self.index.may_hold(words_of(_BETWEEN.join(text for _, text in texts))):
            texts = [(place, text) for place, text in texts if len(text) <= self.longest_whole]
        found = [(place, self.index.find(words_of(text))) for place, text in texts]
        overlaps = [
            (place, o) for place, o in found if o is not None and o.coverage >= self.coverage
        ]
        if not overlaps:
            return None
        place, overlap = max(overlaps, key=lambda pair: pair[1].coverage)
        item, passage = overlap.item, overlap.passage
        shown = passage if len(passage) <= _SHOWN else f"{passage[:_SHOWN]}…"
        detail = (
            f"{place}: {overlap.coverage:.0%} of {item.file}:{item.line} {item.field}: {shown!r}"
        )
        return Drop("contaminated", detail)


def _check_each(config: DecontaminationConfig, base_dir: Path, seen: set[str]) -> None:
    """A file that gives nothing to look for would let everything pass without a word."""
    for file in config.files:
        for path in find_files(as_source(file), base_dir):
            name = os.path.relpath(path, base_dir)
            if name not in seen:
                raise ConfigError(
                    f"decontamination: {name}: no text to look for; it is empty, or all its texts "
                    f"have fewer than {SHORTEST} words"
                )


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
