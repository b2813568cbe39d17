"""Arguments and results of every dialect's reader, and the exception of a malformed row."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from data_builders.rows.raw import Drop
from posttrain.errors import DataError
from posttrain.jsontext import encode_json, load_json, writable
from posttrain.records import Message, Role

Row = Mapping[str, object]
# keys and columns that hold a reasoning trace, in the order in which they are tried
REASONING_KEYS = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "thought",
    "thoughts",
    "reasoning_text",
)
# characters of no width, which `str.strip` keeps: joiners, marks of direction, the byte-order mark
_NO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff"
# the last white space of Unicode is the ideographic space, U+3000
_WHITE_SPACE = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
_BLANK = _NO_WIDTH + _WHITE_SPACE


def is_blank(text: str) -> bool:
    """True if a text shows nothing: only white space and characters of no width."""
    return not text.strip(_BLANK)


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of the recipe for reading a source's rows, which have canonical field names by now.

    Attributes:
        roles: the rows' names of roles → ours.
        role, content, reasoning: keys inside a message, where they are not the usual ones.
        prefilled_think: the opening think tag was part of the prompt.
        trains: False for prompts and for what a judge compares: loss masks do not matter there.
        maps_columns: whether the recipe maps any field.
        used_columns: columns that the recipe uses for something else.
        ignored: keys of messages that the recipe leaves out.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    prefilled_think: bool = False
    trains: bool = True
    used_columns: Set[str] = frozenset()
    ignored: Set[str] = frozenset()
    maps_columns: bool = False

    @property
    def keys_of_reasoning(self) -> tuple[str, ...]:
        """Keys of a message that may hold a trace: the mapped one alone, or all usual ones."""
        return (self.reasoning,) if self.reasoning else REASONING_KEYS

    @property
    def columns_of_reasoning(self) -> tuple[str, ...]:
        """Columns that may hold a trace: the canonical one if one is mapped, or all usual ones."""
        return REASONING_KEYS[:1] if self.reasoning else REASONING_KEYS


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and declared tools of a row.

    Attributes:
        tools: JSON text of a list of OpenAI schemas, or `None`.
        unread: columns (`key`) and keys of messages (`messages[].key`) that were not read, each
            with a value.
    """

    messages: tuple[Message, ...]
    tools: str | None = None
    unread: Mapping[str, object] = field(default_factory=dict)


class RowProblem(DataError):
    """A row that cannot be read. `reason` is a fixed name; `field` says where in the row."""

    def __init__(self, reason: str, field: str, detail: str) -> None:
        # names come from the row: they may hold characters that no report can be written with
        text = writable(f"{field}: {detail}")
        super().__init__(text)
        self.reason = reason
        self.field = field

    @property
    def drop(self) -> Drop:
        """Drop of the row for this problem."""
        return Drop(self.reason, str(self))


def encoded(value: Any, reason: str, location: str) -> str:
    """Encode a value as compact JSON text. Raises RowProblem for one that JSON cannot express."""
    try:
        return encode_json(value)
    except ValueError as error:
        raise RowProblem(reason, location, str(error)) from None


def decoded(text: str, reason: str, location: str) -> Any:
    """Decode JSON text. Raises RowProblem for text that is not JSON."""
    try:
        return load_json(text)
    except ValueError as error:
        raise RowProblem(reason, location, f"not JSON: {error}") from None


def filled_keys(row: Row, keys: tuple[str, ...]) -> list[str]:
    """Names among alternative columns that a row fills; if all are null, the first that it has."""
    present = [key for key in keys if key in row]
    return [key for key in present if row[key] is not None] or present[:1]


def not_a(dialect: str, row: Row, why: str) -> RowProblem:
    """Build the problem `unrecognised` of a row that is not of this dialect, with its columns."""
    columns = ", ".join(map(str, row)) or "(no field)"
    if len(columns) > 200:
        columns = columns[:200] + " …"
    return RowProblem("unrecognised", columns, f"not {dialect}: {why}")
