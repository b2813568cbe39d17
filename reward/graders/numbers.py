"""Written numbers, read exactly: what is no plain number is None, never a guess.

read_number("\\\\frac{1}{2}") == Number(Fraction(1, 2), "fraction")
read_number("$1,234.50")     == Number(Fraction("1234.5"), "decimal", unit=("dollar",))
read_number("2+3") is None
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

LONGEST = 400  # characters; also keeps int() below Python's limit of digits
GREATEST_EXPONENT = 1000

Form = Literal["integer", "decimal", "fraction"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written: "50 %" has value 1/2, `percent` and the digits 50."""

    value: Fraction
    form: Form
    percent: bool = False
    unit: Unit = ()
    base: str | None = None

    @property
    def digits(self) -> Fraction:
        """The value without its percent sign."""
        return self.value * 100 if self.percent else self.value


_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d*)?|\.\d+)"
_POWER = (
    r"(?:[eE](?P<e>[+-]?\d{1,4})(?![\d.])"
    r"|\s*(?:\\times|\\cdot|\*|x|X)\s*10\s*(?:\^|\*\*)\s*"
    r"(?:\{\s*(?P<p>[+-]?\s?\d{1,4})\s*\}|\(\s*(?P<q>[+-]?\d{1,4})\s*\)|(?P<r>[+-]?\d{1,4})(?!\d)))"
)
_FRAC = (
    rf"\\frac\s*(?:\{{\s*(?P<n>[+-]?\s?{_DECIMAL})\s*\}}\s*\{{\s*(?P<d>[+-]?\s?{_DECIMAL})\s*\}}"
    r"|(?P<n1>\d)\s*(?:\{\s*(?P<dd>\d+)\s*\}|(?P<d1>\d))(?!\d))"
)
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<money>US\$|[$€£¥₹])?\s*(?P<sign2>[+-]?)\s*(?:"
    rf"(?:(?P<mixed>\d+)\s*)?{_FRAC}"
    rf"|(?P<mixed2>\d+)\s+(?P<n3>\d+)\s*/\s*(?P<d3>\d+)"
    rf"|(?P<n2>{_DECIMAL})\s*/\s*(?P<d2>[+-]?{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:{_POWER})?"
    rf"(?:_\s*(?:\{{\s*(?P<b>\d+|[a-z]+)\s*\}}|(?P<b1>\d+)))?"
    rf")(?P<rest>.*)"
)
_REPEATING = re.compile(
    r"(?P<sign>-?)(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar)\{?(?P<again>\d+)\}?"
)
_PERCENT = re.compile(r"\s*(?:%|percent(?:age)?(?: points?)?(?![A-Za-z])|per cent(?![A-Za-z]))")


def read_number(text: str) -> Number | None:
    """The number that `text` (see `tidy.bare`) is, with a unit or none; None where it is not one.

    Thousands are grouped by commas or spaces in threes; a decimal comma is no number but a list.
    """
    if len(text) > LONGEST:
        return None
    text = _unwrapped(text)
    repeating = _REPEATING.fullmatch(text)
    if repeating:
        return Number(_repeating(repeating), "fraction")
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["sign2"]):
        return None
    value = _value(match)
    if value is None:
        return None
    rest, percent = match["rest"], False
    after = _PERCENT.match(rest)
    if after:
        rest, percent = rest[after.end() :], True
    scale, rest = _scale(rest)
    unit = read_unit(rest, attached=bool(rest) and not rest[0].isspace() and not percent)
    if unit is None:
        return None
    if match["money"]:
        unit = unit if unit[:1] == _money(match["money"]) else _money(match["money"]) + unit
    value *= scale
    return Number(
        value=value / 100 if percent else value,
        form=_form(match),
        percent=percent,
        unit=unit,
        base=match["b"] or match["b1"],
    )


def _repeating(match: re.Match[str]) -> Fraction:
    """0.1\\overline{6} → 1/6."""
    whole, fixed, again = match["whole"] or "0", match["fixed"], match["again"]
    value = Fraction(int(whole + fixed), 10 ** len(fixed))
    value += Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(fixed))
    return -value if match["sign"] else value


