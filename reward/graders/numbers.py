"""Exact reading of written numbers: a text that is no plain number gives None, never a guess.

read_number("\\\\frac{1}{2}") == Number(Fraction(1, 2), "fraction")
read_number("$1,234.50")     == Number(Fraction("1234.5"), "decimal", unit=("dollar",))
read_number("2+3") is None
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

LONGEST = 400  # characters of a number; also keeps int() below Python's limit of digits


@dataclass(frozen=True, slots=True)
class Number:
    """A number and how it is written: "50 %" has value 1/2 and `percent`."""

    value: Fraction
    form: Literal["integer", "decimal", "fraction"]
    percent: bool = False
    unit: tuple[str, ...] = ()
    base: str | None = None


_DECIMAL = (
    r"(?:(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)(?![\d,]|\.\d)"  # a decimal comma
    r"|(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|[1-9]\d{0,2}(?: \d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
# a comma that groups no thousands
_DECIMAL_COMMA = re.compile(r",(?!\d{3}(?!\d))|^[+-]?0,")
MONEY = r"(?:US)?\\?[$€£¥₹₽]\s?[+-]?"
NUMBER = (
    rf"(?P<sign>(?:(?<![A-Za-z0-9_)])[+-])?)(?P<money>{MONEY})?(?:"
    rf"(?:(?P<whole>\d+)\s+)?(?P<above>{_DECIMAL})\s*/\s*(?P<below>[+-]?{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:[eE](?P<e>[+-]?\d{{1,4}})(?![\d.])"
    r"|\s*(?:\\times|\\cdot|\*|x|X)\s*10\s*(?:\^|\*\*)\s*[{(]?\s*(?P<power>[+-]?\s?\d{1,4})(?!\d)"
    r"\s*[})]?)?(?:_\s*\{?\s*(?P<base>\d+)\s*\}?)?)"
)
_NUMBER_AND_REST = re.compile(rf"{NUMBER}(?P<rest>.*)")
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
    """Read the number that a text (see `tidy.bare`) is, with or without a unit; None for any other.

    Thousands are grouped by commas or spaces in threes: 1,234 is 1234, and 12,34 is 12.34.
    """
    if len(text) > LONGEST:
        return None
    repeating = _REPEATING.fullmatch(text.strip())
    if repeating:  # 0.1\overline{6}
        sign, integer_digits, fixed_digits, period = repeating.groups()
        value = Fraction(int(period), 10 ** len(period) - 1)
        value += int(f"{integer_digits}{fixed_digits}" or 0)
        return Number(Fraction(f"{sign}1") * value / 10 ** len(fixed_digits), "fraction")
    text = _ENCLOSED.sub(r"\1\2", text.strip())
    text = _FRACTION.sub(r" \1\2/\3\4", text).strip()
    power = _POWER.fullmatch(text)
    if power:
        return _read_power(power)
    match = _NUMBER_AND_REST.fullmatch(re.sub(r"([+-]) ", r"\1", text))
    value = _value_of_match(match) if match else None
    if match is None or value is None:
        return None
    suffix = match["rest"]
    percent = _PERCENT.match(suffix)
    scale = _SCALE.match(suffix)
    if percent_or_scale := percent or scale:
        suffix = suffix[percent_or_scale.end() :]
    unit = read_unit(suffix)
    if unit is None:
        return None
    if match["money"]:
        currency = UNIT_OF_WORD[match["money"].rstrip("+- ")[-1]]
        unit = unit if unit[:1] == (currency,) else (currency, *unit)
    if percent:
        value /= 100
    if scale:
        value *= SCALES[scale[1].lower()]
    return Number(value, _written_form(match), percent is not None, unit, match["base"])


def _written_form(match: re.Match[str]) -> Literal["integer", "decimal", "fraction"]:
    """Form of a match of `NUMBER`: a decimal has a point, its comma, or an exponent behind `e`."""
    if match["plain"] is None:
        return "fraction"
    has_point = "." in match["plain"] or _DECIMAL_COMMA.search(match["plain"])
    return "decimal" if match["e"] or has_point else "integer"


def _read_power(match: re.Match[str]) -> Number | None:
    """Read a match of `_POWER`; None for an unreadable part, or an undefined or very long value."""
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


def _value_of_match(match: re.Match[str]) -> Fraction | None:
    """Value of a match of `NUMBER`; None for a division by 0 or a product that looks mixed."""
    if match["plain"]:
        power = int((match["e"] or match["power"] or "0").replace(" ", ""))
        value = _decimal(match["plain"]) * Fraction(10) ** power
    else:
        denominator = _decimal(match["below"])
        if denominator == 0:
            return None
        value = _decimal(match["above"]) / denominator
        if match["whole"] and not 0 <= value < 1:  # 2\frac{3}{2} is a product or a slip
            return None
        value += int(match["whole"] or 0)
    return -value if "-" in f"{match['sign']}{match['money']}" else value


def _decimal(text: str) -> Fraction:
    """Value of digits with a decimal point or comma, and thousands grouped or not."""
    if _DECIMAL_COMMA.search(text):
        text = text.replace(",", ".")
    return Fraction(re.sub("[, ]", "", text))


def same_number(gold: Number, answer: Number, tolerance: float | None = None) -> bool:
    """Tell whether an answer is the gold but for `tolerance` and a missing unit or percent sign.

    `tolerance` is a share of the gold. Another unit or base makes another number. A percent sign
    may also be added to a gold of at least 1 ("what percentage?" 40 → 40 %; none of GSM8K's answers
    to "what percentage?" has a sign). A fraction may be given as a decimal of 15 digits.
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


