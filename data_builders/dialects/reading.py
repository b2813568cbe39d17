"""What every dialect function takes and gives back, and how it refuses a row."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from posttrain.errors import DataError
from posttrain.jsontext import encode_json, load_json, writable
from posttrain.records import Message, Role

Row = Mapping[str, object]
REASONING_KEYS = (
    "reasoning_content", "reasoning", "thinking", "thought", "thoughts", "reasoning_text",
)  # fmt: skip


# characters of no width, which `str.strip` keeps: joiners, marks of direction, the byte-order mark
_NO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff"
_BLANK = _NO_WIDTH + "".join(c for c in map(chr, range(0x3001)) if c.isspace())


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space and characters of no width alone."""
    return not text.strip(_BLANK)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the recipe says about a source's rows; rows themselves carry canonical field names.

    `role`, `content` and `reasoning` are the keys inside a message, where they are not the usual
    ones. `named` are the columns that the recipe uses in another way, `ignored` the keys of
    messages that it leaves out; `maps` says that it maps some. Where nothing of the rows `trains`
    (prompts, what a judge compares), their loss masks do not matter.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    prefilled_think: bool = False
    trains: bool = True
    named: Set[str] = frozenset()
    ignored: Set[str] = frozenset()
    maps: bool = False

    @property
    def keys_of_reasoning(self) -> tuple[str, ...]:
        """Keys of a message that a trace stands under."""
        return (self.reasoning,) if self.reasoning else REASONING_KEYS

    @property
    def columns_of_reasoning(self) -> tuple[str, ...]:
        """Columns of a row that a trace stands under: a mapped one has its canonical name."""
        return REASONING_KEYS[:1] if self.reasoning else REASONING_KEYS


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and declared tools (the JSON text of a list of OpenAI schemas, or `None`).

    `unread` holds what is no part of it, by the name of the column (`key`) or of the key of a
    message (`messages[].key`), each with a value.
    """

    messages: tuple[Message, ...]
    tools: str | None = None
    unread: Mapping[str, object] = field(default_factory=dict)


class RowProblem(DataError):
    """Why one row cannot be read. `reason` is a fixed name; `field` says where in the row."""

    def __init__(self, reason: str, field: str, detail: str) -> None:
        # names come from the row: they may hold what no report can be written with
        text = writable(f"{field}: {detail}")
        super().__init__(text)
        self.reason = reason
        self.field = field


def encoded(value: Any, reason: str, where: str) -> str:
    """A value as compact JSON text. Raises RowProblem for what JSON has no word for."""
    try:
        return encode_json(value)
    except ValueError as error:
        raise RowProblem(reason, where, str(error)) from None


def decoded(text: str, reason: str, where: str) -> Any:
    """The value of JSON text. Raises RowProblem."""
    try:
        return load_json(text)
    except ValueError as error:
        raise RowProblem(reason, where, f"not JSON: {error}") from None


def given_keys(row: Row, keys: tuple[str, ...]) -> list[str]:
    """Which of some alternative fields a row has; a `null` counts only where all of them are."""
    present = [key for key in keys if key in row]
    return [key for key in present if row[key] is not None] or present[:1]


def not_a(dialect: str, row: Row, why: str) -> RowProblem:
    """The problem of a row that does not have the shape of `dialect`."""
    names = ", ".join(map(str, row)) or "(no field)"
    fields = names if len(names) <= 200 else names[:200] + " …"
    return RowProblem("unrecognised", fields, f"not {dialect}: {why}")
