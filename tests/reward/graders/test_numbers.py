"""Written numbers are read exactly, or not at all."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.graders.numbers import read_number, same_number
from reward.graders.tidy import bare


def value_of(text: str) -> Fraction | None:
    number = read_number(bare(text))
    return None if number is None else number.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"), ("-5", "-5"), ("−5", "-5"), ("+5", "5"), ("４２", "42"), ("٣", "3"),
        ("1,234", "1234"), ("1,234,567.5", "1234567.5"), ("1 234 567", "1234567"),
        ("1\\,234", "1234"), ("1{,}234", "1234"), ("$18", "18"), ("\\$1,000", "1000"),
        ("-$5", "-5"), ("$-5", "-5"), ("5.00", "5"), (".5", "1/2"), ("1/2", "1/2"),
        ("\\frac{1}{2}", "1/2"), ("\\dfrac12", "1/2"), ("-\\frac{3}{4}", "-3/4"),
        ("\\frac{-3}{4}", "-3/4"), ("2\\frac{1}{2}", "5/2"), ("2 1/2", "5/2"), ("1½", "3/2"), ("12,34", "617/50"), ("0,5", "1/2"), ("11,\\! 111", "11111"),
        ("50%", "1/2"), ("12.5 percent", "1/8"), ("50\\%", "1/2"), ("3 million dollars", "3000000"),
        ("18 thousand", "18000"), ("1.5e3", "1500"), ("4.51 \\times 10^{11}", "451000000000"),
        ("(-3)", "-3"), ("**7**", "7"), ("\\(7\\)", "7"), ("7.", "7"), ("90^\\circ", "90"),
        ("5\\text{ cm}^2", "5"), ("5km/h", "5"), ("12 apples per day", "12"), ("35 paths", "35"), ("0.\\overline{3}", "1/3"), ("0.1\\bar{6}", "1/6"), ("-2.\\overline{09}", "-23/11"),
        ("10^3", "1000"), ("2^{-1}", "1/2"), ("-2^2", "-4"), ("(-2)**3", "-8"),
        ("\\left(\\frac{1}{2}\\right)^2", "1/4"), ("5^2\\text{ cm}", "25"),
    ],
)  # fmt: skip
def test_what_is_a_number(text: str, value: str):
    assert value_of(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    ["", "x", "5x", "5i", "5k", "5 x", "2+3", "5!", "1, 234", "1,23,456", "3/0", "--5",
     "5 and a half", "5 or 6", "5 below zero", "1e99999", "0x1f", "1.2.3", "2\\frac{3}{2}", "five",
     "1" * 5000, "3 tenths", "3 halves", "5 more than 3", "2^{2^9}", "9^999", "0^0", "2^3/4", "2^x", "5 / km",
     "\\frac{1}{2}5"],
)  # fmt: skip
def test_what_is_none(text: str):
    assert value_of(text) is None


@given(st.text(alphabet="0123456789,. -+/%$eEx\\frac{}^_", max_size=30))
def test_any_text_is_a_number_or_none(text: str):
    number = read_number(bare(text))
    assert number is None or isinstance(number.value, Fraction)


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("5 km", "5 kilometers", True), ("5 km", "5", True), ("5", "5 km", True),
        ("5 km", "5 m", False), ("5 m", "5 m^2", False), ("5 meters", "5 square meters", False),
        ("$5", "5 dollars", True), ("$5", "5 cents", False), ("$5", "€5", False),
        ("90°", "90 degrees", True), ("90°", "90 radians", False), ("5 apples", "5 red apples", True),
        ("$18", "18 dollars in all", True), ("5 red apples", "5 apples", True),
        ("12 inches", "12 in", True), ("12 feet", "12 in", False), ("24 in^2", "24in^2", True),
        ("18 dollars", "18 in all", True), ("5 kW", "5 MW", False), ("5 g", "5 moles", False),
        ("5", "+ 5", True), ("5", "5{}", True), ("5", "\\displaystyle 5 m", True), ("5 students", "5 people", True),
        ("50%", "50", True), ("50%", "0.5", True), ("50%", "5", False), ("40", "40%", True),
        ("0.5", "0.5%", False), ("0.5", "50%", True), ("52_8", "52", True), ("52_8", "52_9", False),
        ("3", "6/2", True), ("1/2", "2/4", True), ("1/3", "0.333333", False), ("1/3", "0,333333333333333", True), ("0.5", "1/2", True),
    ],
)  # fmt: skip
def test_units_percent_and_form(gold: str, answer: str, same: bool):
    one, other = read_number(bare(gold)), read_number(bare(answer))
    assert one is not None
    assert other is not None
    assert same_number(one, other) is same


def test_nothing_is_rounded_unless_asked():
    gold, near, far = (read_number(text) for text in ("3.14159", "3.1416", "3.15"))
    assert gold is not None
    assert near is not None
    assert far is not None
    assert not same_number(gold, near)
    assert same_number(gold, near, tolerance=1e-4)
    assert not same_number(gold, far, tolerance=1e-4)