# unit → other words for it
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
UNIT_OF_WORD: dict[str, str] = {}
for _unit, _synonyms in _NAMES.items():
    UNIT_OF_WORD[_unit] = _unit
    UNIT_OF_WORD.update(dict.fromkeys(_synonyms.split(), _unit))
SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_SCALE = re.compile(rf"\s+({'|'.join(SCALES)})s?(?![A-Za-z])", re.IGNORECASE)
# words behind a number that make it another number, or not a final one
_CHANGES_NUMBER = re.compile(
    r"and|or|not|no|but|minus|plus|times|negative|less|more|over|below|by|to|than|point|hal(?:f|ves)"
    r"|squared|cubed|factorial|mod(?:ulo)?|is|are|was|if|thirds?|quarters?"
    r"|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred|thousand|million)ths?"
)
_WORD = re.compile(r"[^\W\d_]+|[°$€£¥₹₽¢]|\^\s*\\circ|\^\s*\{?-?\d\}?|\S")
_IN = r"in(?!\s*[\w$])"  # inches, and not "18 in all"
MOST_UNIT_WORDS = 6
# the units behind a number in prose: " km per hour", "km/h"
_UNIT_WORDS = "|".join(re.escape(word) for word in UNIT_OF_WORD if word != "/")
_KNOWN_WORD = rf"(?i:{_IN}|(?:{_UNIT_WORDS})(?:e?s)?)"
UNITS = (
    rf"(?:(?!\s*/)(?:\s*(?:/(?=\s?{_KNOWN_WORD}(?![A-Za-z]))"
    rf"|(?:{_KNOWN_WORD}|\^\{{?-?\d\}}?)(?![A-Za-z]|\s?\d)))+)?"
)


def read_unit(text: str) -> tuple[str, ...] | None:
    """Read the text behind a number as units; () for nouns alone, None for anything else.

    Directly behind a number only the units of our table count: "5x" and "5k" are no numbers.
    """
    words: list[str] = _WORD.findall(re.sub(rf"(?<![A-Za-z]){_IN}", "inch", text))
    units = [_unit_of(word) for word in words]
    if len(words) > MOST_UNIT_WORDS or None in units:
        return None
    word = words[0] if words else ""
    if word[:1] in ("^", "/") and units[0] != "degree":
        return None  # 2^3 and 3 / 4 are no numbers with a unit
    is_unit = word in ("m", "g", "s", "h") or (len(word) > 1 and units[0])
    if not text.startswith(" ") and word.isascii() and word.isalpha() and not is_unit:
        return None  # single letters are mostly variables
    return tuple(filter(None, units))


def _unit_of(word: str) -> str | None:
    """The unit that a word names; "" for another noun such as "apples"; None for anything else."""
    word = re.sub(r"[\s{}]", "", word)
    lower = word.lower()
    for form in (word, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if form in UNIT_OF_WORD:
            return UNIT_OF_WORD[form]
    if word.startswith("^"):
        return word
    is_noun = word.isalpha() and (len(word) > 1 or not word.isascii())
    return "" if is_noun and not _CHANGES_NUMBER.fullmatch(lower) else None
