"""Where an answer is found: the most explicit place, and of two alike the later."""

from __future__ import annotations

import pytest

from reward.graders.final_answer import boxed, final_answer


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
        ("\\boxed 52", "52"),
        ("Answer: 3\n\nthat is \\boxed{4}", "4"),  # a box before a label
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
        ("It is 5 or 6.", "5 or 6"),
        ("She makes $18 every day at the market.", "$18"),
        ("That costs $5 and $10", "$10"),
        ("see pages 10-12", "12"),
        ("the sum is -5.", "-5"),
        ("so we are left with 5x", "5x"),
        ("x = \\frac{3}{4}", "x = \\frac{3}{4}"),
        ("one\nThus the result is 20%.\n\n", "20%"),
    ],
)
def test_the_answer_is_found(text: str, answer: str):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text", ["", "   \n", "I do not know.", "\\boxed{5", "\\boxed{4} no, \\boxed{5", "\\boxed{}"]
)
def test_no_answer_is_none(text: str):
    """A box that opens last and never closes is not replaced by an earlier one."""
    assert final_answer(text) is None


def test_the_last_line_counts_only_where_asked():
    assert final_answer("that makes 5", last_line=False) is None
    assert final_answer("Answer: 5", last_line=False) == "5"


def test_only_outermost_boxes_are_boxes():
    assert boxed("\\boxed{1 + \\boxed{2}}") == "1 + \\boxed{2}"
    assert boxed("\\boxed{1 \\} }") == "1 \\}"  # an escaped brace closes nothing


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 14_000,
        "\\boxed{" * 7_000 + "5" + "}" * 7_000,
        "$" * 100_000,
        "\\[" * 50_000,
        "answer is " * 10_000,
        "answer" + " " * 100_000,
        "<answer>" * 12_000,
        "#### \n" * 16_000,
        "1,111" * 20_000,
        "5 or " * 20_000,
    ],
    ids=range(10),
)
def test_a_hundred_thousand_hostile_characters_end(text: str):
    """Quadratic reading would take minutes here; that it returns at all is the test."""
    final_answer(text)
