"""Source rows → records, every other row dropped with a reason and counted.

A row becomes a record in this order: readable → `where` → dialect → ending → license → structural
filters. A step refuses a row with a `Drop`, or raises `RowProblem` if the row itself is malformed;
`read_each` adds file and line to both, and counts them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data_builders.dialects import RowProblem, fitting_dialects, read_row, reading_of
from data_builders.dialects.columns import counted_names
from data_builders.dialects.reading import encoded
from data_builders.filters.structure import structural_drop
from data_builders.rows.files import open_rows
from data_builders.rows.raw import Drop, RawRow, RawRows
from data_builders.rows.where import SeenFields, lookup
from posttrain.config.paths import refuse_out_of_reach
from posttrain.config.source import EndingPolicy, SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.records import Example, Message, make_example

T = TypeVar("T")
_MAX_UNREAD = 100  # names of unread columns that are counted one by one, ours
_MORE_UNREAD = "(columns and keys beyond these)"
_PREVIEW_ROWS = 5_000  # at least one of so many first rows must be a conversation; ours


@dataclass(slots=True)
class RowCounts:
    """Counts of one source's rows: each row is kept, or dropped for a named reason.

    Attributes:
        held_out: kept rows that are not trained on.
        examples: first detail of each drop reason.
        unread: columns that no part of a record was read from → (number of rows, example value).
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
        """Figures for the manifest: rows in, kept, and dropped by reason with an example each."""
        return {
            "rows_in": self.rows_in,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": dict(sorted(self.examples.items())),
        }

    def note_unread(self, unread: Mapping[str, object]) -> None:
        """Count the columns and keys of one row that were not read."""
        for path, value in unread.items():
            for name in counted_names(path, value):
                # an example is formatted only once: values may be long
                example = "" if name in self.unread else f"{value!r:.60}"
                self._count_unread(name, 1, example)

    def add_unread(self, columns: Iterable[tuple[str, int, str]]) -> None:
        """Add counts of unread columns from elsewhere: (name, rows, an example)."""
        for name, rows, example in columns:
            self._count_unread(name, rows, example)

    def _count_unread(self, name: str, rows: int, example: str) -> None:
        """Add rows to the count of a name; names beyond `_MAX_UNREAD` share one count."""
        if name not in self.unread and len(self.unread) >= _MAX_UNREAD:
            name = _MORE_UNREAD  # rows may have arbitrary keys: the table stays bounded
        count, first_example = self.unread.get(name, (0, example))
        self.unread[name] = (count + rows, first_example)


def read_rows(config: SourceConfig, base_dir: Path) -> RawRows:
    """Stream a source's rows; those that its `where` does not match come as dropped.

    Raises:
        ConfigError: at once for a bad path; after the last row if the source names a field that
            no row has, or no row matched its `where`.
        DataError: a file that cannot be read.
    """
    rows = open_rows(config, base_dir)  # opened here: a bad path is an error before any row is read

    def checked_rows() -> RawRows:
        fields = SeenFields(config)
        yield from matching_rows(rows, fields)
        if problem := fields.problem(config.name):
            raise ConfigError(problem)

    return checked_rows()


def matching_rows(rows: RawRows, fields: SeenFields) -> RawRows:
    """Yield rows that match `where`, and drops of the others; `fields` records their fields.

    The rows may be a part of a source: whether its fields exist is for the caller to check.
    """
    for raw in rows:
        if isinstance(raw, RawRow) and (drop := fields.unmet(raw.row)) is not None:
            yield raw.dropped(drop)
        else:
            yield raw


def read_each(
    rows: RawRows,
    config: SourceConfig,
    *,
    read: Callable[[RawRow], T | Drop],
    counts: RowCounts,
) -> Iterator[T | Drop]:
    """Apply `read` to each row, counting rows and drops; a strict source's malformed row raises.

    What is kept is for `read` to count.

    Args:
        read: function that returns a row's value, or a drop; it raises `RowProblem` for a
            malformed row.

    Raises:
        DataError: a malformed row of a `strict` source, with its file and line.
    """
    for raw in rows:
        is_malformed = False
        if isinstance(raw, Drop):
            item = raw
            is_malformed = raw.reason != "where"
        else:
            try:
                item = read(raw)
            except RowProblem as problem:
                item = problem.drop
                is_malformed = True
            if isinstance(item, Drop):
                item = raw.dropped(item)
        counts.rows_in += 1
        if isinstance(item, Drop):
            location = f"{item.file}:{item.line}"
            if is_malformed and config.strict:
                raise DataError(f"{location}: {item.reason}: {item.detail}")
            counts.drop(item.reason, f"{location}: {item.detail}")
        yield item


class PlacedExample(NamedTuple):
    """Record with the file and line of its row."""

    example: Example
    file: str
    line: int


