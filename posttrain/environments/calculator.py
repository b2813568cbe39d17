"""The calculator: a tool that works out arithmetic, exactly and without running anything.

    await calculator().call({"expression": "0.1 + 0.2"}) == "0.3"
    evaluate("-2^2 + 0.1*3")  → Fraction(-37, 10)
    evaluate("9**9**9")  raises CalculationError("the number is too large")

Grammar, loosest first: + and -; *, / , // and %; a sign; ** or ^, both powers, from the right; a
number, pi, e, a function of the table, parentheses. Also × · ÷ − and the digits of Python's
numbers (1_000, 2.5e-3). A number is a fraction until a function makes it a float. Length, depth and
every intermediate number are bounded, and sizes are checked before the work is done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import reduce

from posttrain.environments.base import Tool

Number = Fraction | float
Operator = Callable[[Number, Number], Number]

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_BITS = 4096  # of a numerator or denominator: about 1,230 digits
_MAX_EXPONENT = 300
_EXACT_PLACES = 15
_FACTORIAL_LIMIT = 400
_DESCRIPTION = (
    "Work out an arithmetic expression: + - * / // % ** (or ^), parentheses, and functions such "
    "as sqrt, round, abs, min, max, gcd, factorial, log, sin; constants pi and e."
)


def calculator() -> Tool:
    """The tool."""
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example 17*(3+4)"}},
        "required": ["expression"],
        "additionalProperties": False,
    }

    async def calculate(expression: str) -> str:
        return number_text(evaluate(expression))

    return Tool("calculate", _DESCRIPTION, parameters, calculate)


class CalculationError(ValueError):
    """An expression without a value, or with one that is too large."""


def bounded(value: Number) -> Number:
    """The value, if it is a number that can be written down."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise CalculationError("the number is too large")
    elif not math.isfinite(value):
        raise CalculationError("the result is not a finite number")
    return value


