"""Whether two formulas are equal, by math-verify and a check of our own. Only inside a worker.

equal("\\\\sqrt{8}", "2\\\\sqrt{2}") is True

math-verify can take for ever, and says yes too easily here and there (it rounds, chops small
differences, takes two equations without solutions for the same). So decimals are made exact before
it is asked, equations are compared here, and a yes about numbers or functions has to hold at
points to 25 digits as well.
"""

from __future__ import annotations

import logging
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
    if relations is not None:  # as sides: sympy may decide x^2 = -1 and forget the equation
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


_SAME = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "ln")
_PLAIN = {
    **{name: name for name in _SAME},
    **{f"{arc}{name}": f"arc{name}" for arc in ("a", "arc") for name in ("sin", "cos", "tan")},
    "log": "ln",  # as in programs
    "sqrt": "sqrt",
    "abs": "abs",
}
_LATEX = {name: name for name in (*_PLAIN.values(), "log")}
_NAMES = "|".join(sorted(_PLAIN, key=len, reverse=True))
_CALL = re.compile(
    rf"(?:(?<![\\A-Za-z])(?P<plain>{_NAMES})|\\(?P<latex>{_NAMES})(?![A-Za-z]))\s*"
    r"(?P<power>\^\{[^{}]*\})?(?P<base>_(?:\d|\{[^{}]*\}))?\s*(?P<opening>[(|])"
)
_WORDS = {"pi": "\\pi ", "oo": "\\infty ", "inf": "\\infty ", "infinity": "\\infty "}
_WORD = re.compile(rf"(?<![\\A-Za-z])({'|'.join(_WORDS)})(?![A-Za-z])")


def to_latex(text: str) -> str:
    """The same formula in LaTeX. A plain `log` is the natural one, as in programs."""
    text = re.sub(r"\bE(?=\*\*)", "e", text).replace("**", "^")  # E as programs write e
    text = _calls(_group_powers(text))
    text = _WORD.sub(lambda m: _WORDS[m[1]], text)
    return re.sub(r"\s*\*\s*", r" \\cdot ", text)


def _calls(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for match in _CALL.finditer(text):
        end = _closing(text, match.start("opening"))
        if match.start() < position or end is None:
            continue
        pieces += [text[position : match.start()], _call(match, _calls(text[match.end() : end]))]
        position = end + 1
    return "".join([*pieces, text[position:]])


def _call(match: re.Match[str], inside: str) -> str:
    name = _PLAIN[match["plain"]] if match["plain"] else _LATEX.get(match["latex"], "ln")
    opening = match["opening"]
    if name in ("sqrt", "abs", "exp"):
        inside = inside if opening == "(" else f"|{inside}|"
        power = match["power"] or ""
        return {"sqrt": f"\\sqrt{{{inside}}}", "abs": f"|{inside}|", "exp": f"e^{{{inside}}}"}[
            name
        ] + power
    argument = f"({inside})" if opening == "(" else f"(|{inside}|)"
    return f"(\\{name}{match['base'] or ''}{match['power'] or ''}{argument})"


def _group_powers(text: str) -> str:
    """x^10 → x^{10}, x^(a+b) → x^{a+b}: LaTeX takes one character only."""
    pieces: list[str] = []
    position = 0
    for match in re.finditer(r"\^\s*", text):
        if match.start() < position:
            continue
        pieces.append(text[position : match.start()])
        position = match.end()
        number = re.compile(r"[+-]?\d+(?:\.\d+)?").match(text, position)
        end = _closing(text, position) if text[position : position + 1] == "(" else None
        if number:
            pieces.append(f"^{{{number.group()}}}")
            position = number.end()
        elif end is not None:
            pieces.append(f"^{{{_group_powers(text[position + 1 : end])}}}")
            position = end + 1
        else:
            pieces.append("^")
    return "".join([*pieces, text[position:]])


def _closing(text: str, start: int) -> int | None:
    """Where the parenthesis or bar at `start` closes."""
    if text[start] == "|":
        end = text.find("|", start + 1)
        return None if end < 0 else end
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None
