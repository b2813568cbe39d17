"""Rows of a source that its `where` lets through; every other row as dropped, with its reason.

    for row in read_rows(SourceConfig(name="sums", path="s.jsonl", where="level < 3"), Path(".")):
        → RawRow({…}, "s.jsonl", 1), Dropped("where", "not level < 3", "s.jsonl", 2), …

Whoever reads rows (SFT sources, preferences, judging data, prompts) counts them in `RowCounts`.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped, RawRow, RawRows
from data_builders.rows.where import Where, lookup, parse_where
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError

_SAMPLE = 5
_KEYS = 100


@dataclass(slots=True)
class RowCounts:
    """One source's rows: each kept or dropped for a named reason.

    `held_out` of the `kept` are not trained on. `examples` holds the first detail of a reason.
    """

    rows_in: int = 0
    kept: int = 0
    held_out: int = 0
    trimmed_rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dialects: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

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


def read_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """Stream a source's rows.

    Raises:
        ConfigError: at once for a bad `where` or path; at the end of the rows when `where` names a
            field that no row has, or no row matched it.
        DataError: a file that cannot be read.
    """
    rows, fields = open_rows(config, base_dir), where_fields(config)
    return _then_check(matching_rows(rows, fields), fields, config.name)


def matching_rows(rows: RawRows, fields: WhereFields | None) -> RawRows:
    """As `read_rows`, of rows that may be a part of the source's: `fields` stays unchecked.

    Args:
        fields: as `where_fields` gives it; notes what the rows show of them.
    """
    for raw in rows:
        why = None
        if fields is not None and isinstance(raw, RawRow):
            why = fields.match(raw.row)
        yield raw if why is None else Dropped("where", why, raw.file, raw.line)


def _then_check(rows: RawRows, fields: WhereFields | None, source: str) -> Iterator[Any]:
    yield from rows
    if fields is not None:
        fields.check(source)


def where_fields(config: SourceConfig) -> WhereFields | None:
    """The `where` of a source, if it has one. Raises ConfigError for one that cannot be parsed."""
    return None if config.where is None else WhereFields(parse_where(config.where))


class WhereFields:
    """A source's `where`, the fields that it names and a few of their values, to catch a wrong one.

    Bounded, whatever the number of rows.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._rows = 0
        self._matched = 0
        self._keys: dict[str, None] = {}
        self._values: dict[str, dict[str, None]] = {}

    def match(self, row: Mapping[str, Any]) -> str | None:
        """`None` if the row matches, else why it does not."""
        why = self._where.matches(row)
        self._rows += 1
        self._matched += why is None
        if len(self._keys) < _KEYS:
            self._keys.update(dict.fromkeys(map(str, row)))
        for path in self._where.fields:
            values = self._values.get(path, {})
            if len(values) >= _SAMPLE:
                continue
            try:
                values[f"{lookup(row, path)!r:.40}"] = None
            except KeyError:
                continue
            self._values[path] = values
        return why

    def state(self) -> dict[str, Any]:
        """What was seen, JSON-able, for `add`."""
        values = {path: list(found) for path, found in self._values.items()}
        return {
            "rows": self._rows,
            "matched": self._matched,
            "keys": list(self._keys),
            "values": values,
        }

    def add(self, state: Mapping[str, Any]) -> None:
        """Note what was seen in another part of the source."""
        self._rows += state["rows"]
        self._matched += state["matched"]
        if len(self._keys) < _KEYS:
            self._keys.update(dict.fromkeys(state["keys"]))
        for path, found in state["values"].items():
            values = self._values.setdefault(path, {})
            for value in found:
                if len(values) < _SAMPLE:
                    values[value] = None

    def check(self, source: str) -> None:
        """Complain about a field that no row had, or an expression that no row met.

        Raises:
            ConfigError: naming the field and the nearest that exists, or the values seen.
        """
        if self._rows == 0:
            return
        text = self._where.text
        for path in self._where.fields:
            if path not in self._values:
                close = difflib.get_close_matches(path, self._keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"rows have {_some(self._keys)}"
                raise ConfigError(
                    f"source {source!r}: where names {path!r}, which none of {self._rows} rows has "
                    f"({hint}): {text}"
                )
        if self._matched == 0:
            seen = "; ".join(f"{path} is {_some(values)}" for path, values in self._values.items())
            raise ConfigError(
                f"source {source!r}: where matches none of {self._rows} rows: {text} ({seen})"
            )


def _some(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:8]) + (" …" if len(names) > 8 else "")
