"""Evaluation files → texts that must not be trained on, each with its origin and its options."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
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
    """Text of a row of an evaluation file, and the options to choose its answer from."""

    file: str
    line: int
    field: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileItems:
    """Items of one evaluation file, or dataset directory.

    Attributes:
        without_text: number of rows that lack text in a field that the recipe names; if it names
            none, in all fields.
    """

    path: str
    rows: int
    without_text: int
    items: tuple[Item, ...]


def as_source(file: EvaluationFile) -> SourceConfig:
    """Evaluation file as a source; a row that cannot be read stops: it could not be kept out."""
    name = f"decontamination {file.path}"
    return SourceConfig(name=name, path=file.path, split=file.split, strict=True)


def read_items(file: EvaluationFile, base_dir: Path) -> list[FileItems]:
    """Read the items of an evaluation file, or of each file that its glob matches.

    Raises:
        ConfigError: a path that matches nothing, or a field that no row has.
        DataError: a row that cannot be read.
    """
    columns: set[str] = set()
    present_fields: set[str] = set()  # fields to read that some row has
    file_items: list[FileItems] = []
    for path in find_files(as_source(file), base_dir):
        name = os.path.relpath(path, base_dir)
        source = as_source(file.model_copy(update={"path": name}))
        counts = RowCounts()
        items: list[Item] = []
        without_text = 0
        rows = read_rows(source, base_dir)
        for raw in read_each(rows, source, read=lambda raw: raw, counts=counts):
            assert isinstance(raw, RawRow), "the source is strict"
            columns.update(raw.row)
            values = _field_values(raw.row, file)
            present_fields.update(values)
            row_items, lacks_text = _items_of_row(raw, values, file)
            items += row_items
            without_text += lacks_text
        file_items.append(FileItems(name, counts.rows_in, without_text, tuple(items)))
    absent_fields = sorted({*file.fields} - present_fields)
    if absent_fields:
        raise ConfigError(
            f"decontamination: no row of {file.path} has {', '.join(absent_fields)}; its fields "
            f"are {', '.join(sorted(columns)) or 'none'}"
        )
    return file_items


def _items_of_row(
    raw: RawRow, values: Mapping[str, Any], file: EvaluationFile
) -> tuple[list[Item], bool]:
    """Items of a row, and whether it lacks text (see `FileItems`)."""
    texts_by_field: dict[str, list[str]] = {}
    for field, value in values.items():
        texts_by_field[field] = [text for text in texts_in(value) if text.strip()]
    options: list[str] = []
    for field in _option_fields(values, file):
        options += texts_by_field.pop(field)
    items: list[Item] = []
    for field, texts in texts_by_field.items():
        items += [Item(raw.file, raw.line, field, text, tuple(options)) for text in texts]
    needed = all if file.fields else any
    has_text = bool(texts_by_field) and needed(texts_by_field.values())
    return items, not has_text


def _field_values(row: Mapping[str, Any], file: EvaluationFile) -> dict[str, Any]:
    """Values of the fields that the recipe names, as far as a row has them; else of all columns."""
    values: dict[str, Any] = {}
    for field in file.fields or row:
        with contextlib.suppress(KeyError):
            values[field] = lookup(row, field) if file.fields else row[field]
    return values


def _option_fields(values: Mapping[str, Any], file: EvaluationFile) -> list[str]:
    """Fields that hold options: by their names, or lists that the recipe names beside a text."""
    lists_are_options = file.fields and any(isinstance(value, str) for value in values.values())
    option_fields: list[str] = []
    for name, value in values.items():
        has_option_name = _OPTION.fullmatch(name.rpartition(".")[2])
        is_list = isinstance(value, list | tuple | dict)
        if has_option_name or (lists_are_options and is_list):
            option_fields.append(name)
    return option_fields


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value from JSON, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from texts_in(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from texts_in(member)
