"""Check of records against evaluation items: overlaps are dropped as `contaminated`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_builders.decontamination.index import SHORTEST, Overlap, RunIndex
from data_builders.decontamination.items import FileItems, as_source, read_items, texts_in
from data_builders.dedup.words import words_of
from data_builders.rows.files import input_files
from data_builders.rows.inputs import Input, input_of
from data_builders.rows.raw import Drop
from posttrain.config.overlap import DecontaminationConfig
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import load_json
from posttrain.records import Example
from posttrain.tokens.encode import batches

_LONGEST_PASSAGE = 300  # characters of a passage in a message
_BATCH_CHARACTERS = 1 << 18  # characters of the texts that are looked up at once


@dataclass(frozen=True)
class Decontaminator:
    """Index of evaluation items that drops the records that overlap them.

    Attributes:
        coverage: share of an item's own words from which on a record is dropped.
        counts: for each evaluation file, its rows, and its items by the way in which they can be
            found: `inside` of other text, `with_options`, as a `whole_message` because it is short,
            or as one because most of its words are a `template` of many items; those `too_short` to
            be looked for; those `repeated`, the same as an item before.
        warnings: sentences about items that are not looked for inside of other text.
    """

    index: RunIndex
    coverage: float
    counts: list[dict[str, Any]]
    warnings: list[str]

    @classmethod
    def load(cls, config: DecontaminationConfig, base_dir: Path) -> Decontaminator:
        """Read and index all evaluation files.

        Raises:
            ConfigError: a path that matches nothing, a field that no row has, a file without text
                or without anything that could be distinguished from a template.
            DataError: a row that cannot be read.
        """
        files: list[FileItems] = []
        for entry in config.files:
            files += read_items(entry, base_dir)
        items = (item for file in files for item in file.items)
        index = RunIndex(items, ngram=config.ngram, common=config.common)
        all_numbers = iter(index.text_of_item.tolist())
        counted_texts: set[int] = set()
        counts: list[dict[str, Any]] = []
        warnings: list[str] = []
        for file in files:
            numbers = list(islice(all_numbers, len(file.items)))
            forms = {number: _search_form(index, number) for number in numbers if number >= 0}
            # an item that an earlier file has too counts as repeated
            new_forms = Counter(
                form for number, form in forms.items() if number not in counted_texts
            )
            counted_texts |= forms.keys()
            too_short = numbers.count(-1)
            counts.append(
                {
                    "file": Path(file.path).name,
                    "rows": file.rows,
                    "without_text": file.without_text,
                    **{form: new_forms[form] for form in _FORMS},
                    "too_short": too_short,
                    "repeated": len(numbers) - too_short - new_forms.total(),
                }
            )
            warnings += _file_warnings(file, [*forms.values()], config)
        return cls(index, config.coverage, counts, warnings)

    def drops(self, examples: Sequence[Example]) -> list[Drop | None]:
        """Drop of each record that overlaps an item, with the item and the passage; else None."""
        texts: list[_RecordText] = []
        for record, example in enumerate(examples):
            for location, text in _model_texts(example):
                texts.append(_RecordText(record, location, text))
        largest_overlaps: dict[int, tuple[str, Overlap]] = {}
        for batch in batches(
            texts, lambda entry: len(entry.text), most=_BATCH_CHARACTERS, count=len(texts)
        ):
            # most texts share no run at all, which one look at the whole batch shows
            is_suspect = self.index.suspects([entry.text for entry in batch])
            for position in np.flatnonzero(is_suspect).tolist():
                record, location, text = batch[position]
                overlap = self.index.find(words_of(text))
                if overlap is None or overlap.coverage < self.coverage:
                    continue
                earlier = largest_overlaps.get(record)
                if earlier is None or overlap.coverage > earlier[1].coverage:
                    largest_overlaps[record] = (location, overlap)
        drops: list[Drop | None] = [None] * len(examples)
        for record, (location, overlap) in largest_overlaps.items():
            drops[record] = _make_drop(location, overlap)
        return drops


class _RecordText(NamedTuple):
    """Text of a record that is looked up.

    Attributes:
        record: position of the record.
        location: part of the record that holds the text, for messages.
    """

    record: int
    location: str
    text: str


_FORMS = ("inside", "with_options", "whole_message", "template")


def _search_form(index: RunIndex, number: int) -> str:
    """Form in which a text of the index can be found (see `Decontaminator.counts`)."""
    text = index.texts[number]
    if index.own_words[number] >= index.ngram:
        return "inside"
    if text.options and text.size >= index.ngram:
        return "with_options"
    return "whole_message" if len(text.words) < index.ngram else "template"


def _file_warnings(file: FileItems, forms: list[str], config: DecontaminationConfig) -> list[str]:
    """Sentences about the items of a file that are not looked for inside of other text.

    Args:
        forms: form in which each distinct item can be found.

    Raises:
        ConfigError: no item of the file could be found in another text.
    """
    name = f"decontamination: {Path(file.path).name}"
    if not forms:
        raise ConfigError(
            f"decontamination: {file.path}: no text to look for; it is empty, or all its texts "
            f"have fewer than {SHORTEST} words"
        )
    why = (
        f"each has fewer than {config.ngram} words outside of runs that more than "
        f"{config.common} items of the files have"
    )
    if forms.count("template") == len(forms):
        raise ConfigError(
            f"decontamination: {file.path}: none of its {len(forms):,} items could be found inside "
            f"of a text: {why}. Raise `common`, lower `ngram`, name under `fields` only the texts "
            "in which items differ, or the field of their options too"
        )
    warnings: list[str] = []
    if file.without_text:
        warnings.append(f"{name}: {file.without_text:,} of {file.rows:,} rows lack text")
    n_whole = forms.count("template") + forms.count("whole_message")
    if n_whole:
        warnings.append(
            f"{name}: {n_whole:,} of {len(forms):,} items are found as whole messages only: {why}. "
            "Name the field of their options, if they have any, under `fields`"
        )
    return warnings


def _make_drop(location: str, overlap: Overlap) -> Drop:
    item = overlap.item
    passage = overlap.passage
    if len(passage) > _LONGEST_PASSAGE:
        passage = f"{passage[:_LONGEST_PASSAGE]}…"
    form = f" {overlap.form}" if overlap.form else ""
    source = f"{item.file}:{item.line} {item.field}{form}"
    return Drop("contaminated", f"{location}: {overlap.coverage:.0%} of {source}: {passage!r}")


def _model_texts(example: Example) -> Iterator[tuple[str, str]]:
    """Yield (location, text) of all that user and model wrote: questions, traces, answers, calls.

    Results of tools and system texts are left out.
    """
    for number, message in enumerate(example.messages):
        if message.role in ("user", "assistant"):
            for text in (message.reasoning or "", message.content):
                if text:
                    yield f"message {number}", text
            for call in message.tool_calls:
                yield f"message {number}, call of {call.name!r}", _argument_texts(call.arguments)


def _argument_texts(arguments: str) -> str:
    """Texts in a call's arguments, without the escapes of JSON."""
    try:
        return "\n".join(texts_in(load_json(arguments)))
    except ValueError:
        return arguments


EVALUATION = "evaluation files"  # source of these inputs; no source can have a name with a space


def evaluation_files(config: DecontaminationConfig | None, base_dir: Path) -> list[Input]:
    """All files that decontamination reads, hashed. Raises the errors of `input_files`."""
    entries = config.files if config is not None else ()
    paths: dict[Path, None] = {}
    for file in entries:
        paths |= dict.fromkeys(input_files(as_source(file), base_dir))
    return [input_of(EVALUATION, path, base_dir) for path in paths]


def load_decontaminator(
    config: DecontaminationConfig | None, base_dir: Path, files: Sequence[Input]
) -> Decontaminator | None:
    """Index the evaluation files of a recipe; `None` without the block `decontamination`.

    Args:
        files: result of `evaluation_files` when the build began.

    Raises:
        DataError: one of the files changed since, or cannot be read.
    """
    if config is None:
        return None
    decontaminator = Decontaminator.load(config, base_dir)
    hashes = [file.sha256 for file in evaluation_files(config, base_dir)]
    if hashes != [file.sha256 for file in files]:
        raise DataError("an evaluation file was changed while the build read it; start again")
    return decontaminator
