"""A question as every kind of row gives it, before any setting asks it.

    Question(messages=(Message("user", "7*8?"),), tools=None, gold="56", key='…', row={…})

A row that gives none raises `RowProblem` with the reason it is counted under.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.rows.where import lookup
from posttrain.jsontext import encode_json
from posttrain.records import Message, json_text, message_to_row

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, without a setting.

    Attributes:
        messages: up to and including the turn to be answered; reasoning of earlier turns kept.
        tools: JSON text of the tools that the row itself declares.
        gold: what a grader compares with, None where there is nothing.
        metadata: JSON text of an object, for graders and environments.
        row: the raw row, for a setting's `where`.
        state: JSON text of whatever else makes it another question, e.g. what its tools will find.
        needs_tools: cannot be answered without the declared tools.
        digest: 16 hex digits of what is asked and what is right; declared tools do not count.
    """

    messages: tuple[Message, ...]
    tools: str | None
    gold: str | None
    metadata: str
    row: Row
    state: str = ""
    needs_tools: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [[message_to_row(m) for m in self.messages], self.gold, self.state]
        text = json_text(parts).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).hexdigest()
        object.__setattr__(self, "digest", digest)


def field_of(row: Row, path: str) -> Any:
    """A field's value. Raises RowProblem `missing_field`."""
    try:
        return lookup(row, path)
    except KeyError:
        raise RowProblem("missing_field", path, "the row has no such field") from None


def text_of(row: Row, path: str) -> str:
    """A field that holds text or a number, as text. Raises RowProblem."""
    value = field_of(row, path)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowProblem("malformed_field", path, f"text is needed, found {value!r:.80}")
    text = str(value).strip()
    if not text:
        raise RowProblem("empty_field", path, "nothing stands there")
    return text


def carried(row: Row, paths: tuple[str, ...], **more: Any) -> str:
    """Metadata: the fields at `paths` by their last part, and `more`, as JSON text."""
    kept: dict[str, Any] = {}
    for path in paths:
        try:
            kept[path.rpartition(".")[2]] = lookup(row, path)
        except KeyError:
            continue
    try:
        return encode_json(kept | more)
    except ValueError as error:
        raise RowProblem("malformed_metadata", ", ".join(paths), str(error)) from None
