"""The one way from a source's rows to what a stage reads out of them; every other row is dropped.

    for item in read_each(read_rows(source, Path(".")), source, read=read_pair, counts=counts):
        → what `read` gave, or Dropped("where", "level is 3, not lt 3", "s.jsonl", 2), …

SFT sources, preferences, judging data and prompts come this way, and are counted in `RowCounts`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from data_builders.dialects.reading import RowProblem
from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped, RawRow, RawRows
from data_builders.rows.where import SeenFields
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError

T = TypeVar("T")
_COLUMNS = 100


@dataclass(slots=True)
class RowCounts:
    """One source's rows: each kept or dropped for a named reason.

    `held_out` of the `kept` are not trained on. `examples` holds the first detail of a reason.
    `unread` counts the columns that no part of a record was read from, each with a value of it.
    """

    rows_in: int = 0
    kept: int = 0
    held_out: int = 0
    trimmed_rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dialects: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    unread: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def drop(self, reason: str, detail: str = "") -> None:
        """Count a dropped row."""
        self.dropped[reason] += 1
        if detail:
            self.examples.setdefault(reason, detail)

    def stats(self) -> dict[str, Any]:
        """For the manifest: what came in, what was kept, and the drops with an example each."""
        return {
            "rows_in": self.rows_in,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": dict(sorted(self.examples.items())),
        }

    def note_unread(self, row: Mapping[str, Any], names: Iterable[str]) -> None:
        """Count a row's columns that are not read; an example is made once, it may be long."""
        self.add_unread((n, 1, "" if n in self.unread else f"{row[n]!r:.60}") for n in names)

    def add_unread(self, columns: Iterable[tuple[str, int, str]]) -> None:
        """Count columns that are not read: (name, rows, an example)."""
        for name, rows, example in columns:
            if name in self.unread or len(self.unread) < _COLUMNS:
                count, first = self.unread.get(name, (0, example))
                self.unread[name] = (count + rows, first)


def read_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """Stream the rows that a source's `where` lets through; every other row comes as dropped.

    Raises:
        ConfigError: at once for a bad path; at the end of the rows when the source names a field
            that no row has, or no row matched its `where`.
        DataError: a file that cannot be read.
    """
    fields = SeenFields(config)
    rows = open_rows(config, base_dir)  # at once: a bad path is an error before any row is read
    return itertools.chain(matching_rows(rows, fields), _checked(fields, config.name))


def matching_rows(rows: RawRows, fields: SeenFields) -> RawRows:
    """As `read_rows`, of rows that may be a part of the source's: `fields` stays unchecked."""
    for raw in rows:
        why = fields.unmet(raw.row) if isinstance(raw, RawRow) else None
        yield raw if why is None else Dropped(*why, raw.file, raw.line)


def _checked(fields: SeenFields, source: str) -> RawRows:
    if wrong := fields.problem(source):
        raise ConfigError(wrong)
    yield from ()


def read_each(
    rows: RawRows, config: SourceConfig, *, read: Callable[[RawRow], T | Dropped], counts: RowCounts
) -> Iterator[T | Dropped]:
    """What `read` makes of each row, in order; rows and drops are counted, what is kept is not.

    Args:
        read: raises `RowProblem` for a row that is malformed, at which a `strict` source stops.

    Raises:
        DataError: a malformed row of a `strict` source, with its file and line.
    """
    for raw in rows:
        try:
            item = read(raw) if isinstance(raw, RawRow) else raw
            malformed = item is raw and isinstance(item, Dropped) and item.reason != "where"
        except RowProblem as problem:
            item, malformed = Dropped(problem.reason, str(problem), raw.file, raw.line), True
        counts.rows_in += 1
        if isinstance(item, Dropped):
            place = f"{item.file}:{item.line}"
            if malformed and config.strict:
                raise DataError(f"{place}: {item.reason}: {item.detail}")
            counts.drop(item.reason, f"{place}: {item.detail}")
        yield item
