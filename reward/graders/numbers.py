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


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written: "50 %" has value 1/2 and `percent`."""

    value: Fraction
    form: Literal["integer", "decimal", "fraction"]
    percent: bool = False
    unit: tuple[str, ...] = ()
    base: str | None = None


_DECIMAL = (
    r"(?:(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)(?![\d,]|\.\d)"  # a decimal comma
    r"|(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|[1-9]\d{0,2}(?: \d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
MONEY = r"(?:US)?\\?[$€£¥₹₽]\s?[+-]?"
NUMBER = (
    rf"(?P<sign>(?:(?<![A-Za-z0-9_)])[+-])?)(?P<money>{MONEY})?(?:"
    rf"(?:(?P<whole>\d+)\s+)?(?P<above>{_DECIMAL})\s*/\s*(?P<below>[+-]?{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:[eE](?P<e>[+-]?\d{{1,4}})(?![\d.])"
    r"|\s*(?:\\times|\\cdot|\*|x|X)\s*10\s*(?:\^|\*\*)\s*[{(]?\s*(?P<power>[+-]?\s?\d{1,4})(?!\d)"
    r"\s*[})]?)?(?:_\s*\{?\s*(?P<base>\d+)\s*\}?)?)"
)
_WHOLE = re.compile(rf"{NUMBER}(?P<rest>.*)")
_REPEATING = re.compile(r"(-?)(\d*)\.(\d*)\\(?:overline|bar)\{?(\d+)\}?")
# 10^3, 2^{-1}, (-2)**3, ( 1/2)^2: one number to a whole power
_POWER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<plain>\d+(?:\.\d+)?)|\(\s*(?P<enclosed>[^()]+)\))"
    r"\s*(?:\^|\*\*)\s*(?:\{\s*(?P<braced>[+-]?\s?\d{1,4})\s*\}|(?P<bare>[+-]?\d{1,4}))"
    r"(?P<rest>(?![\d.^*/(])(?!\s*[\^*/(]).*)"
)
_ENCLOSED = re.compile(r"^\(([^(),;]*)\)$|^\{([^{},;]*)\}$")  # (-3), {5}
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))(?!\s*\d)")
_PERCENT = re.compile(r"\s*(?:%|percent(?:age)?(?: points?)?(?![A-Za-z])|per cent(?![A-Za-z]))")


def read_number(text: str) -> Number | None:
    """The number that `text` (see `tidy.bare`) is, with a unit or none; None where it is not one.

    Thousands are grouped by commas or spaces in threes: 1,234 is 1234, and 12,34 is 12.34.
    """
    if len(text) > LONGEST:
        return None
    again = _REPEATING.fullmatch(text.strip())
    if again:  # 0.1\overline{6}
        sign, whole, fixed, digits = again.groups()
        value = Fraction(int(digits), 10 ** len(digits) - 1) + int(f"{whole}{fixed}" or 0)
        return Number(Fraction(f"{sign}1") * value / 10 ** len(fixed), "fraction")
    text = _ENCLOSED.sub(r"\1\2", text.strip())
    text = _FRACTION.sub(r" \1\2/\3\4", text).strip()
    power = _POWER.fullmatch(text)
    if power:
        return _read_power(power)
    match = _WHOLE.fullmatch(re.sub(r"([+-]) ", r"\1", text))
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    rest = match["rest"]
    percent, scale = _PERCENT.match(rest), _SCALE.match(rest)
    if suffix := percent or scale:
        rest = rest[suffix.end() :]
    unit = read_unit(rest)
    if unit is None:
        return None
    if match["money"]:
        money = KNOWN[match["money"].rstrip("+- ")[-1]]
        unit = unit if unit[:1] == (money,) else (money, *unit)
    if scale:
        value *= SCALES[scale[1].lower()]
    plain = match["plain"]
    form = "fraction" if plain is None else "decimal" if match["e"] or "." in plain else "integer"
    return Number(value / 100 if percent else value, form, percent is not None, unit, match["base"])


def _read_power(match: re.Match[str]) -> Number | None:
    """Number that a match of `_POWER` writes, None where it is too long to be written out."""
    base = read_number(match["plain"] or match["enclosed"])
    unit = read_unit(match["rest"])
    if base is None or base.unit or base.percent or base.base or unit is None:
        return None
    exponent = int((match["braced"] or match["bare"]).replace(" ", ""))
    digits = max(len(str(base.value.numerator)), len(str(base.value.denominator)))
    if digits * abs(exponent) > LONGEST or (base.value == 0 and exponent <= 0):
        return None
    value = base.value**exponent
    if match["sign"] == "-":
        value = -value
    return Number(value, "integer" if value.denominator == 1 else "fraction", unit=unit)


def _value(match: re.Match[str]) -> Fraction | None:
    if match["plain"]:
        power = int((match["e"] or match["power"] or "0").replace(" ", ""))
        value = _decimal(match["plain"]) * Fraction(10) ** power
    else:
        below = _decimal(match["below"])
        if below == 0:
            return None
        value = _decimal(match["above"]) / below
        if match["whole"] and not 0 <= value < 1:  # 2\frac{3}{2} is a product or a slip
            return None
        value += int(match["whole"] or 0)
    return -value if "-" in f"{match['sign']}{match['money']}" else value


def _decimal(text: str) -> Fraction:
    if re.search(r",(?!\d{3}(?!\d))|^[+-]?0,", text):
        text = text.replace(",", ".")
    return Fraction(re.sub("[, ]", "", text))


def same_number(gold: Number, answer: Number, tolerance: float | None = None) -> bool:
    """Whether the answer is the gold: exactly, or within a share `tolerance` of its size.

    A percent sign may be left off or, for a gold of at least 1, added ("what percentage?" 40 → 40
    %; of GSM8K's answers to "what percentage?" none has a sign), a fraction given to 15 digits.
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if answer.base not in (None, gold.base):
        return False
    readings = [answer.value]
    if gold.percent and not answer.percent:
        readings.append(answer.value / 100)
    if answer.percent and not gold.percent and abs(gold.value) >= 1:
        readings.append(answer.value * 100)
    margin = Fraction(tolerance or 0) * abs(gold.value)
    if gold.form == "fraction" and answer.form == "decimal":  # 1/3 as a computer prints it
        margin = max(margin, abs(gold.value) / 10**15)
    return any(abs(value - gold.value) <= margin for value in readings)


_NAMES = {
    "km": "kilometer kilometre kms", "m": "meter metre", "cm": "centimeter centimetre cms",
    "mm": "millimeter millimetre", "mi": "mile", "ft": "foot feet", "inch": "",
    "yd": "yard", "kg": "kilogram kilogramme kilo kgs", "g": "gram gramme gm", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "t": "ton tonne", "L": "l liter litre", "mL": "ml milliliter "
    "millilitre", "h": "hour hr hrs", "min": "minute mins", "s": "second sec secs", "ms":
    "millisecond", "day": "", "week": "", "month": "", "year": "yr yrs", "dollar": "$ usd buck",
    "cent": "¢", "euro": "€ eur", "£": "gbp", "yen": "¥ jpy 円", "rupee": "₹ inr rs", "degree":
    "° deg ^\\circ", "radian": "rad", "ruble": "₽ rub", "K": "kelvin", "C": "celsius", "F":
    "fahrenheit", "mph": "", "square": "sq", "cubic": "cu", "/": "per", "gal": "gallon",
    "kph": "kmph", "acre": "", "hectare": "ha", "pint": "pt", "quart": "qt", "nm": "nanometer",
    "watt": "", "kW": "kilowatt", "MW": "megawatt", "joule": "", "kJ": "kilojoule", "newton": "",
    "volt": "", "amp": "ampere", "ohm": "Ω", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz",
    "mol": "mole", "Pa": "pascal", "kPa": "kilopascal", "byte": "", "KB": "kilobyte", "MB":
    "megabyte", "GB": "gigabyte", "cup": "",
}  # fmt: skip
KNOWN: dict[str, str] = {
    word: name for name, others in _NAMES.items() for word in (name, *others.split())
}
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12,
}  # fmt: skip
_SCALE = re.compile(rf"\s+({'|'.join(SCALES)})s?(?![A-Za-z])", re.IGNORECASE)
# words behind a number that make it another number, or no final one
_OTHERWISE = re.compile(
    r"and|or|not|no|but|minus|plus|times|negative|less|more|over|below|by|to|than|point|hal(?:f|ves)"
    r"|squared|cubed|factorial|mod(?:ulo)?|is|are|was|if|thirds?|quarters?"
    r"|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred|thousand|million)ths?"
)
_WORD = re.compile(r"[^\W\d_]+|[°$€£¥₹₽¢]|\^\s*\\circ|\^\s*\{?-?\d\}?|\S")
_IN = r"in(?!\s*[\w$])"  # inches, and not "18 in all"
MOST_UNIT_WORDS = 6
# the units behind a number in prose: " km per hour", "km/h"
_KNOWN_WORD = rf"(?i:{_IN}|(?:{'|'.join(re.escape(w) for w in KNOWN if w != '/')})(?:e?s)?)"
UNITS = (
    rf"(?:(?!\s*/)(?:\s*(?:/(?=\s?{_KNOWN_WORD}(?![A-Za-z]))"
    rf"|(?:{_KNOWN_WORD}|\^\{{?-?\d\}}?)(?![A-Za-z]|\s?\d)))+)?"
)


