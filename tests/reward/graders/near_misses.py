"""Wrong answers that look right: off by one, sign, factor of ten, unit, swapped digits.

near_misses("1,234") → {"off by one": "1,235", "sign": "-1,234", "tenfold": "12,340", …}
"""

from __future__ import annotations

import re
from decimal import Decimal


def near_misses(gold: str) -> dict[str, str]:
    """Wrong answers to a decimal or integer gold, by how they are wrong."""
    number = Decimal(gold.replace(",", ""))
    text = str(number)
    found = {
        "off by one": str(number + 1),
        "one less": str(number - 1),
        "sign": str(-number),
        "tenfold": str(number * 10),
        "a tenth": str(number / 10),
        "half": str(number / 2),
        "a digit more": f"{text}7",
    }
    if text[-2:].isdigit() and len(text) > 1:
        found["grouped wrongly"] = f"{text[:-1]},{text[-1]}"
    for place in range(len(text) - 1):
        if text[place].isdigit() and text[place + 1].isdigit() and text[place] != text[place + 1]:
            found["swapped digits"] = (
                text[:place] + text[place + 1] + text[place] + text[place + 2 :]
            )
    return {kind: wrong for kind, wrong in found.items() if not _is(wrong, number)}


def _is(text: str, number: Decimal) -> bool:
    return "," not in text and Decimal(text) == number


def formula_near_misses(gold: str) -> dict[str, str]:
    """Wrong answers to a formula: one of its numbers, or one of its signs, changed."""
    found: dict[str, str] = {}
    numbers = [m for m in re.finditer(r"(?<![\w.])\d+(?![\w.])", gold) if int(m[0])]
    if numbers:
        last = numbers[-1]
        for kind, value in (("off by one", int(last[0]) + 1), ("tenfold", int(last[0]) * 10)):
            found[kind] = gold[: last.start()] + str(value) + gold[last.end() :]
    sign = re.search(r"(?<=\w|\)) ([+-]) (?=\d|\w+\()", gold)
    if sign and not re.match(r"0(?:\.0)?(?![\d.])", gold[sign.end() :]):
        other = "-" if sign[1] == "+" else "+"
        found["sign"] = f"{gold[: sign.start()]} {other} {gold[sign.end() :]}"
    return found