def number_text(value: Number) -> str:
    """The number as text: whole and short decimals exactly, others to 15 significant digits."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        scaled = value * 10**_EXACT_PLACES
        if scaled.denominator == 1:
            digits = f"{abs(scaled.numerator):0{_EXACT_PLACES + 1}}"
            text = f"{digits[:-_EXACT_PLACES]}.{digits[-_EXACT_PLACES:]}".rstrip("0")
            return f"-{text}" if scaled < 0 else text
    text = f"{float(value):.15g}"
    return "0" if text == "-0" else text


# -- operators and functions ---------------------------------------------------------------------


def _whole(value: Number, name: str) -> int:
    """The value as an integer; an error names what needed one."""
    if value != int(value):
        raise CalculationError(f"{name} needs a whole number, not {number_text(value)}")
    return int(value)


def _by_divisor(work: Operator) -> Operator:
    def divided(left: Number, right: Number) -> Number:
        if right == 0:
            raise CalculationError("division by zero")
        return work(left, right)

    return divided


def _floor_divide(left: Number, right: Number) -> Number:
    exact = isinstance(left, Fraction) and isinstance(right, Fraction)
    return Fraction(math.floor(left / right)) if exact else left // right


def power(base: Number, exponent: Number) -> Number:
    """Exact for whole exponents of exact numbers."""
    if base == 0 and exponent < 0:
        raise CalculationError("division by zero")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) != 1 and base != 0 and (size - 1) * abs(exponent.numerator) > MAX_BITS:
            raise CalculationError("the number is too large")
        return base**exponent.numerator
    if base < 0 and exponent != int(exponent):
        raise CalculationError("a negative number has no such real power")
    return float(base) ** float(exponent)


def _square_root(value: Number) -> Number:
    """Exact for squares of fractions."""
    if value < 0:
        raise CalculationError("a negative number has no real square root")
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _rounded(value: Number, places: Number = Fraction(0)) -> Number:
    """To the nearest, halves away from zero, as schools teach it."""
    digits = _whole(places, "round")
    if abs(digits) > 300:
        raise CalculationError("round takes at most 300 places")
    scale = Fraction(10) ** digits
    result = Fraction(math.floor(abs(Fraction(value)) * scale + Fraction(1, 2))) / scale
    return -result if value < 0 else result


def _factorial(value: Number) -> Number:
    count = _whole(value, "factorial")
    if count < 0:
        raise CalculationError("a negative number has no factorial")
    if count > _FACTORIAL_LIMIT:
        raise CalculationError("the number is too large")
    return Fraction(math.factorial(count))


def _integers(name: str, work: Callable[..., int]) -> Callable[..., Number]:
    return lambda *values: Fraction(reduce(work, [_whole(value, name) for value in values]))


def _real(name: str, work: Callable[..., float]) -> Callable[..., Number]:
    def run(*values: Number) -> Number:
        try:
            return work(*map(float, values))
        except (ValueError, ZeroDivisionError) as error:
            listed = ", ".join(map(number_text, values))
            raise CalculationError(f"{name}({listed}) has no real value") from error

    return run


def _to_integer(work: Callable[[Number], int]) -> Callable[[Number], Number]:
    return lambda value: Fraction(work(value))


def _magnitude(value: Number) -> Number:
    return abs(value)


_SUMS: dict[str, Operator] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: dict[str, Operator] = {
    "*": lambda a, b: a * b,
    "/": _by_divisor(lambda a, b: a / b),
    "//": _by_divisor(_floor_divide),
    "%": _by_divisor(lambda a, b: a % b),  # with the sign of the divisor, as in mathematics
}
# name → how many arguments it takes, at least and at most; what it does
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, _square_root), "abs": (1, 1, _magnitude), "round": (1, 2, _rounded),
    "floor": (1, 1, _to_integer(math.floor)), "ceil": (1, 1, _to_integer(math.ceil)),
    "min": (1, 50, lambda *values: min(values)), "max": (1, 50, lambda *values: max(values)),
    "factorial": (1, 1, _factorial),
    "gcd": (2, 50, _integers("gcd", math.gcd)), "lcm": (2, 50, _integers("lcm", math.lcm)),
    "exp": (1, 1, _real("exp", math.exp)), "ln": (1, 1, _real("ln", math.log)),
    "log": (1, 2, _real("log", math.log)),
    **{
        name: (1, 1, _real(name, getattr(math, name)))
        for name in ("log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan")
    },
}  # fmt: skip
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}


# -- parser ----------------------------------------------------------------------------------------

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>\*\*|//|[-+*/%^(),]))",
    re.ASCII,
)


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
    if parser.next:
        raise CalculationError(f"unexpected {parser.next!r}")
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each token."""
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculationError(f"not arithmetic at {text[position : position + 20].strip()!r}")
        tokens.append((str(match.lastgroup), match[match.lastgroup or 0]))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent that works out values as it reads."""

    def __init__(self, tokens: list[tuple[str, str]]):
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def next(self) -> str:
        """The text of the next token, "" at the end."""
        at_end = self._position >= len(self._tokens)
        return "" if at_end else self._tokens[self._position][1]

    def _take(self, *marks: str) -> str | None:
        text = self.next
        if text not in marks:
            return None
        self._position += 1
        return text

    def _expect(self, mark: str) -> None:
        if self._take(mark) is None:
            raise CalculationError(f"expected {mark!r} {self._where()}")

    def _where(self) -> str:
        return f"before {self.next!r}" if self.next else "at the end"

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
        kind, text = self._tokens[self._position] if self.next else ("", "")
        if kind not in ("number", "name"):
            raise CalculationError(f"expected a number {self._where()}")
        self._position += 1
        if kind == "number":
            return _number(text)
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text not in _FUNCTIONS:
            names = ", ".join(_FUNCTIONS)
            raise CalculationError(f"unknown name {text!r}; there are {names}, pi, e")
        return self._function(text)

    def _function(self, name: str) -> Number:
        least, most, work = _FUNCTIONS[name]
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
