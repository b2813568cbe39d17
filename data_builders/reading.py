"""A source's rows → records: every row comes out as an `Example` or as a `Dropped` with its reason.

for item in read_examples(SourceConfig(name="sums", path="sums.jsonl"), base_dir=Path(".")):
    → Example(messages=(…), source="sums", dialect="openai", …)
    → Dropped("bad_arguments", "message 2, call of 'f': …", file="sums.jsonl", line=7, record_id=…)

In this order: readable row → `where` → dialect → ending → license → structural filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_builders.dialects import Conversation, RowProblem, read_row
from data_builders.filters import structural_drop
from data_builders.filters.drop import Span
from data_builders.observed import ObservedFields
from data_builders.sources import open_rows
from data_builders.sources_rows import BadRow, RawRow, RawRows
from data_builders.where import lookup, parse_where
from posttrain.config.source import EndingPolicy, SourceConfig
from posttrain.errors import DataError
from posttrain.jsontext import encode_json
from posttrain.records import Example, Message, make_example


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that became no record. `record_id` is known once the row was a conversation.

    `span` is the text that a filter objected to, where one did.
    """

    reason: str
    detail: str
    file: str
    line: int
    record_id: str | None = None
    span: Span | None = None


@dataclass
class ReadReport:
    """What reading a source did, growing while its rows are read. `file` and `line`: the latest."""

    rows_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dialects: Counter[str] = field(default_factory=Counter[str])
    trimmed_rows: int = 0
    trimmed_messages: int = 0
    file: str = ""
    line: int = 0


def read_examples(
    config: SourceConfig,
    base_dir: Path,
    *,
    allowed_licenses: Collection[str] | None = None,
    report: ReadReport | None = None,
) -> Iterator[Example | Dropped]:
    """Stream a source's records.

    Args:
        base_dir: where the source's relative paths start.
        allowed_licenses: licenses that may pass, compared without case; `None` lets all pass.
        report: counts into this.

    Raises:
        ConfigError: at once for a bad `where` or path; at the end of the rows when `where` names a
            field that no row has, or no row matched it.
        DataError: a file that cannot be read; with `strict`, any row that cannot be.
    """
    rows = open_rows(config, base_dir)
    observed = observed_fields(config)
    found = examples_of(
        rows,
        config,
        allowed_licenses=allowed_licenses,
        report=report or ReadReport(),
        observed=observed,
    )
    return _then_check(found, config.name, observed)


def observed_fields(config: SourceConfig) -> ObservedFields | None:
    """Where to note what a source's rows show of its `where`. Raises ConfigError for a bad one."""
    return ObservedFields(parse_where(config.where)) if config.where is not None else None


def examples_of(
    rows: RawRows,
    config: SourceConfig,
    *,
    allowed_licenses: Collection[str] | None,
    report: ReadReport,
    observed: ObservedFields | None,
) -> Iterator[Example | Dropped]:
    """As `read_examples`, of rows that may be a part of the source's: `observed` stays unchecked.

    Args:
        observed: as `observed_fields` gives it.
    """
    allowed = None if allowed_licenses is None else {name.lower() for name in allowed_licenses}
    return _Reader(config, observed, allowed, report).run(rows)


def _then_check(
    found: Iterator[Example | Dropped], source: str, observed: ObservedFields | None
) -> Iterator[Example | Dropped]:
    yield from found
    if observed is not None:
        observed.check(source)


@dataclass
class _Reader:
    config: SourceConfig
    observed: ObservedFields | None
    allowed: set[str] | None
    report: ReadReport

    def run(self, rows: RawRows) -> Iterator[Example | Dropped]:
        """Count and yield what becomes of each row."""
        for raw in rows:
            result = self._one(raw)
            self.report.rows_in += 1
            self.report.file, self.report.line = raw.file, raw.line
            if isinstance(result, Dropped):
                self.report.dropped[result.reason] += 1
            else:
                self.report.kept += 1
                self.report.dialects[result.dialect] += 1
            yield result

    def _one(self, raw: RawRow | BadRow) -> Example | Dropped:
        if isinstance(raw, BadRow):
            if self.config.strict:
                raise DataError(f"{raw.file}:{raw.line}: {raw.reason}: {raw.detail}")
            return Dropped(raw.reason, raw.detail, raw.file, raw.line)
        if self.observed is not None:
            why = self.observed.where.matches(raw.row)
            self.observed.see(raw.row, matched=why is None)
            if why is not None:
                return Dropped("where", why, raw.file, raw.line)
        try:
            dialect, conversation = read_row(raw.row, self.config)
            metadata, license = self._carried(raw.row)
        except RowProblem as problem:
            if self.config.strict:
                raise DataError(f"{raw.file}:{raw.line}: {problem.reason}: {problem}") from problem
            return Dropped(problem.reason, str(problem), raw.file, raw.line)
        messages, reason = end_on_assistant(conversation.messages, self.config.ending)
        if reason is not None:
            last = conversation.messages[-1].role
            return Dropped(reason, f"the last message is of {last}", raw.file, raw.line)
        example = self._example(conversation, messages, dialect, metadata, license)
        return self._filtered(example, raw, trimmed=len(conversation.messages) - len(messages))

    def _example(
        self,
        conversation: Conversation,
        messages: tuple[Message, ...],
        dialect: str,
        metadata: str,
        license: str,
    ) -> Example:
        return make_example(
            messages,
            tools=conversation.tools,
            source=self.config.name,
            license=license,
            dialect=dialect,
            metadata=metadata,
        )

    def _filtered(self, example: Example, raw: RawRow, *, trimmed: int) -> Example | Dropped:
        if self.allowed is not None and example.license.lower() not in self.allowed:
            detail = f"{example.license!r} is not on the allow-list"
            return Dropped("license", detail, raw.file, raw.line, example.id)
        drop = structural_drop(example, self.config.filters)
        if drop is not None:
            return Dropped(drop.reason, drop.detail, raw.file, raw.line, example.id)
        if trimmed:
            self.report.trimmed_rows += 1
            self.report.trimmed_messages += trimmed
        return example

    def _carried(self, row: dict[str, Any]) -> tuple[str, str]:
        """The row's metadata as JSON text, and its license."""
        kept: dict[str, Any] = {}
        for path in self.config.metadata:
            try:
                kept[path.rpartition(".")[2]] = lookup(row, path)
            except KeyError:
                continue
        try:
            metadata = encode_json(kept) if kept else "{}"
        except ValueError as error:
            raise RowProblem("malformed_metadata", ", ".join(kept), str(error)) from None
        license = self.config.license
        if self.config.license_field is not None:
            with suppress(KeyError):
                license = lookup(row, self.config.license_field) or license
        if not isinstance(license, str):
            where = str(self.config.license_field)
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
