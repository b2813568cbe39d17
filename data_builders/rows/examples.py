"""A source's rows → records: every row comes out as an `Example` or as a `Dropped` with its reason.

for item in read_examples(SourceConfig(name="sums", path="sums.jsonl"), base_dir=Path(".")):
    → Example(messages=(…), source="sums", dialect="openai", …)
    → Dropped("bad_arguments", "message 2, call of 'f': …", file="sums.jsonl", line=7, record_id=…)

In this order: readable row → `where` → dialect → ending → license → structural filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from data_builders.dialects import RowProblem, fitting, read_row, reading_of
from data_builders.dialects.reading import Reading, encoded
from data_builders.filters.structure import structural_drop
from data_builders.rows.files import open_rows
from data_builders.rows.raw import Dropped, RawRow, RawRows
from data_builders.rows.read import RowCounts, matching_rows, read_each, read_rows
from data_builders.rows.where import SeenFields, lookup
from posttrain.config.source import EndingPolicy, SourceConfig
from posttrain.errors import ConfigError
from posttrain.records import Example, Message, make_example

_TRIED = 5_000  # rows of a source of which one at least must be a conversation


class PlacedExample(NamedTuple):
    """A record and the place of its row."""

    example: Example
    file: str
    line: int


def refuse_unreadable(config: SourceConfig, base_dir: Path) -> None:
    """Look into a source's files before anything heavy is loaded.

    Raises:
        ConfigError: a path that matches nothing, a field that no row has, or first rows of which
            none is a conversation; it names the first one's keys and the dialects that it fits.
    """
    if config.hub is not None:
        return
    fields = SeenFields(config)
    tried = islice(matching_rows(open_rows(config, base_dir), fields), _TRIED)
    first: tuple[RawRow, RowProblem] | None = None
    count = 0
    for raw in tried:
        count += 1
        if isinstance(raw, Dropped):
            continue
        try:
            read_row(raw.row, config)
        except RowProblem as problem:
            first = first or (raw, problem)
        else:
            return
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
    """Stream a source's records; raises as `read_rows` does, and with `strict` at a bad row.

    Args:
        base_dir: where the source's relative paths start.
        allowed_licenses: licenses that may pass, compared without case; `None` lets all pass.
        counts: counts into this.
    """
    rows = read_rows(config, base_dir)
    placed = examples_of(rows, config, allowed_licenses=allowed_licenses, counts=counts)
    return (item if isinstance(item, Dropped) else item.example for item in placed)


def examples_of(
    rows: RawRows,
    config: SourceConfig,
    *,
    allowed_licenses: Collection[str] | None,
    counts: RowCounts | None,
) -> Iterator[PlacedExample | Dropped]:
    """As `read_examples`, of rows that may be a part of the source's."""
    allowed = None if allowed_licenses is None else {name.lower() for name in allowed_licenses}
    counts = counts or RowCounts()
    reading = reading_of(config)
    read = partial(_read, config=config, reading=reading, allowed=allowed, counts=counts)
    return read_each(rows, config, read=read, counts=counts)


def _read(
    raw: RawRow,
    config: SourceConfig,
    reading: Reading,
    allowed: set[str] | None,
    counts: RowCounts,
) -> PlacedExample | Dropped:
    dialect, conversation = read_row(raw.row, config, reading)
    metadata, license = _carried(raw.row, config)
    counts.note_unread(raw.row, conversation.unread)
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
    drop = structural_drop(example, config.filters)
    if drop is not None:
        return Dropped(drop.reason, drop.detail, raw.file, raw.line, example.id)
    counts.trimmed_rows += len(messages) < len(conversation.messages)
    counts.dialects[dialect] += 1
    counts.kept += 1
    return PlacedExample(example, raw.file, raw.line)


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
