"""A source's rows → its distinct questions; every other row goes into the books with its reason.

books = RowCounts()
for question in distinct_questions(source, books, seen=set(), base_dir=Path(".")): …
books.dropped  → {"where": 24000, "duplicate": 311, "needs_replies": 20}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.prompts.chats import read_chat
from data_builders.prompts.choices import read_question
from data_builders.prompts.question import Question, Row
from data_builders.prompts.tiny_world import read_tiny_world
from data_builders.rows.raw import Dropped
from data_builders.rows.read import RowCounts, read_rows
from posttrain.config.prompts import AnySource

READERS: Mapping[str, Callable[[Row, Any], Question]] = {
    "tiny_world": read_tiny_world,
    "question": read_question,
    "chat": read_chat,
}


def distinct_questions(
    source: AnySource, books: RowCounts, *, seen: set[str], base_dir: Path
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


def _questions(source: AnySource, books: RowCounts, base_dir: Path) -> Iterator[Question]:
    """Every row that is a question and that `where` lets through; the others go into the books."""
    read = READERS[source.format]
    for raw in read_rows(source.rows(), base_dir):
        books.rows_in += 1
        if isinstance(raw, Dropped):
            where = raw.reason == "where"
            books.drop(raw.reason, "" if where else f"{raw.file}:{raw.line}: {raw.detail}")
            continue
        try:
            yield read(raw.row, source)
        except RowProblem as problem:
            books.drop(problem.reason, f"{raw.file}:{raw.line}: {problem}")
