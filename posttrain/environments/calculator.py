"""The calculator: a tool that works out arithmetic, exactly and without running anything.

    evaluate("-2^2 + 0.1*3")  → Fraction(-37, 10)

Python's grammar, with ^ for a power as well and × · ÷ −. A number is a fraction until a function
makes it a float. Length, depth and sizes are checked before the work is done.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from posttrain.environments.base import Tool

Number = Fraction | float
Operator = Callable[[Number, Number], Number]

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_BITS = 4096  # of a numerator or denominator: about 1,230 digits
_MAX_EXPONENT = 300  # of a number as written; floats end at 308
_EXACT_PLACES = 15  # decimals up to which a number is written exactly
_FACTORIAL_LIMIT = 400  # its factorial has 2,887 bits, below MAX_BITS
_TOO_LARGE = "the number is too large"
_DESCRIPTION = (
    "Work out an arithmetic expression: + - * / // % ** (or ^), parentheses, and functions such "
    "as sqrt, round, abs, min, max, gcd, factorial, log, sin; constants pi and e."
)


def calculator() -> Tool:
    """The tool `calculate`."""
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example 17*(3+4)"}},
        "required": ["expression"],
        "additionalProperties": False,
    }

    async def calculate(expression: str) -> str:
        # `Tool.call` shows a CalculationError to the model
        return number_text(evaluate(expression))

    return Tool("calculate", _DESCRIPTION, parameters, calculate)


class CalculationError(ValueError):
    """An expression without a value, or with one that is too large."""


def number_text(value: Number) -> str:
    """Write a number: whole ones and short decimals exactly, others to 15 significant digits."""
    if isinstance(value, Fraction):
        scaled = value * 10**_EXACT_PLACES
        if scaled.denominator == 1:
            exact = f"{Decimal(f'{scaled.numerator}e-{_EXACT_PLACES}'):f}"
            return exact.rstrip("0").rstrip(".")
    try:
        text = f"{float(value):.15g}"
    except OverflowError as error:  # a fraction that is larger than any float
        raise CalculationError(_TOO_LARGE) from error
    return "0" if text == "-0" else text


def _checked(value: Number) -> Number:
    """Refuse a number that is too large or not finite. Returns it, an integer as a fraction."""
    if isinstance(value, int):
        value = Fraction(value)
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise CalculationError(_TOO_LARGE)
    elif not math.isfinite(value):
        raise CalculationError("the result is not a finite number")
    return value


def _power(base: Number, exponent: Number) -> Number:
    """Raise to a power, exactly for whole exponents of exact numbers."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        # the bits of the result, at least; checked before it is computed
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) != 1 and base != 0 and (size - 1) * abs(exponent.numerator) > MAX_BITS:
            raise CalculationError(_TOO_LARGE)
        return base**exponent.numerator
    if base < 0 and exponent != int(exponent):
        raise CalculationError("a negative number has no such real power")
    return float(base) ** float(exponent)


def _integer(value: Number) -> int:
    """Convert a whole number to an int. Raises CalculationError for any other."""
    if value != int(value):
        raise CalculationError(f"a whole number is needed, not {number_text(value)}")
    return int(value)


def _square_root(value: Number) -> Number:
    """Take a square root, exactly for squares of fractions."""
    if isinstance(value, Fraction) and value >= 0:
        numerator_root = math.isqrt(value.numerator)
        denominator_root = math.isqrt(value.denominator)
        root = Fraction(numerator_root, denominator_root)
        if root * root == value:
            return root
    return math.sqrt(value)


def _round(value: Number, places: Number = Fraction(0)) -> Number:
    """Round to the nearest, halves away from zero, as schools teach it."""
    digits = _integer(places)
    if abs(digits) > 300:
        raise CalculationError("round takes at most 300 places")
    scale = Fraction(10) ** digits
    result = Fraction(math.floor(abs(Fraction(value)) * scale + Fraction(1, 2))) / scale
    return -result if value < 0 else result


def _factorial(value: Number) -> Number:
    """Compute a factorial. Raises CalculationError for numbers that are not whole or too large."""
    if value > _FACTORIAL_LIMIT:
        raise CalculationError(_TOO_LARGE)
    return math.factorial(_integer(value))


def _with_converted(
    convert: Callable[[Number], Any], function: Callable[..., Number]
) -> Callable[..., Number]:
    """Wrap a function so that each argument is converted before the call."""
    return lambda *values: function(*map(convert, values))


