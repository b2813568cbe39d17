"""Removal of typography: a number or formula as a model writes it → ASCII and LaTeX commands.

tidy("−１２½ °") == "-12\\\\frac{1}{2} ^\\\\circ "
bare("**$\\\\left( 3,\\\\, 4 \\\\right)$.**") == "( 3, 4 )"
"""

from __future__ import annotations

import re
import unicodedata

from reward.graders.visible import visible

_SIGNS = str.maketrans({
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "′": "'", "’": "'", "‘": "'",
    "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*", "÷": "/", "⁄": "/", "∕": "/",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≃": "\\approx ",
    "±": "\\pm ", "∪": "\\cup ", "∩": "\\cap ", "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ",
    "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "°": "^\\circ ", "º": "^\\circ ",
    "∅": "\\emptyset ", "∈": "\\in ", "→": "=>", "⇒": "=>", "➜": "=>", "⟹": "=>", "∴": "=>",
    "“": '"', "”": '"', "،": ",", "٬": ",", "٫": ".", "。": ". ", "、": ", ",
    "✘": "✗", "❌": "✗", "❎": "✗", "🚫": "✗",
})  # fmt: skip
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
# the argument of a command, with one level of braces inside
_CONTENTS = r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
# the only label of a formula, set in type: $\text{Result: } 18$
_LABEL = re.compile(
    r"(?<=\$)\s?\\text\{\s*(?!not\b)([A-Za-z][A-Za-z ]{0,40}:)\s*\}(?=[^$:\n]*\$)", re.I
)
# chat markup, HTML and the mark of a footnote
_MARKUP = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|</?(?:s|b|i|u|em|strong|p|br|span|center)\s*/?>|(?<=\S)\[\^\w{1,20}\](?!:)"
)


def tidy(text: str) -> str:
    """The text with typographic digits, signs, spaces and fractions in plain characters."""
    text = _LABEL.sub(r"\1 ", _MARKUP.sub("", visible(text)))
    if text.isascii():
        return text
    text = text.translate(_SIGNS)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = re.sub("[₀-₉]+", lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", "sqrt")
    return "".join(c if c.isascii() else _to_ascii(c) for c in text)


def _to_ascii(character: str) -> str:
    """ASCII for one character: ½ → \\frac{1}{2}, a digit of any script → the digit, Ⓒ and Ｃ → C.

    Emoji and invisible marks are left out; letters of other scripts stay.
    """
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    compatible = unicodedata.normalize("NFKC", character)
    if category == "No" and "\u2044" in compatible:
        return "\\frac{" + compatible.replace("\u2044", "}{") + "}"
    if compatible.isascii():
        return compatible
    left_out = category in ("So", "Cf") and character != "✗"  # which denies what it stands at
    return "" if left_out or character == "\ufe0f" else character


_FONT = (
    r"(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|mbox|operatorname|bm|pmb|"
    r"boldsymbol|underline|emph|ensuremath|boxed|fbox)"
)
_SIZE = (
    r"(?:displaystyle|textstyle|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|bfseries|it|rm|"
    r"sf|tt|math(?:rm|bf|it|sf|tt)|boldsymbol|bm)"
)
# (command that only sets type, its replacement), applied in this order
_LAYOUT = (
    (re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?"), ""),
    (re.compile(r",\\!\s*|\{,\}"), ","),
    (re.compile(r"\{\}"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|(?<!\\)~|\\q?quad(?![a-wyzA-Z])"), " "),
    (re.compile(rf"\\{_FONT}{_CONTENTS}"), r" \1 "),
    (re.compile(rf"\\{_FONT}{_CONTENTS}"), r" \1 "),  # again: \boxed{\text{5}}
    (re.compile(rf"\\{_SIZE}(?![A-Za-z])"), ""),
    (re.compile(r"\$\$|(?<!\\)\\[()\[\]]"), ""),
    (re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$"), r"\1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\(?:degree|deg)(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:begin|end)\{(?:align|aligned|equation|gather)\*?\}|&(?==)"), ""),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    # a sign of conclusion before the answer
    (re.compile(r"^\s*(?:=>|\\(?:therefore|implies|to|(?:[Rr]|Longr)ightarrow)(?![A-Za-z]))"), ""),
)


def bare(text: str) -> str:
    """An answer without what only sets it in type: delimiters, emphasis, spacing, a final stop."""
    text = tidy(text)
    for pattern, replacement in _LAYOUT:
        text = pattern.sub(replacement, text)
    return " ".join(text.split()).rstrip(" .,;:`*_").lstrip(" :;`*_")
