"""Equality of two formulas, by math-verify and a check of our own. Used only inside a worker.

math-verify can run for ever, and accepts too much in places: it rounds, and it takes any two
equations without solutions for equal. So decimals are made exact before it is called; values that
it accepts must agree at random points to 25 digits, and relations up to a constant factor.
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
# math-verify misreads these: "2 3" as 5, "0x1f" as a product with 0, "1..." as 1
_MISLEADING = re.compile(r"(?<![_\d])\d+\s+[\d.]|\.\.\.|\b0[xXbBoO]")
# the notation of programs: log(x), atan(x), pi, abs(x), x**-2
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(a(?:rc)?(?=[sct]))?"
    r"((?:sin|cos|tan|sec|csc|cot|log|ln|exp)(?=h?\s*\()|pi(?![A-Za-z]))"
)
_ABS = re.compile(r"(?<![\\A-Za-z])[Aa]bs\(([^()]*)\)")
_EXPONENT = re.compile(r"\^\s*(?:([+-]?\d[\d.]*|-[A-Za-z])|\(([^()]*)\))")
POINTS = 4  # random points at which two formulas with variables are compared
DIGITS = 25  # significant digits in which they have to agree there


class Unreadable(ValueError):
    """A text that is no formula."""


def formulas_equal(gold: str, answer: str) -> bool:
    """Tell whether two formulas, as `tidy.bare` leaves them, are equal.

    An answer that is no formula is not equal. Raises Unreadable: the gold is no formula.
    """
    # a gold that writes ln, or log as programs do, means the natural logarithm by every log
    natural_log = re.search(r"\\ln|(?<!\\)\blog\s*\(", gold) is not None
    gold_formula = read_formula(gold, natural_log=natural_log)
    if {gold[0], answer[0]} & {"(", "["} and "\\{" in (gold[:2], answer[:2]):
        return False  # a set is no tuple and no interval
    try:
        answer_formula = read_formula(answer, natural_log=natural_log)
    except ValueError:  # no formula, or one that sympy itself refuses
        return False
    if isinstance(gold_formula, Relational) and isinstance(answer_formula, Relational):
        return _same_relation(gold_formula, answer_formula)
    if _equal_at_points(gold_formula, answer_formula) is False:
        return False  # most wrong answers end here, where math-verify would simplify for seconds
    return _verify(gold_formula, answer_formula)


_verify = functools.partial(
    verify,
    float_rounding=15,
    numeric_precision=30,
    timeout_seconds=None,
    allow_set_relation_comp=True,
)


def read_formula(text: str, *, natural_log: bool) -> Any:
    """Parse a formula into a sympy object with exact numbers and one symbol per name.

    Raises Unreadable: the text has words or numbers side by side, or the parser rejects it.
    """
    if not reads_as_math(text) or _MISLEADING.search(text):
        raise Unreadable(text)
    latex = _FUNCTION.sub(lambda m: ("\\arc" if m[1] else "\\") + m[2], text)
    latex = _ABS.sub(r"|\1|", latex)
    latex = latex.replace("E**", "e^").replace("**", "^")
    latex = _EXPONENT.sub(r"^{\1\2}", latex)
    latex = re.sub(r"\s*,?\s+(?:and|or)\s+", ", ", latex)
    if natural_log:
        latex = re.sub(r"\\log(?![A-Za-z])(?!\s*_)", r"\\ln", latex)
    formulas: list[Any] = parse(
        f"${latex}$", [_READING], fallback_mode="no_fallback", parsing_timeout=cast(Any, None)
    )
    if not formulas:
        raise Unreadable(text)
    return _with_exact_numbers(formulas[0])


def _with_exact_numbers(formula: Any) -> Any:
    """The formula with decimals as fractions, names in lower case and i as the imaginary unit."""
    if isinstance(formula, Relational | sympy.And):
        sides = [_with_exact_numbers(s) for s in getattr(formula, "_unsorted_args", formula.args)]
        if isinstance(formula, sympy.And):
            sides.sort(key=str)
        # not evaluated: sympy would decide x^2 = -1 to be False
        formula = cast(Any, type(formula))(*sides, evaluate=False)
        is_greater = isinstance(formula, sympy.StrictGreaterThan | sympy.GreaterThan)
        return formula.reversed if is_greater else formula
    if isinstance(formula, sympy.MatrixExpr):
        formula = formula.doit()
    if not isinstance(formula, sympy.Basic):  # a mutable matrix
        formula = formula.as_immutable()
    changes: dict[Any, Any] = {f: sympy.Rational(str(f)) for f in formula.atoms(sympy.Float)}
    free_symbols = cast(set[sympy.Symbol], formula.free_symbols)  # the index of a sum may be i
    for symbol in free_symbols:
        name = symbol.name
        changes[symbol] = sympy.I if name == "i" else sympy.Symbol(name.lower(), real=True)
    return formula.xreplace(changes)


def _same_relation(gold: Any, answer: Any) -> bool:
    """Tell whether two relations are one up to a factor, as 2x < 4 and x < 2 are.

    The differences of their sides are then in a constant ratio, of the right sign.
    """
    if type(gold) is not type(answer):
        return False
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return bool(gold.lhs == answer.lhs and _verify(gold.rhs, answer.rhs))  # D = (0, 1)
    ratio = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    if not (ratio.is_number and ratio.is_real):
        return False
    if isinstance(gold, sympy.Eq | sympy.Ne):
        return bool(ratio != 0)
    return bool(ratio > 0)  # a negative factor would turn an inequality round


def _equal_at_points(gold: Any, answer: Any) -> bool | None:
    """Compare two expressions at random points, to 25 digits.

    None where there is no point at which both have a value.
    """
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return None
    symbols: list[Any] = sorted(gold.free_symbols | answer.free_symbols, key=str)
    random_numbers = random.Random(0)
    compared = False
    point_count = POINTS if symbols else 1
    for _ in range(point_count):
        point: Any = {
            s: sympy.Rational(random_numbers.randint(1, 10**9), 3 * 10**8) for s in symbols
        }
        gold_value = sympy.N(gold.subs(point), DIGITS + 10)
        answer_value = sympy.N(answer.subs(point), DIGITS + 10)
        if not (gold_value.is_number and gold_value.is_finite):
            continue
        if not (answer_value.is_number and answer_value.is_finite):
            continue
        sizes = (abs(gold_value), abs(answer_value))
        if not all(size.is_Number for size in sizes):
            continue  # sympy leaves it as it is, such as Mod(26, 33), and compares it with nothing
        compared = True
        if abs(gold_value - answer_value) > sympy.Float(10) ** -DIGITS * max(sizes):
            return False
    return True if compared else None
