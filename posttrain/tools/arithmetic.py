"""Numbers of the calculator: exact where they can be, and never too large to write down.

    power(Fraction(2), Fraction(-2))  → Fraction(1, 4)
    power(Fraction(9), Fraction(9**9))  raises CalculationError
    shown(Fraction(1, 3)) == "0.333333333333333", shown(Fraction(5, 2)) == "2.5"

A number is a fraction until a function makes it a float. Sizes are checked before the work is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce

Number = Fraction | float

MAX_BITS = 4096  # of a numerator or denominator: about 1,230 digits
_EXACT_PLACES = 15
_FACTORIAL_LIMIT = 400


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


def whole(value: Number, what: str) -> int:
    """The value as an integer; an error names what needed one."""
    if value != int(value):
        raise CalculationError(f"{what} needs a whole number, not {shown(value)}")
    return int(value)


def divide(left: Number, right: Number) -> Number:
    if right == 0:
        raise CalculationError("division by zero")
    return left / right


def floor_divide(left: Number, right: Number) -> Number:
    if right == 0:
        raise CalculationError("division by zero")
    return Fraction(math.floor(left / right)) if _exact(left, right) else left // right


def remainder(left: Number, right: Number) -> Number:
    """With the sign of the divisor, as in Python and in mathematics."""
    if right == 0:
        raise CalculationError("division by zero")
    return left % right


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


def square_root(value: Number) -> Number:
    """Exact for squares of fractions."""
    if value < 0:
        raise CalculationError("a negative number has no real square root")
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def rounded(value: Number, places: Number = Fraction(0)) -> Number:
    """To the nearest, halves away from zero, as schools teach it."""
    digits = whole(places, "round")
    if abs(digits) > 300:
        raise CalculationError("round takes at most 300 places")
    scale = Fraction(10) ** digits
    scaled = abs(Fraction(value)) * scale
    result = Fraction(math.floor(scaled + Fraction(1, 2))) / scale
    return -result if value < 0 else result


def factorial(value: Number) -> Number:
    count = whole(value, "factorial")
    if count < 0:
        raise CalculationError("a negative number has no factorial")
    if count > _FACTORIAL_LIMIT:
        raise CalculationError("the number is too large")
    return Fraction(math.factorial(count))


def _exact(*values: Number) -> bool:
    return all(isinstance(value, Fraction) for value in values)


def _integers(name: str, work: Callable[..., int]) -> Callable[..., Number]:
    def run(*values: Number) -> Number:
        return Fraction(reduce(work, [whole(value, name) for value in values]))

    return run


def _real(name: str, work: Callable[..., float]) -> Callable[..., Number]:
    def run(*values: Number) -> Number:
        try:
            return work(*(float(value) for value in values))
        except (ValueError, ZeroDivisionError) as error:
            listed = ", ".join(shown(value) for value in values)
            raise CalculationError(f"{name}({listed}) has no real value") from error

    return run


def _integral(work: Callable[[Number], int]) -> Callable[[Number], Number]:
    def run(value: Number) -> Number:
        return Fraction(work(value))

    return run


def _of_all(work: Callable[[tuple[Number, ...]], Number]) -> Callable[..., Number]:
    def run(*values: Number) -> Number:
        return work(values)

    return run


def _magnitude(value: Number) -> Number:
    return abs(value)


# name → how many arguments it takes, at least and at most; what it does
FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, square_root), "abs": (1, 1, _magnitude), "round": (1, 2, rounded),
    "floor": (1, 1, _integral(math.floor)), "ceil": (1, 1, _integral(math.ceil)),
    "min": (1, 50, _of_all(min)), "max": (1, 50, _of_all(max)), "factorial": (1, 1, factorial),
    "gcd": (2, 50, _integers("gcd", math.gcd)), "lcm": (2, 50, _integers("lcm", math.lcm)),
    "exp": (1, 1, _real("exp", math.exp)), "ln": (1, 1, _real("ln", math.log)),
    "log": (1, 2, _real("log", math.log)), "log2": (1, 1, _real("log2", math.log2)),
    "log10": (1, 1, _real("log10", math.log10)), "sin": (1, 1, _real("sin", math.sin)),
    "cos": (1, 1, _real("cos", math.cos)), "tan": (1, 1, _real("tan", math.tan)),
    "asin": (1, 1, _real("asin", math.asin)), "acos": (1, 1, _real("acos", math.acos)),
    "atan": (1, 1, _real("atan", math.atan)),
}  # fmt: skip
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}


def shown(value: Number) -> str:
    """The number as text: whole and short decimals exactly, others to 15 significant digits."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        scaled = value * 10**_EXACT_PLACES
        if scaled.denominator == 1:
            return _decimal(scaled.numerator)
        value = float(value)
    text = f"{value:.15g}"
    return "0" if text == "-0" else text


def _decimal(scaled: int) -> str:
    digits = f"{abs(scaled):0{_EXACT_PLACES + 1}}"
    text = f"{digits[:-_EXACT_PLACES]}.{digits[-_EXACT_PLACES:]}".rstrip("0")
    return f"-{text}" if scaled < 0 else text
