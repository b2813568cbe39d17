"""Typography taken off: what a model writes for one number or formula → ASCII and LaTeX commands.

tidy("−１２½ °") == "-12\\\\frac{1}{2} ^\\\\circ "
bare("**$\\\\left( 3,\\\\, 4 \\\\right)$.**") == "( 3, 4 )"
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans({
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "′": "'", "’": "'", "‘": "'",
    "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*", "÷": "/", "⁄": "/", "∕": "/",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≃": "\\approx ",
    "±": "\\pm ", "∪": "\\cup ", "∩": "\\cap ", "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ",
    "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "°": "^\\circ ", "º": "^\\circ ",
    "∅": "\\emptyset ", "∈": "\\in ", "→": "=>", "⇒": "=>", "➜": "=>", "⟹": "=>", "∴": "=>",
    "“": '"', "”": '"', "،": ",", "٬": ",", "٫": ".", "。": ". ", "、": ", ",
})  # fmt: skip
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
# chat markup and HTML
_MARKUP = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|</?(?:s|b|i|u|em|strong|p|br|span|center)\s*/?>"
    # a reader of the page never sees a comment, so no answer may hide in one
    r"|<!--.*?(?:-->|\Z)",
    re.DOTALL,
)


def tidy(text: str) -> str:
    """The text with typographic digits, signs, spaces and fractions in plain characters."""
    text = _MARKUP.sub("", text)
    if text.isascii():
        return text
    text = text.translate(_SIGNS)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = re.sub("[₀-₉]+", lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", "sqrt")
    return "".join(c if c.isascii() else _plain(c) for c in text)


def _plain(character: str) -> str:
    """½ → \\frac{1}{2}; a digit of another script → the digit; Ⓒ, Ｃ → C; no emoji, no marks."""
    kind = unicodedata.category(character)
    if kind == "Nd":
        return str(unicodedata.digit(character))
    form = unicodedata.normalize("NFKC", character)
    if kind == "No" and "\u2044" in form:
        return "\\frac{" + form.replace("\u2044", "}{") + "}"
    if form.isascii():
        return form
    return "" if kind in ("So", "Cf") or character == "\ufe0f" else character


# the contents of a command, with the braces of a fraction inside
_CONTENTS = r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
_FONT = (
    r"(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|mbox|operatorname|bm|pmb|"
    r"boldsymbol|underline|emph|ensuremath)"
)
_SIZE = (
    r"(?:displaystyle|textstyle|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|bfseries|it|rm|"
    r"sf|tt|math(?:rm|bf|it|sf|tt)|boldsymbol|bm)"
)
# a command that only sets type, and what stands for it
_LAYOUT = (
    (re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?"), ""),
    (re.compile(r",\\!\s*|\{,\}"), ","),
    (re.compile(r"\{\}"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|(?<!\\)~|\\q?quad(?![a-wyzA-Z])"), " "),
    (re.compile(rf"\\{_FONT}{_CONTENTS}"), r" \1 "),
    (re.compile(rf"\\{_SIZE}(?![A-Za-z])"), ""),
    (re.compile(r"\$\$|(?<!\\)\\[()\[\]]"), ""),
    (re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$"), r"\1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\(?:degree|deg)(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:begin|end)\{(?:align|aligned|equation|gather)\*?\}|&(?==)"), ""),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
)  # fmt: skip


def bare(text: str) -> str:
    """One answer without what only sets it in type: delimiters, emphasis, spacing, a final stop."""
    text = tidy(text)
    for pattern, instead in _LAYOUT:
        text = pattern.sub(instead, text)
    return " ".join(text.split()).rstrip(" .,;:`*_").lstrip(" :;`*_")
