"""The one way from a source's rows to what a stage reads out of them; every other row is dropped
with a reason and counted in `RowCounts`. Conversations in this order: readable row → `where` →
dialect → ending → license → structural filters.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_builders.dialects import RowProblem, fitting, read_row, reading_of
from data_builders.dialects.columns import listed_names
from data_builders.dialects.reading import encoded
from data_builders.filters.structure import structural_drop
from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped, RawRow, RawRows
from data_builders.rows.where import SeenFields, lookup
from posttrain.config.source import EndingPolicy, SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.records import Example, Message, make_example

T = TypeVar("T")
_COLUMNS = 100
_FURTHER = "(columns and keys beyond these)"
_TRIED = 5_000  # rows of a source of which one at least must be a conversation


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

    def note_unread(self, unread: Mapping[str, object]) -> None:
        """Count what of a row is not read; an example is made once, it may be long."""
        listed = [
            (name, value) for path, value in unread.items() for name in listed_names(path, value)
        ]
        self.add_unread(
            (name, 1, "" if name in self.unread else f"{value!r:.60}") for name, value in listed
        )

    def add_unread(self, columns: Iterable[tuple[str, int, str]]) -> None:
        """Count columns that are not read: (name, rows, an example)."""
        for name, rows, example in columns:
            if name not in self.unread and len(self.unread) >= _COLUMNS:
                name = _FURTHER  # rows may name their keys by chance: never without an end
            count, first = self.unread.get(name, (0, example))
            self.unread[name] = (count + rows, first)


def read_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """Stream the rows that a source's `where` lets through; every other row comes as dropped.

    Raises:
        ConfigError: at once for a bad path; at the end of the rows when the source names a field
            that no row has, or no row matched its `where`.
        DataError: a file that cannot be read.
    """
    rows = open_rows(config, base_dir)  # at once: a bad path is an error before any row is read

    def checked() -> RawRows:
        fields = SeenFields(config)
        yield from matching_rows(rows, fields)
        if wrong := fields.problem(config.name):
            raise ConfigError(wrong)

    return checked()


def matching_rows(rows: RawRows, fields: SeenFields) -> RawRows:
    """As `read_rows`, of rows that may be a part of the source's: `fields` stays unchecked."""
    for raw in rows:
        why = fields.unmet(raw.row) if isinstance(raw, RawRow) else None
        yield raw if why is None else Dropped(*why, raw.file, raw.line)


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


class PlacedExample(NamedTuple):
    """A record and the place of its row."""

    example: Example
    file: str
    line: int


def refuse_unreadable(config: SourceConfig, base_dir: Path) -> None:
    """Look into a source's files before anything heavy is loaded.

    Raises:
        ConfigError: a path that matches nothing, a field that no row has, or first rows of which
            none can be read, or is a conversation; it says what the first one is instead.
    """
    if config.hub is not None:
        return
    fields = SeenFields(config)
    tried = itertools.islice(matching_rows(open_rows(config, base_dir), fields), _TRIED)
    first: tuple[RawRow, RowProblem] | None = None
    unread: list[Dropped] = []
    count = 0
    for raw in tried:
        count += 1
        if isinstance(raw, Dropped):
            unread += [raw] if raw.reason != "where" else []
            continue
        try:
            read_row(raw.row, config)
        except RowProblem as problem:
            first = first or (raw, problem)
        else:
            return
    if unread and len(unread) == count:
        raise ConfigError(
            f"source {config.name!r}: none of its first {count:,} rows can be read. "
            f"{unread[0].file}:{unread[0].line}: {unread[0].detail}"
        )
    if first is not None:
        if wrong := fields.problem(config.name):
            raise ConfigError(wrong)
        raw, problem = first
        names = fitting(raw.row, config)
        fits = f"it fits {' and '.join(names) or 'no dialect (docs/guides/dialects.md)'}"
        named = f" of dialect {config.dialect}" if config.dialect else ""
        raise ConfigError(
            f"source {config.name!r}: none of its first {count:,} rows is a conversation{named}. "
            f"{raw.file}:{raw.line} has the keys {', '.join(raw.row)}; {fits}; {problem}"
        )


def read_examples(
    config: SourceConfig,
    base_dir: Path,
    *,
    allowed_licenses: Collection[str] | None = None,
    counts: RowCounts | None = None,
) -> Iterator[Example | Dropped]:
    """A source's records without their places; raises as `read_rows` and `examples_of` do."""
    rows = read_rows(config, base_dir)
    placed = examples_of(rows, config, allowed_licenses=allowed_licenses, counts=counts)
    return (item if isinstance(item, Dropped) else item.example for item in placed)


def examples_of(
    rows: RawRows,
    config: SourceConfig,
    *,
    allowed_licenses: Collection[str] | None = None,
    counts: RowCounts | None = None,
) -> Iterator[PlacedExample | Dropped]:
    """The records of a source's rows, or of a part of them; with `strict` raises at a bad row.

    Args:
        allowed_licenses: licenses that may pass, compared without case; `None` lets all pass.
        counts: counts into this.
    """
    allowed = None if allowed_licenses is None else {name.lower() for name in allowed_licenses}
    counts = counts or RowCounts()
    reading = reading_of(config)

    def read(raw: RawRow) -> PlacedExample | Dropped:
        dialect, conversation = read_row(raw.row, config, reading)
        metadata, license = _carried(raw.row, config)
        counts.note_unread(conversation.unread)
        messages, reason = end_on_assistant(conversation.messages, config.ending)
        if reason is not None:
            last = conversation.messages[-1].role
            return Dropped(reason, f"the last message is of {last}", raw.file, raw.line)
        example = make_example(
            messages,
            tools=conversation.tools,
            source=config.name,
            license=license,
            dialect=dialect,
            metadata=metadata,
        )
        if allowed is not None and license.lower() not in allowed:
            detail = f"{license!r} is not on the allow-list"
            return Dropped("license", detail, raw.file, raw.line, example.id)
        if (drop := structural_drop(example, config.filters)) is not None:
            return Dropped(drop.reason, drop.detail, raw.file, raw.line, example.id)
        counts.trimmed_rows += len(messages) < len(conversation.messages)
        counts.dialects[dialect] += 1
        counts.kept += 1
        return PlacedExample(example, raw.file, raw.line)

    return read_each(rows, config, read=read, counts=counts)


def _carried(row: dict[str, Any], config: SourceConfig) -> tuple[str, str]:
    """The row's metadata as JSON text, and its license."""
    kept: dict[str, Any] = {}
    for path in config.metadata:
        with suppress(KeyError):
            kept[path.rpartition(".")[2]] = lookup(row, path)
    metadata = encoded(kept, "malformed_metadata", ", ".join(kept)) if kept else "{}"
    license = config.license
    if config.license_field is not None:
        with suppress(KeyError):
            license = lookup(row, config.license_field) or license
    if not isinstance(license, str):
        where = str(config.license_field)
        raise RowProblem("malformed_metadata", where, f"the license is {license!r:.80}")
    return metadata, license


def end_on_assistant(
    messages: tuple[Message, ...], policy: EndingPolicy
) -> tuple[tuple[Message, ...], str | None]:
    """The messages up to the last assistant turn, or why there are none to keep."""
    last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=None)
    if last is None:
        return (), "no_assistant"
    if last + 1 < len(messages) and policy == "drop":
        return (), "ends_without_assistant"
    return messages[: last + 1], None
