"""Formulas, lists and numbers: what is equal and what only looks so."""

from __future__ import annotations

import pytest

from reward.graders import algebra
from reward.graders.math import Math, gold_text, same_written
from reward.graders.workers import Workers
from tests.reward.graders.attempts import prompt_of, values

EQUAL = [
    ("\\sqrt{8}", "2\\sqrt{2}"), ("1/2", "\\frac{1}{2}"), ("3", "x=3"),
    ("x=3", "3"), ("3", "2+1=3"), ("12", "12 = 24/2"), ("56", "\\frac{112}{2}"), ("[0,1)", "0 \\le x < 1"), ("(1,2)", "(1, 2)"), ("\\{1,2\\}", "\\{2,1\\}"),
    ("1,2", "2 and 1"), ("[0,1)", "[0, 1)"), ("(-\\infty, 3)", "(-\\infty,3)"),
    ("(-\\infty,1)\\cup(2,\\infty)", "(2,\\infty)\\cup(-\\infty,1)"), ("x > 3", "3 < x"),
    ("1<x<2", "2>x>1"), ("2x+z=1", "4x+2z=2"), ("y=2x+1", "2x+1"), ("y=2x+1", "y = 1+2x"),
    ("\\frac{\\pi}{2}", "\\pi/2"), ("\\pi/2", "0.5\\pi"),
    ("-3*x*atan(2*x) + 3*log(4*x**2 + 1)/4 + C", "-3*x*atan(2*x) + (3/4)*ln(1 + 4*x**2) + C"),
    ("-3*x*atan(2*x) + 3*log(4*x**2 + 1)/4 + C", "-3x\\arctan(2x) + \\frac{3}{4}\\ln(1 + 4x^2) + C"),
    ("11*X**10/2 + 3*X**6 - 2*X**4 - 4*X**2/3 + C", "11/2*X**10 + 3*X**6 - 2*X**4 - 4/3*X**2 + C"),
    ("-874*y**9 - 1196*y**8", "-874y^9 - 1196y^8"), ("1.0 - 14.0i", "1 - 14i"),
    ("1.0 - 14.0i", "-14i+1"), ("0.3273, 13.5298", "13.5298, 0.3273"), ("1234", "1,234"),
    ("\\pm 3", "3, -3"), ("x=\\pm 3", "x=3 or x=-3"),
    ("1 \\pm \\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"), ("e^{2x}", "exp(2*x)"), ("2^{10}", "1024"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\2\\end{bmatrix}"),
    ("\\emptyset", "\\varnothing"), ("\\binom{5}{2}", "10"),
    ("10/3", "10/3 \\approx 3.33"), ("3.33", "\\frac{10}{3} \\approx 3.33"), ("5t", "5t"),
    ("\\infty", "∞"), ("5!", "120"), ("3x^2 - 2x", "x(3x-2)"), ("\\log_2 8", "3"), ("ab", "ba"),
    ("\\frac{x}{y}", "x/y"), ("f(x)=2x", "2x"),
    ("(3,\\frac{\\pi}{2})", "\\left( 3, \\frac{\\pi}{2} \\right)"), ("-\\sqrt{3}", "−√3"),
    ("1 - 14i", "1-14\\mathrm{i}"), ("3\\cdot 2^{n}", "3\\times2^n"),
    ("\\cos(x)^2", "\\cos^2 x"), ("\\sin(2x)", "2\\sin x\\cos x"), ("5\\text{ m}^2", "5 m^2"),
    ("A", "A"), ("\\frac{1}{x+1}", "(x+1)^{-1}"), ("2x>4", "x>2"), ("-x<3", "x>-3"),
    ("1,234, 5", "5, 1,234"), ("[1, 2]", "[1,2]"), ("x=(1,2)", "(1,2)"),
    ("\\frac{\\sqrt{3}}{2}", "\\sqrt{3}/2"),
    ("exp(x)*sin(x)/2 - exp(x)*cos(x)/2 + C", "(E**x*(sin(x) - cos(x)))/2 + C"),
    ("\\ln x", "\\log x"), ("n(n+1)/2", "\\frac{n^2+n}{2}"), ("\\cos^2 x", "1-\\sin^2 x"),
    ("x^{-1}", "1/x"), ("\\left( \\tfrac{1}{2}, 3 \\right]", "(0.5,3]"),
    ("3 \\text{ or } 5", "5, 3"), ("\\sqrt[3]{2}", "2^{1/3}"), ("2^{-3}", "1/8"),
    ("odd", "\\text{Odd}"), ("x=2", "x=1+1=2"), ("D=(0,1)", "D = (0,1)"), ("1,2", "\\{1,2\\}"), ("1/3", "0.3333333333333333"),
    ("2", "\\sqrt{4}"), ("y_1=2, y_2=3", "2, 3"),
    ("2\\pi r^2", "2*pi*r**2"), ("|x|\\sec x", "abs(x)*sec(x)"), ("\\frac{e^{-x}}{x^2}", "x**-2*E**-x"),
    ("18", "\\text{Answer: } 18"), ("18", "\\text{Total cost:}~18"), ("x+1", "\\text{Final answer: } x+1"),
    ("18", "$\\text{Result: } 18$"), ("18", "$$ \\text{The total: } 18$$"),
    ("1000", "10^3"), ("0.5", "2^{-1}"), ("25 cm", "5^2"), ("120", "\\boldsymbol{120}"),
    ("\\frac{1}{2}", "\\pmb{\\frac{1}{2}}"), ("120", "\\textcolor{red}{120}"), ("120", "{\\bf 120}"),
    ("\\sum_{i=1}^{n} i", "\\sum_{i=1}^{n} i"), ("120", "5! = 120"), ("120", "2 \\text{ hours} = 120 \\text{ minutes}"), ("18", "18 <!-- 17 -->"),
    ("26", "26 \\mod 33"), ("18", "\\therefore 18"), ("18", "∴ x = 18"), ("18", "\\Rightarrow\\; 18"),
    ("18", "\\fbox{18}"), ("18", "\\phantom{-}18"), ("18", "\\cancel{17} 18"),
    ("(-\\infty,2)\\cup(3,\\infty)", "\\left(-\\infty,2\\right)\\cup\\left(3,+\\infty\\right)"),
]  # fmt: skip
DIFFERENT = [
    ("\\sqrt{8}", "2\\sqrt{3}"), ("3", "7/2"), ("x=3", "y=3"), ("3", "2+1"),
    ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("[0,1)", "[0,1]"), ("(-\\infty, 3)", "(-\\infty,4)"),
    ("x>3", "x<3"), ("x>3", "x \\ge 3"), ("x^2=-1", "x^2=-4"), ("y=2x+1", "y = 1+3x"),
    ("\\pi", "3.14159265"), ("\\pi/2", "\\pi/3"),
    ("-3*x*atan(2*x) + 3*log(4*x**2 + 1)/4 + C", "-3x\\arctan(2x) + \\frac{3}{5}\\ln(1 + 4x^2) + C"),
    ("-874*y**9 - 1196*y**8", "-874y^9 - 1197y^8"), ("1.0 - 14.0i", "1 + 14i"),
    ("18", "$\\text{Not the total: } 18$"), ("18", "$\\text{John: } 5, \\text{Mary: } 18$"),
    ("5", "50"), ("1234", "1,23"), ("1234", "(1,234)"), ("e^{-40}", "e^{-41}"),
    ("2^{100}", "2^{100}+1"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"),
    ("5", "5x"), ("5t", "5"), ("5", "5i"), ("\\infty", "-\\infty"), ("a", "b"),
    ("0", "0x82"), ("x^2+1", "x^2+2"), ("2", "2, 3"), ("1, 2", "2"),
    ("1, 2", "1, 2, 3"), ("\\{1,2\\}", "(1,2)"), ("(1,2]", "[1,2)"),
    ("1,234", "1, 234"), ("\\frac{1}{10000000}\\pi", "\\frac{2}{10000000}\\pi"),
    ("2.5\\pi", "2.4999999\\pi"), ("x>2", "x>3"), ("2x>4", "x<2"), ("12", "21"),
    ("\\sqrt{12}", "\\sqrt{21}"), ("5t", "5"), ("x+1=2", "x+1=3"), ("\\pi", "3"), ("\\pi", "x"),
    ("2^3", "2"), ("2", "2^3"), ("x^2", "x^3"), ("2^{-3}", "2"), ("4", "-2^2"), ("5", "2^{2^{99999}}"), ("18", "\\text{Not } 18"), ("18", "\\text{Not the total: } 18"),
    ("120", "121=120"), ("120", "119 \\approx 120"), ("120", "7 = 121 = 120"), ("3", "x=2, x=3"),
    ("[0,\\infty)", "[0,\\infty]"), ("(-\\infty,3]", "[-\\infty,3]"), ("x \\ge 0", "[0,+\\infty]"),
    ("25", "26 \\mod 33"), ("18", "17 <!-- \\boxed{18} -->"), ("18", "\\sum_{i=1}^{18} 2"), ("x", "\\prod_{i=1}^{3} i"),
]  # fmt: skip


@pytest.fixture(scope="module")
def grades(workers: Workers) -> dict[tuple[str, str], float | None]:
    """Every pair, and each gold against itself, in one call."""
    pairs = [*EQUAL, *DIFFERENT, *((gold, gold) for gold, _ in EQUAL + DIFFERENT)]
    requests = [(prompt_of(gold), f"\\boxed{{{answer}}}") for gold, answer in pairs]
    return dict(zip(pairs, values(Math(run=workers.run), requests), strict=True))


@pytest.mark.parametrize("pair", EQUAL)
def test_equal(grades: dict[tuple[str, str], float | None], pair: tuple[str, str]):
    assert grades[pair] == 1.0


@pytest.mark.parametrize("pair", DIFFERENT)
def test_different(grades: dict[tuple[str, str], float | None], pair: tuple[str, str]):
    assert grades[pair] == 0.0


def test_every_gold_is_its_own_answer(grades: dict[tuple[str, str], float | None]):
    assert {
        gold: grades[gold, gold] for gold, _ in EQUAL + DIFFERENT if grades[gold, gold] != 1
    } == {}


@pytest.mark.parametrize("text", ["even x", "2 3 x", "0x1f", "0xff+1", "x...y", "x+", ")"])
def test_words_and_what_would_be_misread_are_no_formulas(text: str):
    """ "2 3" would be read as 5 and 0x1f as 0 times letters; an anagram as the same product."""
    with pytest.raises(algebra.Unreadable):
        algebra.formulas_equal(text, "1")


def test_an_answer_that_cannot_be_read_is_wrong():
    answers = ["neve", "1+", "\\frac{1}{x", "(((", "x" * 3000, "$" * 99, "\\", "1;import os", "a.b"]
    assert set(values(Math(), [(prompt_of("x+1"), f"<answer>{a}</answer>") for a in answers])) == {
        0.0
    }


def test_numbers_need_no_algebra():
    """So little that a model writes where a number is due can stall."""
    assert same_written("7", "10^{10^{10}}") is False
    assert same_written("7", "3+4") is False  # the sum was to be worked out
    assert same_written("7", "3+4 = 7") is True
    assert same_written("\\sqrt{2}", "10^{10^{10}}") is None


def test_the_answer_that_a_gold_holds():
    assert gold_text("half of 4 is 2.\n#### 1,002") == "1,002"
    assert gold_text("so $\\boxed{\\frac12}$") == "\\frac12"
    assert gold_text("The final answer is $28 \\%$. I hope it is correct.") == "28 \\%"
    assert gold_text(" x+1 ") == "x+1"
