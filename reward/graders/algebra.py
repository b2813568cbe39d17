"""Whether two formulas are equal, by math-verify and a check of our own. Only inside a worker.

math-verify can take for ever, and says yes too easily here and there: it rounds, and takes two
equations without solutions for the same. So decimals are made exact before it is called, and its
yes about values has to hold at points to 25 digits, about relations up to a constant factor.
"""

from __future__ import annotations

import functools
import logging
import random
import re
from typing import Any, cast

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational

from reward.graders.final_answer import reads_as_math

# sympy and math-verify are untyped: what comes from them is Any
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false


logging.getLogger("math_verify").setLevel(logging.ERROR)  # "timeout is disabled": we have our own

_READING = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(
        basic_latex=True,
        units=False,  # it would take the t off 5t
        malformed_operators=True,
        nits=False,
        boxed="none",
        equations=False,
    ),
)
# what would be read as something else: "2 3" as 5, "0x1f" as a product with 0, "1..." as 1
_MISLEADING = re.compile(r"(?<![_\d])\d+\s+[\d.]|\.\.\.|\b0[xXbBoO]")
# as programs write it: log(x), atan(x), pi, abs(x), x**-2
_NAME = re.compile(
    r"(?<![\\A-Za-z])(a(?:rc)?(?=[sct]))?"
    r"((?:sin|cos|tan|sec|csc|cot|log|ln|exp)(?=h?\s*\()|pi(?![A-Za-z]))"
)
_ABS = re.compile(r"(?<![\\A-Za-z])[Aa]bs\(([^()]*)\)")
_EXPONENT = re.compile(r"\^\s*(?:([+-]?\d[\d.]*|-[A-Za-z])|\(([^()]*)\))")
POINTS = 4
DIGITS = 25


class Unreadable(ValueError):
    """A text that is no formula."""


def equal(gold: str, answer: str) -> bool:
    """Whether two formulas (see `tidy.bare`) are equal; False where the answer is none. Raises
    Unreadable: the gold is no formula."""
    natural = re.search(r"\\ln|(?<!\\)\blog\s*\(", gold) is not None
    expected = read_formula(gold, natural_log=natural)
    if {gold[0], answer[0]} & {"(", "["} and "\\{" in (gold[:2], answer[:2]):
        return False  # a set is no tuple and no interval
    try:
        given = read_formula(answer, natural_log=natural)
    except Unreadable:
        return False
    if isinstance(expected, Relational) and isinstance(given, Relational):
        return _same_relation(expected, given)
    if _equal_at_points(expected, given) is False:
        return False  # most wrong answers end here, where math-verify would simplify for seconds
    return _verify(expected, given)


_verify = functools.partial(
    verify,
    float_rounding=15,
    numeric_precision=30,
    timeout_seconds=None,
    allow_set_relation_comp=True,
)


def read_formula(text: str, *, natural_log: bool) -> Any:
    """The formula as a sympy object with exact numbers and one symbol a name. Raises Unreadable:
    words, numbers side by side, or what the parser does not take."""
    if not reads_as_math(text) or _MISLEADING.search(text):
        raise Unreadable(text)
    latex = _NAME.sub(lambda m: ("\\arc" if m[1] else "\\") + m[2], text)
    latex = _ABS.sub(r"|\1|", latex).replace("E**", "e^").replace("**", "^")
    latex = re.sub(r"\s*,?\s+(?:and|or)\s+", ", ", _EXPONENT.sub(r"^{\1\2}", latex))
    if natural_log:
        latex = re.sub(r"\\log(?![A-Za-z])(?!\s*_)", r"\\ln", latex)
    found: list[Any] = parse(
        f"${latex}$", [_READING], fallback_mode="no_fallback", parsing_timeout=cast(Any, None)
    )
    if not found:
        raise Unreadable(text)
    return _exact(found[0])


def _exact(formula: Any) -> Any:
    """Decimals as fractions; a letter is the same symbol wherever it stands, i is imaginary."""
    if isinstance(formula, Relational | sympy.And):  # as written: sympy would decide x^2 = -1
        sides = list(map(_exact, getattr(formula, "_unsorted_args", formula.args)))
        if isinstance(formula, sympy.And):
            sides.sort(key=str)
        formula = cast(Any, type(formula))(*sides, evaluate=False)
        greater = isinstance(formula, sympy.StrictGreaterThan | sympy.GreaterThan)
        return formula.reversed if greater else formula
    if isinstance(formula, sympy.MatrixExpr):
        formula = formula.doit()
    if not isinstance(formula, sympy.Basic):  # a mutable matrix
        formula = formula.as_immutable()
    changes: dict[Any, Any] = {f: sympy.Rational(str(f)) for f in formula.atoms(sympy.Float)}
    for symbol in formula.atoms(sympy.Symbol):
        name = symbol.name
        changes[symbol] = sympy.I if name == "i" else sympy.Symbol(name.lower(), real=True)
    return formula.xreplace(changes)


def _same_relation(gold: Any, answer: Any) -> bool:
    """2x < 4 and x < 2: the differences of the sides are in a constant ratio, of the right sign."""
    if type(gold) is not type(answer):
        return False
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return bool(gold.lhs == answer.lhs and _verify(gold.rhs, answer.rhs))  # D = (0, 1)
    ratio = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    either = isinstance(gold, sympy.Eq | sympy.Ne)
    return bool(ratio.is_number and ratio.is_real and (ratio != 0 if either else ratio > 0))


def _equal_at_points(gold: Any, answer: Any) -> bool | None:
    """Equal to 25 digits wherever both have a value; None where they have one nowhere."""
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return None
    symbols: list[Any] = sorted(gold.free_symbols | answer.free_symbols, key=str)
    numbers, compared = random.Random(0), False
    for _ in range(POINTS if symbols else 1):
        point: Any = {s: sympy.Rational(numbers.randint(1, 10**9), 3 * 10**8) for s in symbols}
        one, other = (sympy.N(formula.subs(point), DIGITS + 10) for formula in (gold, answer))
        if not (one.is_number and one.is_finite and other.is_number and other.is_finite):
            continue
        compared = True
        if abs(one - other) > sympy.Float(10) ** -DIGITS * max(abs(one), abs(other)):
            return False
    return True if compared else None
