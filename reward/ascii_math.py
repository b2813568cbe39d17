"""Formulas as programs write them → LaTeX that the parser reads as it was meant.

to_latex("log(4*x**2)/4") == "(\\\\ln(4 \\\\cdot x^{2}))/4"

The parser takes \\\\ln(x)/4 for the logarithm of x/4, so every call of a function is put into
parentheses, in LaTeX as well.
"""

from __future__ import annotations

import re

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
