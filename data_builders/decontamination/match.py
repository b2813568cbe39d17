"""Records against the evaluation items: dropped as `contaminated`, with the matched pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

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

_SHOWN = 300  # characters of a passage
_CHARACTERS = 1 << 18  # of the texts that are looked at in one batch


@dataclass(frozen=True)
class Decontaminator:
    """What evaluation asks, and the share of an item's own words from which on a record is dropped.

    `counts` has the rows of every evaluation file, and its items by the way in which they can be
    found: `inside` of other text, `with_options`, as a `whole_message` because it is short, or as
    one because most of its words are a `template` of many items; those `too_short` to be looked
    for; those `repeated`, the same as an item before. `warnings` name what is not looked for.
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
        files = [items for file in config.files for items in read_items(file, base_dir)]
        items = (item for file in files for item in file.items)
        index = RunIndex(items, ngram=config.ngram, common=config.common)
        numbers, seen = iter(index.number.tolist()), set[int]()
        counts: list[dict[str, Any]] = []
        warnings: list[str] = []
        for file in files:
            own = list(islice(numbers, len(file.items)))
            forms = {k: _form(index, k) for k in own if k >= 0}
            new = Counter(form for k, form in forms.items() if k not in seen)
            seen |= forms.keys()
            row: dict[str, Any] = {"file": Path(file.path).name, "rows": file.rows}
            row |= {"without_text": file.without_text, **{form: new[form] for form in _FORMS}}
            row["too_short"] = own.count(-1)
            row["repeated"] = len(own) - own.count(-1) - new.total()
            counts.append(row)
            warnings += _warnings(file, [*forms.values()], config)
        return cls(index, config.coverage, counts, warnings)

    def drops(self, examples: Sequence[Example]) -> list[Drop | None]:
        """The objection to each record: which item, how much of it, where in the record."""
        texts = [
            (number, place, text)
            for number, example in enumerate(examples)
            for place, text in _texts(example)
        ]
        best: dict[int, tuple[str, Overlap]] = {}
        for batch in batches(texts, lambda t: len(t[2]), most=_CHARACTERS, count=len(texts)):
            # most texts share no run at all, which one look at many of them shows
            for at in np.flatnonzero(self.index.suspects([t[2] for t in batch])).tolist():
                record, place, text = batch[at]
                overlap = self.index.find(words_of(text))
                if overlap is None or overlap.coverage < self.coverage:
                    continue
                if record not in best or overlap.coverage > best[record][1].coverage:
                    best[record] = place, overlap
        return [_drop(*best[k]) if k in best else None for k in range(len(examples))]


_FORMS = ("inside", "with_options", "whole_message", "template")


def _form(index: RunIndex, number: int) -> str:
    text = index.texts[number]
    if index.own[number] >= index.ngram:
        return "inside"
    if text.options and text.size >= index.ngram:
        return "with_options"
    return "whole_message" if len(text.words) < index.ngram else "template"


def _warnings(file: FileItems, forms: list[str], config: DecontaminationConfig) -> list[str]:
    """What of a file is not looked for amid other words, by file name, as the manifest has it.

    Raises ConfigError: it has nothing that could be found in another text.
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
    if whole := forms.count("template") + forms.count("whole_message"):
        warnings.append(
            f"{name}: {whole:,} of {len(forms):,} items are found as whole messages only: {why}. "
            "Name the field of their options, if they have any, under `fields`"
        )
    return warnings


def _drop(place: str, overlap: Overlap) -> Drop:
    item, passage = overlap.item, overlap.passage
    shown = passage if len(passage) <= _SHOWN else f"{passage[:_SHOWN]}…"
    form = f" {overlap.form}" if overlap.form else ""
    where = f"{overlap.coverage:.0%} of {item.file}:{item.line} {item.field}{form}: {shown!r}"
    return Drop("contaminated", f"{place}: {where}")


def _texts(example: Example) -> Iterator[tuple[str, str]]:
    """What was asked, thought, answered and called; not what tools returned or a system said."""
    for number, message in enumerate(example.messages):
        if message.role in ("user", "assistant"):
            for text in (message.reasoning or "", message.content):
                if text:
                    yield f"message {number}", text
            for call in message.tool_calls:
                yield f"message {number}, call of {call.name!r}", _argument_texts(call.arguments)


def _argument_texts(arguments: str) -> str:
    """The texts in a call's arguments, without the escapes of JSON."""
    try:
        return "\n".join(texts_in(load_json(arguments)))
    except ValueError:
        return arguments


EVALUATION = "evaluation files"  # source of these inputs; no source can have a name with a space


def evaluation_files(config: DecontaminationConfig | None, base_dir: Path) -> list[Input]:
    """All files that decontamination reads, hashed. Raises as `input_files`."""
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
        files: the result of `evaluation_files` when the build began.

    Raises:
        DataError: one of them changed since, or cannot be read.
    """
    if config is None:
        return None
    decontaminator = Decontaminator.load(config, base_dir)
    hashes = [file.sha256 for file in evaluation_files(config, base_dir)]
    if hashes != [file.sha256 for file in files]:
        raise DataError("an evaluation file was changed while the build read it; start again")
    return decontaminator
