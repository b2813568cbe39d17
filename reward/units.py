"""Units: which words behind a number are one, and when two are the same.

read_unit("kilometers per hour", attached=False) == ("km", "/", "h")
same_unit(("km",), ("m",)) is False;  same_unit(("km",), ()) is True

Nothing is converted: 5 km and 5000 m are two answers, and the gold says which is wanted.
"""

from __future__ import annotations

import re

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
LONGEST = 6  # words


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
    return tuple(unit) if len(unit) <= LONGEST else None


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
