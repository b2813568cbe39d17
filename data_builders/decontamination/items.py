"""Evaluation files → the texts that must not be trained on, each with where it stands.

read_items(config, Path("."))  →  Item("eval/gsm8k.jsonl", 7, "question", "Natalia sold clips …"), …
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.sources import open_rows
from data_builders.sources_rows import BadRow
from data_builders.where import lookup
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


def as_source(file: EvaluationFile) -> SourceConfig:
    """The file as something to read rows from."""
    return SourceConfig(name=f"decontamination {file.path}", path=file.path, split=file.split)


def read_items(file: EvaluationFile, base_dir: Path) -> Iterator[Item]:
    """All texts of an evaluation file.

    Raises:
        ConfigError: a path that matches nothing, or a field that no row has.
        DataError: a row that cannot be read; what is not read cannot be kept out.
    """
    unseen = set(file.fields)
    found: set[str] = set()
    for row in open_rows(as_source(file), base_dir):
        if isinstance(row, BadRow):
            raise DataError(f"{row.file}:{row.line}: {row.reason}: {row.detail}")
        found |= row.row.keys()
        for field in file.fields or row.row:
            try:
                value = lookup(row.row, field) if file.fields else row.row[field]
            except KeyError:
                continue
            unseen.discard(field)
            for text in texts_in(value):
                yield Item(row.file, row.line, field, text)
    if unseen:
        raise ConfigError(
            f"decontamination: no row of {file.path} has {', '.join(sorted(unseen))}; its fields "
            f"are {', '.join(sorted(found)) or 'none'}"
        )


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
