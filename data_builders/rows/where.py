"""The `where` expression of a source: a small safe language over the raw row.

    parse_where("reward == 1 and info.task in ['a', 'b']")

    or · and · not · == != < <= > >= · in, not in · ( ) · [lists]
    numbers · 'text' · true false null
    a field is a name (`label`), a path (`info.task`) or anything at all in backquotes

It is parsed here and never evaluated by Python. A comparison with a field that the row lacks is
unknown, as in SQL: neither it nor its negation makes a row match, whatever the order of the terms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from posttrain.errors import ConfigError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<quoted>`[^`]+`)
    | (?P<name>[^\W\d]\w*(?:\.\w+)*)
    | (?P<op>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    )""",
    re.VERBOSE,
)
_CONSTANTS: dict[str, Any] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None
}  # fmt: skip
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in", "not")
_DEEPEST = 50
_LONGEST_NUMBER = 400  # beyond any field's value, and far below where Python refuses to convert


class Unknown(Exception):
    """The third truth value, with its cause: a field is missing or two values do not compare."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the row by dotted path."""

    path: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """`operator` applied to already parsed operands."""

    operator: str
    operands: tuple[Any, ...]


Expression = Field | Constant | Operation


@dataclass(frozen=True)
class Where:
    """A parsed expression and the fields that it names."""

    text: str
    expression: Expression
    fields: tuple[str, ...]

    def matches(self, row: Mapping[str, Any]) -> str | None:
        """`None` if the row matches, else why it does not."""
        try:
            return None if _evaluate(self.expression, row) else f"not {self.text}"
        except Unknown as why:
            return f"{why}: {self.text}"


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value at a path: the key itself if the row has it, else one object deeper a dot.

    Raises:
        KeyError: the row has no such field.
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(path)
        value = value[part]
    return value


def parse_where(text: str) -> Where:
    """Parse an expression.

    Raises:
        ConfigError: pointing at the place that cannot be read.
    """
    parser = _Parser(text)
    expression = parser.disjunction()
    if parser.kind != "end":
        parser.fail("expected 'and', 'or' or the end")
    return Where(text, expression, tuple(dict.fromkeys(parser.fields)))


def _evaluate(node: Expression, row: Mapping[str, Any]) -> Any:
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Field):
        try:
            return lookup(row, node.path)
        except KeyError:
            raise Unknown(f"the row has no field {node.path!r}") from None
    operator, operands = node.operator, node.operands
    if operator in ("and", "or"):
        return _connect(operands, row, decisive=operator == "or")
    if operator == "not":
        return not _evaluate(operands[0], row)
    if operator == "list":
        return [_evaluate(operand, row) for operand in operands]
    left, right = (_evaluate(operand, row) for operand in operands)
    return _compare(operator, left, right)


def _connect(operands: tuple[Expression, ...], row: Mapping[str, Any], *, decisive: bool) -> bool:
    """Kleene's `or` (decided by one true) or `and` (by one false); else unknown if any part is."""
    unknown: Unknown | None = None
    for operand in operands:
        try:
            if bool(_evaluate(operand, row)) == decisive:
                return decisive
        except Unknown as why:
            unknown = unknown or why
    if unknown is not None:
        raise unknown
    return not decisive


def _compare(operator: str, left: Any, right: Any) -> bool:
    if operator == "==":
        return left == right
    if operator == "!=":
        return left != right
    try:
        if operator in ("in", "not in"):
            return (left in right) == (operator == "in")
        if operator == "<":
            return left < right
        if operator == "<=":
            return left <= right
        return left > right if operator == ">" else left >= right
    except TypeError:
        kinds = f"{type(left).__name__} {operator} {type(right).__name__}"
        raise Unknown(f"cannot compare {kinds}") from None


@dataclass
class _Parser:
    text: str
    kind: str = ""
    value: str = ""
    start: int = 0
    position: int = 0
    depth: int = 0
    fields: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.advance()

    def advance(self) -> None:
        """Move to the next token."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            self.start = self.position
            if self.text[self.position :].strip():
                self.fail("not understood")
            self.kind, self.value = "end", ""
            return
        self.kind, self.start = match.lastgroup or "", match.start(match.lastgroup or 0)
        self.value, self.position = match[match.lastgroup or 0], match.end()

    def fail(self, message: str) -> NoReturn:
        here = self.text[self.start :].strip() or "the end"
        column = self.start + 1
        raise ConfigError(f"where: {message} at column {column} ({here!r}) of {self.text!r}")

    def take(self, value: str) -> bool:
        """Consume a keyword or operator if it is next."""
        if self.kind in ("name", "op") and self.value == value:
            self.advance()
            return True
        return False

    def deepen(self, levels: int) -> None:
        """Bound the nesting, so that no expression can exhaust the interpreter's stack."""
        self.depth += levels
        if self.depth > _DEEPEST:
            self.fail("nested too deep")

    def disjunction(self) -> Expression:
        self.deepen(1)
        parts = [self.conjunction()]
        while self.take("or"):
            parts.append(self.conjunction())
        self.deepen(-1)
        return parts[0] if len(parts) == 1 else Operation("or", tuple(parts))

    def conjunction(self) -> Expression:
        parts = [self.negation()]
        while self.take("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else Operation("and", tuple(parts))

    def negation(self) -> Expression:
        flipped = False
        while self.take("not"):
            flipped = not flipped
        inner = self.comparison()
        return Operation("not", (inner,)) if flipped else inner

    def comparison(self) -> Expression:
        left = self.operand()
        if self.kind not in ("name", "op") or self.value not in _COMPARISONS:
            if self.kind in ("end", "op") or self.value in ("and", "or"):
                return left
            self.fail("expected a comparison")
        operator = self.value
        self.advance()
        if operator == "not":
            if not self.take("in"):
                self.fail("expected 'in' after 'not'")
            operator = "not in"
        right = self.operand()
        if self.kind in ("name", "op") and self.value in _COMPARISONS:
            self.fail("comparisons do not chain: join them with 'and'")
        return Operation(operator, (left, right))

    def operand(self) -> Expression:
        kind, value = self.kind, self.value
        if self.take("("):
            inner = self.disjunction()
            if not self.take(")"):
                self.fail("expected ')'")
            return inner
        if self.take("["):
            return self._list()
        if kind in ("end", "op") or value in ("and", "or", "in", "not"):
            self.fail("expected a field or a value")
        if kind == "number" and len(value) > _LONGEST_NUMBER:
            self.fail("a number too long to be one")
        self.advance()
        if kind == "number":
            return Constant(float(value) if re.search(r"[.eE]", value) else int(value))
        if kind == "text":
            return Constant(re.sub(r"\\(.)", r"\1", value[1:-1]))
        if kind == "name" and value in _CONSTANTS:
            return Constant(_CONSTANTS[value])
        path = value[1:-1] if kind == "quoted" else value
        self.fields.append(path)
        return Field(path)

    def _list(self) -> Expression:
        self.deepen(1)
        items: list[Expression] = []
        while not self.take("]"):
            if items and not self.take(","):
                self.fail("expected ',' or ']'")
            items.append(self.operand())
        self.deepen(-1)
        return Operation("list", tuple(items))
