"""Where an answer is found: the most explicit place, and of two alike the later."""

from __future__ import annotations

import pytest

from reward.graders.choice import chosen_option
from reward.graders.final_answer import find_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So it is $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("first \\boxed{1}. That was wrong: \\boxed{2}", "2"),
        ("\\boxed{\\{1,\\{2\\}\\}} and nothing else", "\\{1,\\{2\\}\\}"),
        ("\\boxed{a_{b_{c}}}", "a_{b_{c}}"),
        ("\\boxed{1} and \\boxed{2}", "1, 2"),  # a hedge is a list, and no list is the gold 2
        ("$x=\\boxed{1}$ or $x=\\boxed{2}$", "1, 2"),
        ("\\fbox{7}", "7"),
        ("The speed is 60 km/h on average.", "60 km/h"), ("It costs $5\\frac{1}{4} in all", "$5\\frac{1}{4}"),
        ("\\text{Answer: } 18", "18"), ("So $\\textbf{Answer:}\\; 18$", "18$"), ("\\[\\text{The answer is } 18\\]", "18\\]"),
        ("It takes 7 or 8 minutes", None), ("It takes 60 minutes or so", "60 minutes"),
        ("It is 5 kilos or so", "5 kilos"), ('{"answer": "\\frac{1}{2}"}', "\\frac{1}{2}"),
        ('{"answer": "\\\\sqrt{2}"}', "\\sqrt{2}"), ('{"answer": "$\\dfrac{1}{2}$"}', "$\\dfrac{1}{2}$"),
        ("\\boxed 52", "52"),
        # a box that is denied or struck out is none; alternatives are a list
        ("\\fbox{5} not \\fbox{6}", "5"), ("It is \\boxed{5}. It isn't $\\boxed{6}$", "5"),
        ("\\boxed{5} \\neq \\boxed{6}", "5"), ("\\boxed{5}. \\boxed{6} is incorrect", "5"),
        ("\\boxed{5} was not right; \\boxed{6} is.", "6"), ("Not \\boxed{5} but \\boxed{6}", "6"),
        ("\\boxed{5} ~~\\boxed{6}~~", "5"), ("\\cancel{\\boxed{6}} \\boxed{5} \\phantom{\\boxed{7}}", "5"),
        ("\\boxed{5} or maybe \\boxed{6}", "5, 6"), ("\\boxed{5}; alternatively \\boxed{6}", "5, 6"),
        ("\\boxed{5}, hence \\boxed{6}", "6"), ("$x=\\boxed{5}$\nfor part two \\boxed{6}", "6"),
        ("This is not hard: \\boxed{5}.", "5"), ("\\boxed{5} is not rounded", "5"),
        ("\\boxed{5}. Wait, that is wrong. \\boxed{6}\nHmm, no, this is not correct.", None), ("\\boxed{5} \\boxed{6} ❌", "5"),
        ("- \\boxed{5}\n- ✗ \\boxed{6}", "5"), ("\\boxed{5}\n\nWrong answers:\n- \\boxed{6}", "5"),
        ("\\boxed{5}. Is it \\boxed{6}? No.", "5"), ("\\boxed{6}: could it be \\boxed{7}?", "6"),
        ("\\boxed{not the answer: 6}", "not the answer: 6"), ("\\boxed{wrong answer: 6}", "wrong answer: 6"),
        ("\\boxed{5}\n\\boxed{6}: False", "5"), ("\\boxed{5}. $\\boxed{6}$ (wrong)", "5"), ("\\boxed{5}\n**\\boxed{6}**: **Incorrect.**\nSo.", "5"),
        ("\\boxed{6}: false positives do not count", "6"), ("\\boxed{6}: True\n5: False", "6"), ("\\boxed{6} (wrong ways left out)", "6"),
        ("Answer: 5: False", None), ("Answer: 5 (the others are wrong)", "5"), ("Answer: 5\n\nWrong answers:\n- 6", "5"), ("Wrong answers: 6", "6"),
        ("\\boxed{5}. See https://a.b/?q=\\boxed{6}", "5"), ("From https://a.b/c: \\boxed{6}", "6"), ("https://a.b \\boxed{6}", "6"),
        ("\\boxed{%\n  \\frac{1}{2}%\n}", "\\frac{1}{2}"), ("\\boxed{50%}", "50%"), ("Answer: 5[^1]\n\n[^1]: https://a.b/6", "5"),
        ("<answer>5</answer> <answer>6</answer> is wrong.", "5"),
        ("- 6 ❌\n- 5 ✅\n\n\\boxed{5}\n❌ the others", "5"), ("Is it \\boxed{5}? Yes.", "5"),
        ("Wrong answers: \\boxed{5}", "5"), ("\\boxed{5}\n\nIt is wrong to add them.", "5"),
        ("The inspector rejects \\boxed{5} of them", "5"), ("Incorrect statement: \\boxed{5}", "5"),
        ("Answer: 3\n\nthat is \\boxed{4}", "4"),  # a box before a label
        ("is \\boxed{3}. Final Answer: The final answer is $4$. I hope it is correct.", "4"),
        ("$y_1 = \\boxed{1}$ and $y_2 = \\boxed{2}$", "1, 2"),
        ("\\boxed{1 + \\boxed{2}}", "1 + \\boxed{2}"),
        ("\\boxed{1 \\} }", "1 \\}"),  # an escaped brace closes nothing
        ('{\n "steps": [1, 2],\n "answer": "18"\n}', "18"),
        ('```json\n{"answer": 1,080}\n```', "1,080"),
        ('{"n": 7}', "7"), ("{'answer': 18}", "18"), ("{'answer': '18', 'of': 3}", "18"),
        ("It is 18.\n\nShall I show 2 other ways?", "18"), ("Answer: 18?? No, 17.", "17"),
        ("\\boxed{18} no wait, 17", "17"), ("6 instead of 5", "6"), ("The answer isn't 5.", None),
        ("It is twice 17.", None), ("The answer is 17 squared", None), ("It is over 42.", None),
        ("<b>18</b>", "18"), ("Is it 17?", None),
        ("Answer - 18", "18"), ("A - 18", "18"), ("→ 18", "18"), ("∴ 18", "18"), ("A -> 18", "18"),
        ("[A] 18", "18"), ("1. A: 18", "18"), ("- 18", "- 18"), ("(a) 18", "18"), ("Q1: 18", "18"),
        ("合計は18円です。", "18円"), ("答案：18", "18"), ("Ответ: -18 яблок", "-18"), ("정답은 18", "18"),
        ("It is 18.\n\nHope this helps!", "18"), ("It is 18 (4 of 12 were sold).", "18"),
        ("Thus she makes $18 a day. #### 18", "18"), ("#### 1. Total\n\nIt is 18.", "18"),
        ("She needs 27 because 905 - 878 = 27", "27"), ("The answer can't be 18", None), ("Die Antwort ist nicht 18", None),
        ("The largest $n$ is 34.<|im_end|>", "34"), ("18\n\\)", "18"), ("1\nno\nno\nno", None),
        ("<answer>5</answer> I said \\boxed{4}", "5"),
        ("<answer>\\boxed{5}</answer>", "5"),
        ("<answer>1</answer> no: <answer>12 apples</answer>", "12 apples"),
        ("The answer is 5 km, as shown.", "5 km"),
        ("Answer: 4\nNo, wait.\nAnswer: 6", "6"),
        ("**Answer:**\n\n$$x=5$$", "$$x=5$$"),
        ("step one\n#### 1,234", "1,234"),
        ("The final answer is: $x=1$ or $x=2$.", "$x=1$ or $x=2$."),
        ("The answer is $\\frac{1}{2}$ because $a=3$", "\\frac{1}{2}"),
        ("The answer is 7 because 3+4=7", "7"),
        ("The answer is 5 or 6", "5 or 6"),
        ("The answer is not 5 but 6", "6"),
        ("It is 5 or 6.", None),
        ("She makes $18 every day at the market.", "$18"),
        ("That costs $5 and $10", "$10"),
        ("see pages 10-12", "12"),
        ("the sum is -5.", "-5"),
        ("so we are left with 5x", "5x"),
        ("x = \\frac{3}{4}", "x = \\frac{3}{4}"),
        ("one\nThus the result is 20%.\n\n", "20%"),
        ("Au total 2 500 euros.", "2 500 euros"), ("It is 60°.", "60^\\circ"),
        ("That is 1.5 × 10^3 m.", "1.5 \\times  10^3 m"), ("\\boxed{5} and \\boxed{5}", "5"),
    ],
)  # fmt: skip
def test_the_answer_is_found(text: str, answer: str | None):
    assert find_answer(text)[0] == answer


