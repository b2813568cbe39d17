"""Evaluation files → the texts that must not be trained on, each with its place and its options."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.rows.files import find_files
from data_builders.rows.raw import RawRow
from data_builders.rows.read import RowCounts, read_each, read_rows
from data_builders.rows.where import lookup
from posttrain.config.overlap import EvaluationFile
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError

# A, option_b, choice1, choices, answer_choices, endings
_OPTION = re.compile(r"[a-j]|(answer_)?(options?|choices?|endings?)(_?[a-j\d])?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Item:
    """One text of one row of an evaluation file, and the options to choose its answer from."""

    file: str
    line: int
    field: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileItems:
    """What one evaluation file, or dataset directory, holds.

    `without_text` counts rows that lack text in a named field, or, without names, in any.
    """

    path: str
    rows: int
    without_text: int
    items: tuple[Item, ...]


def as_source(file: EvaluationFile) -> SourceConfig:
    """The file as a source; a row that cannot be read stops, since it could not be kept out."""
    name = f"decontamination {file.path}"
    return SourceConfig(name=name, path=file.path, split=file.split, strict=True)


def read_items(file: EvaluationFile, base_dir: Path) -> list[FileItems]:
    """All items of an evaluation file, of each that a glob matches.

    Raises:
        ConfigError: a path that matches nothing, or a field that no row has.
        DataError: a row that cannot be read.
    """
    names, present = set[str](), set[str]()  # of all fields, and of those named that a row has
    read: list[FileItems] = []
    for path in find_files(as_source(file), base_dir):
        name = os.path.relpath(path, base_dir)
        source = as_source(file.model_copy(update={"path": name}))
        counts, items, without_text = RowCounts(), list[Item](), 0
        rows = read_rows(source, base_dir)
        for raw in read_each(rows, source, read=lambda raw: raw, counts=counts):
            assert isinstance(raw, RawRow), "the source is strict"
            names.update(raw.row)
            values = _values(raw.row, file)
            present.update(values)
            texts = {key: [t for t in texts_in(v) if t.strip()] for key, v in values.items()}
            options = tuple(t for key in _options(values, file) for t in texts.pop(key))
            items += [
                Item(raw.file, raw.line, k, t, options) for k, own in texts.items() for t in own
            ]
            without_text += not texts or not (all if file.fields else any)(texts.values())
        read.append(FileItems(name, counts.rows_in, without_text, tuple(items)))
    absent = sorted({*file.fields} - present)
    if absent:
        raise ConfigError(
            f"decontamination: no row of {file.path} has {', '.join(absent)}; its fields "
            f"are {', '.join(sorted(names)) or 'none'}"
        )
    return read


def _values(row: dict[str, Any], file: EvaluationFile) -> dict[str, Any]:
    """The fields that a row has, of those that are named."""
    values: dict[str, Any] = {}
    for field in file.fields or row:
        with contextlib.suppress(KeyError):
            values[field] = lookup(row, field) if file.fields else row[field]
    return values


def _options(values: dict[str, Any], file: EvaluationFile) -> list[str]:
    """The fields that hold options: by their names, or named lists beside a named text."""
    beside = file.fields and any(isinstance(value, str) for value in values.values())
    return [
        name
        for name, value in values.items()
        if _OPTION.fullmatch(name.rpartition(".")[2])
        or (beside and isinstance(value, list | tuple | dict))
    ]


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a value from JSON, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from texts_in(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from texts_in(member)
