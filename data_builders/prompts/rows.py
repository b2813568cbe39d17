"""A source's rows → its distinct questions; every other row goes into the books with its reason.

books = SourceBooks()
for question in distinct_questions(source, books, seen=set(), base_dir=Path(".")): …
books.dropped  → {"where": 24000, "duplicate": 311, "needs_replies": 20}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.prompts.chats import read_chat
from data_builders.prompts.choices import read_question
from data_builders.prompts.question import Question, Row
from data_builders.prompts.tiny_world import read_tiny_world
from data_builders.rows.files import open_rows
from data_builders.rows.observed import ObservedFields
from data_builders.rows.raw import BadRow
from data_builders.rows.where import parse_where
from posttrain.config.prompts import AnySource

READERS: Mapping[str, Callable[[Row, Any], Question]] = {
    "tiny_world": read_tiny_world,
    "question": read_question,
    "chat": read_chat,
}


@dataclass(slots=True)
class SourceBooks:
    """One source's rows: each kept as a question or dropped for a named reason."""

    rows_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def drop(self, reason: str, detail: str = "") -> None:
        """Count a row; the first detail of a reason is kept."""
        self.dropped[reason] += 1
        if detail:
            self.examples.setdefault(reason, detail)


def distinct_questions(
    source: AnySource, books: SourceBooks, *, seen: set[str], base_dir: Path
) -> Iterator[Question]:
    """Each question of a source once; `seen` (their digests) lasts over all sources.

    Raises as `build_prompts` does.
    """
    for question in _questions(source, books, base_dir):
        if question.digest in seen:
            books.drop("duplicate")
        else:
            seen.add(question.digest)
            yield question


def _questions(source: AnySource, books: SourceBooks, base_dir: Path) -> Iterator[Question]:
    """Every row that is a question and that `where` lets through; the others go into the books."""
    where = None if source.where is None else parse_where(source.where)
    observed = None if where is None else ObservedFields(where)
    read = READERS[source.format]
    for raw in open_rows(source.rows(), base_dir):
        books.rows_in += 1
        if isinstance(raw, BadRow):
            books.drop(raw.reason, f"{raw.file}:{raw.line}: {raw.detail}")
            continue
        if where is not None and observed is not None:
            why = where.matches(raw.row)
            observed.see(raw.row, matched=why is None)
            if why is not None:
                books.drop("where")
                continue
        try:
            yield read(raw.row, source)
        except RowProblem as problem:
            books.drop(problem.reason, f"{raw.file}:{raw.line}: {problem}")
    if observed is not None:
        observed.check(source.name)