def refuse_unreadable(config: SourceConfig, base_dir: Path) -> None:
    """Refuse a source none of whose first rows is a conversation, or a hub id out of reach.

    Meant to be called before anything heavy is loaded.

    Raises:
        ConfigError: a path that matches nothing, a field that no row has, or first rows of which
            none can be read or none is a conversation; the message describes the first one.
    """
    if config.hub is not None:
        refuse_out_of_reach(config.hub, key=f"source {config.name!r}", kind="dataset")
        return
    fields = SeenFields(config)
    rows = matching_rows(open_rows(config, base_dir), fields)
    first_problem: tuple[RawRow, RowProblem] | None = None
    unreadable: list[Drop] = []
    count = 0
    for raw in itertools.islice(rows, _PREVIEW_ROWS):
        count += 1
        if isinstance(raw, Drop):
            if raw.reason != "where":
                unreadable.append(raw)
            continue
        try:
            read_row(raw.row, config)
        except RowProblem as problem:
            first_problem = first_problem or (raw, problem)
        else:
            return
    if unreadable and len(unreadable) == count:
        first = unreadable[0]
        raise ConfigError(
            f"source {config.name!r}: none of its first {count:,} rows can be read. "
            f"{first.file}:{first.line}: {first.detail}"
        )
    if first_problem is None:
        return
    if wrong_field := fields.problem(config.name):
        raise ConfigError(wrong_field)
    raw, problem = first_problem
    fitting = " and ".join(fitting_dialects(raw.row, config))
    dialects = fitting or "no dialect (docs/guides/dialects.md)"
    dialect = f" of dialect {config.dialect}" if config.dialect else ""
    raise ConfigError(
        f"source {config.name!r}: none of its first {count:,} rows is a conversation{dialect}. "
        f"{raw.file}:{raw.line} has the keys {', '.join(raw.row)}; it fits {dialects}; {problem}"
    )


def read_examples(
    config: SourceConfig,
    base_dir: Path,
    *,
    allowed_licenses: Collection[str] | None = None,
    counts: RowCounts | None = None,
) -> Iterator[Example | Drop]:
    """Read a source's records without their lines. See `read_rows` and `examples_of`."""
    rows = read_rows(config, base_dir)
    placed = examples_of(rows, config, allowed_licenses=allowed_licenses, counts=counts)
    return (item if isinstance(item, Drop) else item.example for item in placed)


def examples_of(
    rows: RawRows,
    config: SourceConfig,
    *,
    allowed_licenses: Collection[str] | None = None,
    counts: RowCounts | None = None,
) -> Iterator[PlacedExample | Drop]:
    """Turn a source's rows, or a part of them, into records.

    Args:
        allowed_licenses: licenses that may pass, compared without case; `None` lets all pass.
        counts: counts to add to.

    Raises:
        DataError: a malformed row of a `strict` source.
    """
    licenses = None if allowed_licenses is None else {name.lower() for name in allowed_licenses}
    counts = counts or RowCounts()
    reading = reading_of(config)

    def read(raw: RawRow) -> PlacedExample | Drop:
        dialect, conversation = read_row(raw.row, config, reading)
        metadata = _read_metadata(raw.row, config)
        license = _read_license(raw.row, config)
        counts.note_unread(conversation.unread)
        messages = end_on_assistant(conversation.messages, config.ending)
        if isinstance(messages, Drop):
            return messages
        example = make_example(
            messages,
            tools=conversation.tools,
            source=config.name,
            license=license,
            dialect=dialect,
            metadata=metadata,
        )
        if licenses is not None and license.lower() not in licenses:
            return Drop("license", f"{license!r} is not on the allow-list", record_id=example.id)
        if (drop := structural_drop(example, config.filters)) is not None:
            return replace(drop, record_id=example.id)
        counts.trimmed_rows += len(messages) < len(conversation.messages)
        counts.dialects[dialect] += 1
        counts.kept += 1
        return PlacedExample(example, raw.file, raw.line)

    return read_each(rows, config, read=read, counts=counts)


def _read_metadata(row: dict[str, Any], config: SourceConfig) -> str:
    """JSON text of the columns that the source carries as metadata, by the last part of a path."""
    values: dict[str, Any] = {}
    for path in config.metadata:
        with suppress(KeyError):
            values[path.rpartition(".")[2]] = lookup(row, path)
    return encoded(values, "malformed_metadata", ", ".join(values)) if values else "{}"


def _read_license(row: dict[str, Any], config: SourceConfig) -> str:
    """License of the row, else of its source. Raises RowProblem for one that is no text."""
    license = config.license
    if config.license_field is not None:
        with suppress(KeyError):
            license = lookup(row, config.license_field) or license
    if not isinstance(license, str):
        field = str(config.license_field)
        raise RowProblem("malformed_metadata", field, f"the license is {license!r:.80}")
    return license


def end_on_assistant(
    messages: tuple[Message, ...], policy: EndingPolicy
) -> tuple[Message, ...] | Drop:
    """Cut messages after the last assistant turn; a drop without one, or if "drop" forbids it."""
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    ends_on_answer = bool(answers) and answers[-1] == len(messages) - 1
    if answers and (ends_on_answer or policy != "drop"):
        return messages[: answers[-1] + 1]
    reason = "ends_without_assistant" if answers else "no_assistant"
    return Drop(reason, f"the last message is of {messages[-1].role}")