def _unwrapped(text: str) -> str:
    """Without parentheses or braces around all of it: "(-3)", "{5}"."""
    match = re.fullmatch(r"\(([^(),;]*)\)|\{([^{},;]*)\}", text)
    return text.strip() if match is None else (match[1] or match[2] or "").strip()


def _money(sign: str) -> Unit:
    return read_unit(sign.removeprefix("US"), attached=False) or ()


def _form(match: re.Match[str]) -> Form:
    if match["plain"] is None:
        return "fraction"
    return "decimal" if "." in match["plain"] or match["e"] else "integer"


def _value(match: re.Match[str]) -> Fraction | None:
    found = match.groupdict()
    pairs = (("n", "d"), ("n1", "dd"), ("n1", "d1"), ("n2", "d2"), ("n3", "d3"))
    for above, below in pairs:
        if found[above] is not None and found[below] is not None:
            denominator = _decimal(found[below])
            if denominator == 0:
                return None
            value = _decimal(found[above]) / denominator
            whole = found["mixed"] or found["mixed2"]
            if whole is not None and not 0 <= value < 1:  # 2\frac{3}{2} is a product or a slip
                return None
            value += int(whole or 0)
            break
    else:
        exponent = found["e"] or found["p"] or found["q"] or found["r"] or "0"
        power = int(exponent.replace(" ", ""))
        if abs(power) > GREATEST_EXPONENT:
            return None
        value = _decimal(found["plain"]) * Fraction(10) ** power
    return -value if "-" in (found["sign"] + found["sign2"]) else value


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


def _scale(rest: str) -> tuple[int, str]:
    """ " million dollars" → (1000000, " dollars")."""
    match = re.match(r"\s+([A-Za-z]+)(?![A-Za-z])", rest)
    word = match[1].lower() if match else ""
    if match is None or (word not in SCALES and word.removesuffix("s") not in SCALES):
        return 1, rest
    return SCALES.get(word) or SCALES[word.removesuffix("s")], rest[match.end() :]


def same_number(gold: Number, answer: Number, tolerance: float | None = None) -> bool:
    """Whether the answer is the gold: exactly, or within a share `tolerance` of its size.

    A percent sign may be left off or, for a gold of at least 1, added ("what percentage?" 40 → 40
    %). A whole number wants a number, not a division still to be done. A base may be left off.
    """
    if not same_unit(gold.unit, answer.unit):
        return False
    if gold.base and answer.base not in (None, gold.base):
        return False
    undone = answer.form == "fraction" and answer.value.denominator == 1
    if gold.form == "integer" and undone and not tolerance:
        return False
    readings = [answer.value]
    if gold.percent and not answer.percent:
        readings.append(answer.value / 100)
    if answer.percent and not gold.percent and abs(gold.value) >= 1:
        readings.append(answer.digits)
    return any(close(gold.value, value, tolerance) for value in readings)


def close(gold: Fraction, value: Fraction, tolerance: float | None) -> bool:
    """Equal, or off by at most the share `tolerance` of the gold."""
    if tolerance is None:
        return value == gold
    return abs(value - gold) <= Fraction(tolerance) * abs(gold)


Unit = tuple[str, ...]

