"""Evaluation files → the texts that must not be trained on, each with its place and its options.

read_items(config, Path("."))
→ [FileItems("eval/mmlu.jsonl", rows=285, without_text=0, items=(
     Item("eval/mmlu.jsonl", 7, "question", "Which of …?", options=("hydrogen", …)), …))]
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.rows.files import find_files, open_whole
from data_builders.rows.raw import Dropped
from data_builders.rows.where import lookup
from posttrain.config.decontamination import EvaluationFile
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError

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
    """The file as something to read rows from."""
    return SourceConfig(name=f"decontamination {file.path}", path=file.path, split=file.split)


def read_items(file: EvaluationFile, base_dir: Path) -> list[FileItems]:
    """All items of an evaluation file, of each that a glob matches.

    Raises:
        ConfigError: a path that matches nothing, or a field that no row has.
        DataError: a row that cannot be read; what is not read cannot be kept out.
    """
    names: set[str] = set()
    present: set[str] = set()
    read = [
        _read(path, file, base_dir, names, present)
        for path in find_files(as_source(file), base_dir)
    ]
    absent = sorted({*file.fields} - present)
    if absent:
        raise ConfigError(
            f"decontamination: no row of {file.path} has {', '.join(absent)}; its fields "
            f"are {', '.join(sorted(names)) or 'none'}"
        )
    return read


def _read(
    path: Path, file: EvaluationFile, base_dir: Path, names: set[str], present: set[str]
) -> FileItems:
    """One path; `names` gets the names of all fields, `present` of those named that a row has."""
    items: list[Item] = []
    rows = without_text = 0
    for row in open_whole(path, as_source(file))(path, os.path.relpath(path, base_dir)):
        if isinstance(row, Dropped):
            raise DataError(f"{row.file}:{row.line}: {row.reason}: {row.detail}")
        names.update(row.row)
        values = _values(row.row, file)
        present.update(values)
        texts = {name: [t for t in texts_in(v) if t.strip()] for name, v in values.items()}
        options = tuple(t for name in _options(values, file) for t in texts.pop(name))
        items += [
            Item(row.file, row.line, name, t, options) for name, own in texts.items() for t in own
        ]
        rows += 1
        without_text += not texts or not (all if file.fields else any)(texts.values())
    return FileItems(os.path.relpath(path, base_dir), rows, without_text, tuple(items))


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