def read_unit(text: str) -> tuple[str, ...] | None:
    """The units that the words of `text` name, () for none; None where it is something else. Where
    it begins without white space, only units known by name count: "5x", "5k" are no numbers."""
    words: list[str] = _WORD.findall(re.sub(rf"(?<![A-Za-z]){_IN}", "inch", text))
    names = [_name(word) for word in words]
    if len(words) > MOST_UNIT_WORDS or None in names:
        return None
    first = words[0] if words else ""
    if first[:1] in ("^", "/") and names[0] != "degree":
        return None  # 2^3 and 3 / 4 are no numbers with a unit
    known = first in ("m", "g", "s", "h") or (len(first) > 1 and names[0])
    if not text.startswith(" ") and first.isascii() and first.isalpha() and not known:
        return None  # single letters are mostly variables
    return tuple(filter(None, names))


def _name(word: str) -> str | None:
    """The unit that a word names, "" where it names none, as "apples"; None for what is no word."""
    word = re.sub(r"[\s{}]", "", word)
    lower = word.lower()
    for form in (word, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if form in KNOWN:
            return KNOWN[form]
    if word.startswith("^"):
        return word
    noun = word.isalpha() and (len(word) > 1 or not word.isascii())
    return "" if noun and not _OTHERWISE.fullmatch(lower) else None
