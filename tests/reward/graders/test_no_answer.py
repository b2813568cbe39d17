"""No answer is found: wrong where the prompt asked for a format, else unscored."""

from __future__ import annotations

import dataclasses

import pytest

from posttrain.records import Message, Score
from posttrain.rollouts import Prompt
from reward.graders import GRADERS
from reward.graders.base import Attempt
from tests.reward.graders.attempts import completion_of, prompt_of

OPTIONS = {"A": "2", "B": "3", "C": "5", "D": "7"}
BOXED = "How many?\n\nPut your final answer in \\boxed{}."


def asking(grader: str, question: str, **metadata: object) -> Prompt:
    gold = "C" if grader == "multiple_choice" else "18"
    options = {"options": OPTIONS} if grader == "multiple_choice" else {}
    prompt = prompt_of(gold, **options, **metadata)
    return dataclasses.replace(prompt, messages=(Message("user", question),))


def graded(grader: str, question: str, answer: str, **metadata: object) -> Score:
    attempt = Attempt(asking(grader, question, **metadata), completion_of(answer))
    return GRADERS[grader]().grade([attempt])[0]


@pytest.mark.parametrize("grader", ["math", "numeric", "multiple_choice"])
@pytest.mark.parametrize(
    "question",
    ["How many?", "Question: how many?\nAnswer:", "What does the word JSON stand for?"],
)
def test_an_answer_that_is_not_found_is_unscored(grader: str, question: str):
    for answer in ("I do not know.", "Who knows?\n\nHope this helps!", "答案：不知道"):
        score = graded(grader, question, answer)
        assert score.value is None
        assert score.explanation.startswith("unscored: no answer found")


CHOICES = (
    "\\boxed{\\text{(C)}}", "Option C is correct.", "答案：C", "I would go with C.", "Answer: C.",
    '{\n  "answer": "C"\n}', "$\\boxed{\\textbf{(C)}\\ 5}$", "所以选C。", "Ответ: C", "C不是 A",
    "D fails, A too: the answer is C, since 5 is odd.", "C. It can't be A or B.", "5", "**C: 5**",
    "A good guess would be option C", "Answer: (C) 5\n\nHope this helps!", "The answer is: 5",
    "A and B are wrong, D is too small. So C.", "The answer is C. A is 5 less.",
)  # fmt: skip


def test_a_choice_is_read_the_way_people_write_it():
    scores = {answer: graded("multiple_choice", "Which?", answer).value for answer in CHOICES}
    assert scores == dict.fromkeys(CHOICES, 1.0)
    others = [answer.replace("C", "B").replace("5", "3") for answer in CHOICES]
    assert {a for a in others if graded("multiple_choice", "Which?", a).value != 0.0} == set()


@pytest.mark.parametrize("grader", ["math", "numeric", "multiple_choice"])
@pytest.mark.parametrize(
    ("question", "name"),
    [
        (BOXED, "\\boxed"),
        ("How many? End with <answer>...</answer>.", "<answer>"),
        ("How many? The last line must be #### and the number.", "####"),
        ("How many? The last line of your response has the form 'Answer: $X'.", "Answer:"),
        ("How many? End with Answer: LETTER.", "Answer:"),
        ('How many? Finish with "The answer is ...".', "Answer:"),
        ('How many? Reply with a valid JSON object {"n": 1}.', "JSON"),
    ],
)
def test_a_format_that_was_asked_for_and_is_not_there_is_wrong(
    grader: str, question: str, name: str
):
    score = graded(grader, question, "I would go with that one.")
    assert score.value == 0.0
    assert name in score.explanation
    # the answer may still stand in another place than was asked for
    right = "\\boxed{C}" if grader == "multiple_choice" else "\\boxed{18}"
    assert graded(grader, question, right).value == 1.0


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (BOXED, "\\boxed{\\text{nobody}}"),
        ("Which? Reply in <answer></answer> tags.", "<answer>who knows</answer>"),
        ("Which? Answer as JSON.", '{"answer": "?"}'),
    ],
)
def test_what_cannot_be_read_in_the_format_that_was_asked_for_is_wrong(question: str, answer: str):
    assert graded("multiple_choice", question, answer).value == 0.0


@pytest.mark.parametrize("answer", ["\\boxed{E}", "The answer is E.", "Answer: (F) 11", "E"])
def test_a_choice_outside_the_options_is_wrong_where_a_format_was_asked_for(answer: str):
    assert graded("multiple_choice", BOXED, answer).value == 0.0
    without = graded("multiple_choice", "Which?", answer)
    assert (without.value, without.failure) == (None, None)


@pytest.mark.parametrize("question", ["How many?", BOXED])
@pytest.mark.parametrize("grader", GRADERS)
def test_an_empty_answer_is_wrong_in_any_format(grader: str, question: str):
    for answer in ("", " \n"):
        assert graded(grader, question, answer, outputs=["18"]).value == 0.0


LIST = "A) 2\nB) 3\nC) 5\nD) 7"


@pytest.mark.parametrize(
    "form", ["{}", "The options are:\n{}", "**{}**\n", "{}\n\nHope this helps!"]
)
def test_the_last_of_all_options_is_nobodys_choice(form: str):
    silent = form.format(LIST)
    gold_d = dataclasses.replace(asking("multiple_choice", "Which?"), gold="D")
    (score,) = GRADERS["multiple_choice"]().grade([Attempt(gold_d, completion_of(silent))])
    assert score.value is None
    assert graded("multiple_choice", BOXED, silent).value == 0.0
    # an answer behind the list is one, also in the words of the list
    for answer in ("C", "C) 5", "The answer is C.", "\\boxed{C}"):
        assert graded("multiple_choice", "Which?", f"{LIST}\n\n{answer}").value == 1.0


def test_what_is_found_and_is_not_the_gold_stays_wrong():
    for answer in ("A or C", "Answer: A or C", "\\boxed{A, C}", "\\boxed{A} or \\boxed{C}"):
        assert graded("multiple_choice", "Which?", answer).value == 0.0, answer
    for answer in ("19", "Answer: 17", "17 or 18", "2+16", "18x", "\\boxed{9:2}"):
        assert graded("math", "How many?", answer).value == 0.0, answer
    assert graded("math", BOXED, "it is \\boxed{18").value == 0.0  # never closes
    beside = graded("math", "How many?", "There are 18 pears and 20 apples.")
    assert (beside.value, beside.answer) == (None, "20")
    pattern = {"output_regex": "my pick: (.)"}
    assert graded("multiple_choice", "Which?", "my pick: Z", **pattern).value == 0.0
    assert graded("multiple_choice", "Which?", "Who knows.", **pattern).value == 0.0


def test_a_letter_behind_a_letter_is_not_chosen_by_the_first():
    gold_a = dataclasses.replace(asking("multiple_choice", "Which?"), gold="A")
    attempts = [Attempt(gold_a, completion_of(answer)) for answer in ("A: C", "A. C", "A: 2")]
    scores = GRADERS["multiple_choice"]().grade(attempts)
    assert [score.value for score in scores] == [None, None, 1.0]
