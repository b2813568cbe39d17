"""Evaluation files → the texts that must not be trained on, each with where it stands.

read_items(config, Path("."))
→ [FileItems("eval/gsm8k.jsonl", rows=1319, lacking=0, items=(Item(…, 7, "question", "…"), …))]
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.rows.files import find_files, open_whole
from data_builders.rows.raw import Dropped
from data_builders.rows.where import lookup
from posttrain.config.decontamination import EvaluationFile
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Item:
    """One text of one row of an evaluation file."""

    file: str
    line: int
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class FileItems:
    """What one evaluation file, or dataset directory, holds.

    `lacking` counts the rows that have no text in a named field, or, without names, none at all.
    """

    path: str
    rows: int
    lacking: int
    items: tuple[Item, ...]


def as_source(file: EvaluationFile) -> SourceConfig:
    """The file as something to read rows from."""
    return SourceConfig(name=f"decontamination {file.path}", path=file.path, split=file.split)


def read_items(file: EvaluationFile, base_dir: Path) -> list[FileItems]:
    """All texts of an evaluation file, of each that a glob matches.

    Raises:
        ConfigError: a path that matches nothing, or a field that no row has.
        DataError: a row that cannot be read; what is not read cannot be kept out.
    """
    found: set[str] = set()
    seen: set[str] = set()
    read = [
        _read(path, file, base_dir, found, seen) for path in find_files(as_source(file), base_dir)
    ]
    unseen = [field for field in file.fields if field not in seen]
    if unseen:
        raise ConfigError(
            f"decontamination: no row of {file.path} has {', '.join(sorted(unseen))}; its fields "
            f"are {', '.join(sorted(found)) or 'none'}"
        )
    return read


def _read(
    path: Path, file: EvaluationFile, base_dir: Path, found: set[str], seen: set[str]
) -> FileItems:
    """One path; `found` gets the names of all fields, `seen` of those asked for that a row has."""
    name = os.path.relpath(path, base_dir)
    items: list[Item] = []
    rows = lacking = 0
    for row in open_whole(path, as_source(file))(path, name):
        if isinstance(row, Dropped):
            raise DataError(f"{row.file}:{row.line}: {row.reason}: {row.detail}")
        found.update(row.row)
        values = _values(row.row, file.fields)
        seen.update(values)
        texts = {field: [t for t in texts_in(v) if t.strip()] for field, v in values.items()}
        items += [Item(row.file, row.line, field, t) for field, own in texts.items() for t in own]
        rows += 1
        lacking += not (all(texts.get(f) for f in file.fields) and any(texts.values()))
    return FileItems(name, rows, lacking, tuple(items))


def _values(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The fields that a row has, of those that are asked for."""
    values: dict[str, Any] = {}
    for field in fields or row:
        try:
            values[field] = lookup(row, field) if fields else row[field]
        except KeyError:
            continue
    return values


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
