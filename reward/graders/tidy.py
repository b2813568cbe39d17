"""Typography taken off: what a model writes for one number or formula → ASCII and LaTeX commands.

tidy("−１２½ °") == "-12\\\\frac{1}{2} ^\\\\circ "
bare("**$\\\\left( 3,\\\\, 4 \\\\right)$.**") == "( 3, 4 )"
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "﹣": "-",
    "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*", "÷": "/", "⁄": "/", "∕": "/",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≃": "\\approx ",
    "±": "\\pm ", "∪": "\\cup ", "∩": "\\cap ", "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ",
    "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "°": "^\\circ ", "∅": "\\emptyset ",
    "∈": "\\in ", "→": "=>", "⇒": "=>", "➜": "=>", "⟹": "=>", "∴": "=>", "′": "'", "’": "'",
    "‘": "'", "“": '"', "”": '"', "،": ",", "٬": ",", "٫": ".", "。": ". ", "、": ", ",
    "\u00a0": " ", "\u2007": " ", "\u2009": " ", "\u200a": " ", "\u202f": " ", "\u3000": " ",
    "\u200b": "", "\u200e": "", "\u200f": "", "\u2060": "", "\ufeff": "", "\u2061": "",
    "\u200d": "", "\ufe0f": "",
}  # fmt: skip
_TABLE = str.maketrans(_SIGNS | {chr(c): chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)})
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
# chat markup and HTML
_MARKUP = re.compile(r"<\|[^|<>\n]{1,40}\|>|</?(?:s|b|i|u|em|strong|p|br|span|center)\s*/?>")


def tidy(text: str) -> str:
    """The text with typographic digits, signs, spaces and fractions in plain characters."""
    text = _MARKUP.sub("", text)
    if text.isascii():
        return text
    text = text.translate(_TABLE)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = re.sub("[₀-₉]+", lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", "sqrt")
    return "".join(c if c.isascii() else _plain(c) for c in text)


def _plain(character: str) -> str:
    """½ → \\frac{1}{2}; a digit of another script → the digit; Ⓒ → C; no emoji."""
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.digit(character))
    parts = unicodedata.normalize("NFKC", character).split("\u2044")
    if len(parts) == 2 and all(part.isdigit() for part in parts):
        return f"\\frac{{{parts[0]}}}{{{parts[1]}}}"
    if unicodedata.category(character) == "So":
        return parts[0] if parts[0].isascii() else ""
    return character


# a command that only sets type, and what stands for it
_LAYOUT = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|limits|nolimits)(?![A-Za-z])"), ""),
    (re.compile(r",\\!\s*|\{,\}"), ","),
    (re.compile(r"\\!|\{\}"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|(?<!\\)~|\\q?quad(?![a-wyzA-Z])"), " "),
    (re.compile(r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox|operatorname|bm)\s*\{([^{}]*)\}"),
     r" \1 "),
    (re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$"), r"\1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\(?:degree|deg)(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:begin|end)\{(?:align|aligned|equation|gather)\*?\}|&(?==)"), ""),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
)  # fmt: skip
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))


def bare(text: str) -> str:
    """One answer without what only sets it in type: delimiters, emphasis, spacing, a final stop."""
    text = tidy(text).strip()
    before = None
    while text != before:
        before = text
        if not re.search(r"\\[.,;:!]$", text):  # the mark of a command is no full stop
            text = text.rstrip(" \n\t.,;:`").lstrip(" \n\t:;`")
        text = text.strip("*_").strip() if text.startswith(("*", "_")) else text.rstrip("*").strip()
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            if text.startswith(opening) and text.endswith(closing) and opening not in inner:
                text = inner.strip() if len(text) > len(opening + closing) - 1 else text
    for pattern, instead in _LAYOUT:
        text = pattern.sub(instead, text)
    return " ".join(text.split())