@pytest.mark.parametrize(
    "text",
    ["", "   \n", "\\boxed{5} is wrong.", "I do not know.", "It is not 5.", "答案不是5",
     "\\boxed{5", "\\boxed{4} no, \\boxed{5", "\\boxed{}"],
)  # fmt: skip
def test_no_answer_is_none(text: str):
    """A box that opens last and never closes is not replaced by an earlier one."""
    assert find_answer(text)[0] is None


def test_the_last_line_counts_only_where_asked():
    assert find_answer("that makes 5", last_line=False)[0] is None
    assert find_answer("Answer: 5", last_line=False)[0] == "5"


HOSTILE = (
    "\\boxed{", "$", "\\[", "answer is ", "<answer>", "#### \n", "1,111", "5 or ", "答案", '{"answer": ',
    "**1", "- ", "1 because ", "*", "'answer':", "wait, I ", "not A or ", "5 m/", "\\\\", "(A) or ", "A",
    "option ", "\\text{", "A and ", "<del>", "\\cancel{", "~~a", "\\boxed{5} not ", "\\boxed{5} )  ",
    "\\boxed{5}. no, ", "\\boxed{5}?", "<a style=", "\\color{white}{", "% ", "\\iffalse ", "](a \"", "<a ", "http://\\boxed{5}", "\\boxed{5}: -",
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *(piece * (10_000 // len(piece)) for piece in HOSTILE),
        "\\boxed{" * 1_000 + "5" + "}" * 1_000,
        "answer" + " " * 10_000,
        "(" * 5_000 + "1",
        " " * 10_000 + "5",
    ],
    ids=range(len(HOSTILE) + 4),
)
def test_ten_thousand_hostile_characters_end(text: str):
    """Cubic reading would take an hour here; that it returns at all is the test."""
    find_answer(text)
    chosen_option(text, {"A": "x", "B": "y"})


PARENTHESES = {"A": "Polymerase", "B": "Chain Reaction (PCR)", "C": "f(x)"}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("\\boxed{B. Chain Reaction (PCR)}", "B"),
        ("\\boxed{\\text{(B) } \\text{Chain Reaction (PCR)}}", "B"),
        ("<answer>C (f(x))</answer>", "C"),
        ("Answer: A <!-- Answer: B -->", "A"),
        ("<!-- the answer is B -->", None),
        ("<!-- Answer: B", None),
        ("A. Polymerase B. Chain Reaction (PCR) C. f(x)", None),
        ("(A) Polymerase, (B) Chain Reaction (PCR), (C) f(x)\n\nAnswer: C", "C"),
    ],
)
def test_an_options_own_bracket_counts_and_a_comment_does_not(text: str, letter: str | None):
    assert chosen_option(text, PARENTHESES) == letter