_NAMES = {
    "km": "kilometer kilometre kms", "m": "meter metre", "cm": "centimeter centimetre cms",
    "mm": "millimeter millimetre", "mi": "mile", "ft": "foot feet", "in": "inch inches inche",
    "yd": "yard", "kg": "kilogram kilogramme kilo kgs", "g": "gram gramme gm", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "t": "ton tonne", "L": "l liter litre", "mL": "ml milliliter "
    "millilitre", "h": "hour hr hrs", "min": "minute mins", "s": "second sec secs", "ms":
    "millisecond", "day": "", "week": "", "month": "", "year": "yr yrs", "dollar": "$ usd buck",
    "cent": "¢", "euro": "€ eur", "£": "gbp", "yen": "¥ jpy", "rupee": "₹ inr rs", "degree":
    "° deg", "radian": "rad",
    "K": "kelvin", "C": "celsius", "F": "fahrenheit", "J": "joule", "N": "newton",
    "W": "watt", "V": "volt", "A": "amp ampere", "Hz": "hertz hz", "mph": "", "square": "sq",
    "cubic": "cu", "unit": "", "/": "per", "acre": "", "hectare": "ha", "gal": "gallon",
}  # fmt: skip
KNOWN: dict[str, str] = {
    word: name for name, others in _NAMES.items() for word in (name, *others.split())
}
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12,
}  # fmt: skip
# words behind a number that make it another number, or no final one
_OTHERWISE = frozenset([
    "and", "or", "not", "no", "but", "minus", "plus", "times", "negative", "below", "under",
    "less", "more", "half", "halves", "third", "thirds", "quarter", "quarters", "score",
    "pairs", "tens", "squared", "cubed", "factorial", "mod", "modulo", "percent", "point",
    "to", "over", "by", "if", "when", "for", "where", "is", "are", "was", "equals", "equal",
    "because", "since", "so", "which", "that", "than", "fourth", "fourths", "fifth", "fifths",
    "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths", "tenth",
    "tenths", "twelfth", "twelfths", "hundredth", "hundredths", "thousandth", "thousandths",
    "millionth", "millionths", "one", "two", "three", "four", "five", "six", "seven", "eight",
    "nine", "ten", "twenty", "fifty", "twos", "short",
])  # fmt: skip
_WORD = re.compile(r"[A-Za-z°$€£¥₹¢]+|\^\\circ|\^\{?-?\d\}?|\S")
MOST_UNIT_WORDS = 6  # words


def read_unit(text: str, *, attached: bool) -> Unit | None:
    """The unit that is all of `text`, () for none, None where it is something else.

    `attached`: no white space was before it, as in "5km"; then only units known by name count, so
    that "5x" and "5k" are no numbers.
    """
    words: list[str] = _WORD.findall(re.sub(r"\^\s+", "^", text.replace("^ \\circ", "^\\circ")))
    unit: list[str] = []
    for word in words:
        name = _name(word)
        if name is None:
            return None
        if not unit and (name[0] in "^/" or (attached and not _stands_attached(word, name))):
            return None  # 2^3 and 3 / 4 are no numbers with a unit
        unit.append(name)
    return tuple(unit) if len(unit) <= MOST_UNIT_WORDS else None


def _stands_attached(word: str, name: str) -> bool:
    """Whether a word may follow a digit at once: single letters are mostly variables."""
    return name in KNOWN.values() and (len(word) > 1 or not word.isalpha() or word in "mgsh")


def known_unit_length(text: str) -> int:
    """How many characters at the head of `text` are a unit known by name: " km per hour." → 12."""
    end = 0
    for match in re.finditer(r"(\s*)([A-Za-z°]+|/|\^\\circ|\^\{?-?\d\}?)", text):
        name = _name(match[2])
        known = name in KNOWN.values() or match[2].startswith("^")
        if match.start() != end or not known or (end == 0 and match[2][0] in "^/"):
            break
        end = match.end()
    return end


def _name(word: str) -> str | None:
    """The name of one word of a unit; None for a word that is none."""
    if word == "^\\circ":
        return "degree"
    if word.startswith("^"):
        return "^" + word[1:].strip("{}")
    lower = word.lower()
    for form in (word, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if form in KNOWN:
            return KNOWN[form]
    if not word.isalpha() or len(word) < 2 or lower in _OTHERWISE or lower in SCALES:
        return None
    return lower.removesuffix("s")


def same_unit(gold: Unit, answer: Unit) -> bool:
    """Whether an answer's unit will do: the gold's, or none, or any where the gold has none.

    Words that are no known unit ("red" in "5 red apples") may be added.
    """
    if not gold or not answer or gold == answer:
        return True
    known = frozenset(KNOWN.values())
    added = [word for word in answer if word not in gold]
    return set(gold) <= set(answer) and not any(w in known or w.startswith("^") for w in added)