_OPERATORS: dict[type[ast.operator], Operator] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,  # with the sign of the divisor, as in mathematics
    ast.Pow: _power,
}
# name → least and most number of arguments, function
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, _square_root),
    "abs": (1, 1, cast(Any, abs)),
    "round": (1, 2, _round),
    "floor": (1, 1, math.floor),
    "ceil": (1, 1, math.ceil),
    "min": (1, 50, lambda *values: min(values)),
    "max": (1, 50, lambda *values: max(values)),
    "factorial": (1, 1, _factorial),
    "gcd": (2, 50, _with_converted(_integer, math.gcd)),
    "lcm": (2, 50, _with_converted(_integer, math.lcm)),
    "exp": (1, 1, _with_converted(float, math.exp)),
    "ln": (1, 1, _with_converted(float, math.log)),
    "log": (1, 2, _with_converted(float, math.log)),
    **{
        name: (1, 1, _with_converted(float, getattr(math, name)))
        for name in ("log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan")
    },
}
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


def evaluate(expression: str) -> Number:
    """Compute the value of an arithmetic expression.

    Raises:
        CalculationError: it is not arithmetic, has no value, or is too long, deep or large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression has more than {MAX_CHARACTERS} characters")
    text = " ".join(expression.translate(_SPELLINGS).replace("^", "**").split())
    if not text.isascii():
        raise CalculationError("not arithmetic: letters that are not ASCII")
    try:
        with warnings.catch_warnings():  # "2(3)" is an error here, and needs no warning before it
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text, mode="eval")
        return _evaluate_node(tree.body, text, MAX_DEPTH)
    except (SyntaxError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deep"
        raise CalculationError(f"not arithmetic: {reason}") from error
    except ZeroDivisionError as error:
        raise CalculationError("division by zero") from error
    except OverflowError as error:
        raise CalculationError(_TOO_LARGE) from error


def _evaluate_node(node: ast.expr, text: str, depth: int) -> Number:
    """Compute a part of the tree, a chain of operators without recursion along the chain.

    Args:
        text: the whole expression, from which numbers are read as they are written.
        depth: levels that the part may be deep; a chain of operators, 1+2+3, is one level.
    """
    if depth == 0:
        raise CalculationError(f"more than {MAX_DEPTH} levels deep")
    # operators and right operands of the chain, the last first: a loop, since a long sum is a tree
    # as deep as it is long
    chain: list[tuple[Operator, ast.expr]] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        chain.append((_OPERATORS[type(node.op)], node.right))
        node = node.left
    value = _evaluate_operand(node, text, depth - 1)
    for operator, right_node in reversed(chain):
        value = _checked(operator(value, _evaluate_node(right_node, text, depth - 1)))
    return value


def _evaluate_operand(node: ast.expr, text: str, depth: int) -> Number:
    """Compute a sign, a number, a constant or a call. Raises CalculationError for other parts."""
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            value = _evaluate_node(node.operand, text, depth)
            return -value if isinstance(node.op, ast.USub) else value
        case ast.Constant(value=int() | float()):
            return _read_number(text[node.col_offset : node.end_col_offset])
        case ast.Name(id="pi" | "e" as name):
            return getattr(math, name)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _call_function(
                name, [_evaluate_node(argument, text, depth) for argument in node.args]
            )
        case ast.Name() | ast.Call():
            functions = ", ".join(_FUNCTIONS)
            raise CalculationError(f"{ast.unparse(node)[:40]!r}: there are {functions}, pi and e")
        case _:
            part = text[node.col_offset : node.end_col_offset]
            raise CalculationError(f"not arithmetic: {part[:20]!r}")


def _call_function(name: str, values: list[Number]) -> Number:
    """Call a function of `_FUNCTIONS`. Raises CalculationError: wrong count, or no real value."""
    min_count, max_count, function = _FUNCTIONS[name]
    if not min_count <= len(values) <= max_count:
        count = str(min_count) if min_count == max_count else f"{min_count} to {max_count}"
        raise CalculationError(f"{name} takes {count} numbers, not {len(values)}")
    try:
        return _checked(function(*values))
    except CalculationError:
        raise
    except (ValueError, ZeroDivisionError) as error:
        listed = ", ".join(map(number_text, values))
        raise CalculationError(f"{name}({listed}) has no real value") from error


def _read_number(text: str) -> Number:
    """Read a number as it is written, so that 0.1 is a tenth."""
    digits, _, exponent = text.lower().partition("e")
    # the exponent's own digits are bounded by the length of the expression
    if exponent and abs(int(exponent)) > _MAX_EXPONENT:
        raise CalculationError(f"{text} is out of range")
    try:
        return _checked(Fraction(digits)) * Fraction(10) ** int(exponent or 0)
    except ValueError as error:
        raise CalculationError(f"{text!r} is not a number") from error
