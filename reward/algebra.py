"""Whether two formulas are equal, by math-verify and a check of our own. Only inside a worker.

equal("\\\\sqrt{8}", "2\\\\sqrt{2}") is True

math-verify can take for ever, and says yes too easily here and there (it rounds, chops small
differences, takes two equations without solutions for the same). So decimals are made exact before
it is asked, equations are compared here, and a yes about numbers or functions has to hold at
points to 25 digits as well.
"""

# sympy and math-verify are untyped: what comes from them is Any
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
from __future__ import annotations

import logging
import re
from typing import Any, cast

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational

from reward.ascii_math import to_latex
from reward.formula_lines import reads_as_math

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
POINTS = ("0.7310585786", "1.9241418199", "3.3012943571", "0.2689414213")
DIGITS = 25


class Unreadable(ValueError):
    """A text that is no formula."""


def equal(gold: str, answer: str) -> bool:
    """Whether two formulas (see `tidy.bare`) are equal; False where the answer is none.

    Raises:
        Unreadable: the gold is no formula.
    """
    natural = re.search(r"\\ln|(?<!\\)\blog\s*\(", gold) is not None
    expected = read_formula(gold, natural_log=natural)
    try:
        given = read_formula(answer, natural_log=natural)
    except Unreadable:
        return False
    if isinstance(expected, list) or isinstance(given, list):
        return _same_relations(expected, given)
    if _equal_at_points(expected, given) is False:
        return False  # most wrong answers end here, where math-verify would simplify for seconds
    return bool(
        verify(expected, given, float_rounding=15, numeric_precision=30, timeout_seconds=None)
    )


def read_formula(text: str, *, natural_log: bool) -> Any:
    """The formula as a sympy object with exact numbers and one symbol a name.

    Raises:
        Unreadable: words, numbers side by side, or what the parser does not take.
    """
    if not reads_as_math(text) or _MISLEADING.search(text):
        raise Unreadable(text)
    latex = to_latex(text)
    if natural_log:
        latex = re.sub(r"\\log(?![A-Za-z])(?!\s*_)", r"\\ln", latex)
    found: list[Any] = parse(
        f"${latex}$", [_READING], fallback_mode="no_fallback", parsing_timeout=cast(Any, None)
    )
    if not found:
        raise Unreadable(text)
    relations = _relations(found[0])
    if relations is not None:  # as sides: sympy may decide x^2 = -1 and forget what it said
        return [(type(r), _exact(r.lhs - r.rhs)) for r in relations]
    return _exact(found[0])


def _exact(formula: Any) -> Any:
    """Decimals as fractions; a letter is the same symbol wherever it stands, i is imaginary."""
    if not isinstance(formula, sympy.Basic):  # a mutable matrix
        formula = formula.as_immutable()
    changes: dict[Any, Any] = {f: sympy.Rational(str(f)) for f in formula.atoms(sympy.Float)}
    for symbol in formula.atoms(sympy.Symbol):
        name = symbol.name
        changes[symbol] = sympy.I if name == "i" else sympy.Symbol(name, real=True)
    return formula.xreplace(changes)


def _relations(formula: Any) -> list[Any] | None:
    """The equations or inequalities that a formula is, None where it is a value."""
    parts = getattr(formula, "_unsorted_args", None) or [formula]
    return list(parts) if all(isinstance(p, Relational) for p in parts) else None


def _same_relations(gold: Any, answer: Any) -> bool:
    """Each relation of one is a multiple of one of the other."""
    if not isinstance(gold, list) or not isinstance(answer, list) or len(gold) != len(answer):
        return False
    left = list(answer)
    for relation in gold:
        same = next((other for other in left if _same_relation(relation, other)), None)
        if same is None:
            return False
        left.remove(same)
    return True


_TURNED: dict[Any, Any] = {
    sympy.StrictGreaterThan: sympy.StrictLessThan,
    sympy.StrictLessThan: sympy.StrictGreaterThan,
    sympy.GreaterThan: sympy.LessThan,
    sympy.LessThan: sympy.GreaterThan,
    sympy.Eq: sympy.Eq,
    sympy.Ne: sympy.Ne,
}


def _same_relation(gold: tuple[Any, Any], answer: tuple[Any, Any]) -> bool:
    """2x > 4 and 2 < x: the differences of the sides are in a constant ratio, of the right sign."""
    (wanted, expected), (given, difference) = gold, answer
    if sympy.simplify(difference) == 0:
        return False
    ratio = sympy.simplify(expected / difference)
    if not ratio.is_number or not ratio.is_real or ratio == 0:
        return False
    return wanted is (given if ratio > 0 else _TURNED[given])


def _equal_at_points(gold: Any, answer: Any) -> bool | None:
    """Equal to 25 digits wherever both have a value; None where they have one nowhere."""
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return None
    symbols: list[Any] = sorted(gold.free_symbols | answer.free_symbols, key=str)
    compared = False
    for shift in range(len(POINTS) if symbols else 1):
        point: Any = {
            symbol: sympy.Rational(POINTS[(place + shift) % len(POINTS)]) + place // len(POINTS)
            for place, symbol in enumerate(symbols)
        }
        one, other = (sympy.N(formula.subs(point), DIGITS + 10) for formula in (gold, answer))
        if not (one.is_number and one.is_finite and other.is_number and other.is_finite):
            continue
        compared = True
        if abs(one - other) > sympy.Float(10) ** -DIGITS * max(abs(one), abs(other)):
            return False
    return True if compared else None
