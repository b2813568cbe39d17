"""Arithmetic as people write it, read by a small parser of its own; nothing is ever executed.

    evaluate("-2^2 + 0.1*3")  → Fraction(-37, 10)
    evaluate("9**9**9")  raises CalculationError("the number is too large")

Grammar, loosest first: + and -; *, / , // and %; a sign; ** or ^, both powers, from the right; a
number, pi, e, a function of the table, parentheses. Also × · ÷ − and the digits of Python's
numbers (1_000, 2.5e-3). Length, depth and every intermediate number are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from posttrain.tools.arithmetic import (
    CONSTANTS,
    FUNCTIONS,
    CalculationError,
    Number,
    bounded,
    divide,
    floor_divide,
    power,
    remainder,
)

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
_MAX_EXPONENT = 300
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>\*\*|//|[-+*/%^(),]))",
    re.ASCII,
)
Operator = Callable[[Number, Number], Number]
_SUMS: dict[str, Operator] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: dict[str, Operator] = {
    "*": lambda a, b: a * b,
    "/": divide,
    "//": floor_divide,
    "%": remainder,
}


def evaluate(expression: str) -> Number:
    """The value of an expression.

    Raises:
        CalculationError: it is not arithmetic, has no value, or is too long, deep or large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression has more than {MAX_CHARACTERS} characters")
    parser = _Parser(_tokens(expression.translate(_SPELLINGS)))
    try:
        value = parser.sum()
    except OverflowError as error:
        raise CalculationError("the number is too large") from error
    parser.expect_end()
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise CalculationError(f"not arithmetic at {text[place : place + 20].strip()!r}")
        found.append((str(match.lastgroup), match[match.lastgroup or 0]))
        place = match.end()
    return found


class _Parser:
    """Recursive descent that works out values as it reads."""

    def __init__(self, tokens: list[tuple[str, str]]):
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, *marks: str) -> str | None:
        text = self._peek()
        if text not in marks or not text:
            return None
        self._place += 1
        return text

    def _expect(self, mark: str) -> None:
        if self._take(mark) is None:
            raise CalculationError(f"expected {mark!r} {self._where()}")

    def _where(self) -> str:
        return f"before {self._peek()!r}" if self._peek() else "at the end"

    def expect_end(self) -> None:
        if self._peek():
            raise CalculationError(f"unexpected {self._peek()!r}")

    def sum(self) -> Number:
        return self._chain(self._product, _SUMS)

    def _product(self) -> Number:
        return self._chain(self._signed, _PRODUCTS)

    def _chain(self, part: Callable[[], Number], operators: dict[str, Operator]) -> Number:
        value = part()
        while (mark := self._take(*operators)) is not None:
            value = bounded(operators[mark](value, part()))
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"more than {MAX_DEPTH} levels deep")
        sign = self._take("-", "+")
        value = self._power() if sign is None else self._signed()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        if self._take("**", "^") is None:
            return base
        return bounded(power(base, self._signed()))  # -2^2 is -4, 2^-1 is 1/2, from the right

    def _atom(self) -> Number:
        if self._take("(") is not None:
            value = self.sum()
            self._expect(")")
            return value
        kind, text = self._tokens[self._place] if self._peek() else ("", "")
        if kind == "number":
            self._place += 1
            return _number(text)
        if kind == "name":
            self._place += 1
            return self._named(text)
        raise CalculationError(f"expected a number {self._where()}")

    def _named(self, name: str) -> Number:
        if name in FUNCTIONS:
            return self._function(name)
        if name in CONSTANTS:
            return CONSTANTS[name]
        raise CalculationError(f"unknown name {name!r}; there are {', '.join(FUNCTIONS)}, pi, e")

    def _function(self, name: str) -> Number:
        least, most, work = FUNCTIONS[name]
        self._expect("(")
        values = [self.sum()]
        while self._take(",") is not None:
            values.append(self.sum())
        self._expect(")")
        if not least <= len(values) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise CalculationError(f"{name} takes {wanted} numbers, not {len(values)}")
        return bounded(work(*values))


def _number(text: str) -> Number:
    digits, _, exponent = text.lower().partition("e")
    # the exponent's own digits are bounded by the length of the expression
    if exponent and abs(int(exponent)) > _MAX_EXPONENT:
        raise CalculationError(f"{text} is out of range")
    try:
        return bounded(Fraction(digits)) * Fraction(10) ** int(exponent or 0)
    except ValueError as error:
        raise CalculationError(f"{text!r} is not a number") from error
