"""Graders as stages use them: scores, unscored, and the golds they refuse."""

from __future__ import annotations

import dataclasses

import pytest

from posttrain.records import Message, Score
from reward.graders import GRADERS, PACKAGE_OF
from reward.graders.base import Attempt
from reward.graders.choice import MultipleChoice
from reward.graders.math import Math
from reward.graders.workers import Workers
from tests.reward.graders.attempts import completion_of, prompt_of, values


def grade(grader: str, gold: str | None, answer: str, **metadata: object) -> Score:
    attempt = Attempt(prompt_of(gold, **metadata), completion_of(answer))
    return GRADERS[grader]().grade([attempt])[0]


def test_a_score_says_what_was_read_and_why():
    assert grade("math", "56", "7*8 is \\boxed{56}.") == Score(1.0, "56", "equal to the gold 56")
    assert grade("math", "56", "Answer: 54") == Score(0.0, "54", "not the gold 56")
    assert grade("exact", "New York", "Answer: New  York\n").value == 1.0
    assert grade("exact", "New York", "new york").value == 0.0
    assert grade("exact", "New York", "\\boxed{new york}", ignore_case=True).value == 1.0
    assert grade("exact", "New York", "It is New York, of course").value == 0.0
    assert grade("numeric", "3.14159", "about 3.1416", tolerance=1e-4).value == 1.0
    assert grade("numeric", "3.14159", "about 3.1416").value == 0.0
    # words beside a number are no part of it, as to math-verify
    assert [grade("math", *case).value for case in (("12", "12 each"), ("42", "page 42"))] == [1, 1]
    assert grade("math", "451104793605.23926", "\\boxed{4.51e+11}", tolerance=0.005).value == 1.0


@pytest.mark.parametrize("name", GRADERS)
def test_truncated_is_wrong_and_failed_is_unscored(name: str):
    prompt = prompt_of("A", options={"A": "1", "B": "2"}, output_regex="x(.)")
    grader = GRADERS[name]()
    truncated = completion_of("\\boxed{A}", finish="length")
    failed = dataclasses.replace(
        completion_of(""), steps=(), finish="failed", error="HTTP 500\nagain"
    )
    cut, lost = grader.grade([Attempt(prompt, truncated), Attempt(prompt, failed)])
    assert (cut.value, cut.answer, cut.explanation) == (0.0, None, "truncated: length")
    assert set(cut.figures.values()) <= {0.0}
    assert lost == Score(None, None, "failed: HTTP 500 again", "service")


@pytest.mark.parametrize(
    ("answer", "every", "one"),
    [
        ("The numbers are 814, 77 and lake.", 1.0, 1.0),
        ("lake\nand nothing else", 1 / 3, 1.0),
        ("8 14", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_references_are_contained_whatever_their_case(answer: str, every: float, one: float):
    outputs = ["814", "77", "Lake"]
    assert grade("contains_all", None, answer, outputs=outputs).value == every
    assert grade("contains_any", None, answer, outputs=outputs).value == one


def test_references_are_a_list_of_texts():
    prompts = [prompt_of(None, outputs=o) for o in (["a"], [], ["a", ""], [1], "abc", None)]
    assert GRADERS["contains_all"]().refuse(prompts) == [None, *["no_outputs"] * 5]
    assert values(GRADERS["contains_any"](), [(prompts[1], "abc")]) == [None]


# the others check a text, and look for no final answer
_CHECKING = {*PACKAGE_OF, "contains_all", "contains_any"}


@pytest.mark.parametrize("name", [name for name in GRADERS if name not in _CHECKING])
def test_an_answer_in_the_reasoning_alone_is_none(name: str):
    prompt = prompt_of("5", options={"A": "5", "B": "2"})
    prompt = dataclasses.replace(prompt, messages=(Message("user", "5 or 2? In \\boxed{}."),))
    completion = completion_of("I am done.", reasoning="so it is \\boxed{5}, that is \\boxed{A}")
    assert GRADERS[name]().grade([Attempt(prompt, completion)])[0].value == 0.0


def test_what_stalls_is_unscored_and_the_rest_is_graded(workers: Workers):
    requests = [
        ("2\\sqrt{2}", "\\boxed{\\sqrt{8}}"),
        ("2\\sqrt{2}", "\\boxed{9^{9^{9^{9}}}}"),
        ("2\\sqrt{2}", "\\boxed{10^{10^{10}}}"),  # large, and told apart at once
        ("2\\sqrt{2}", "\\boxed{\\sqrt{7}}"),
        ("5", "\\boxed{9^{9^{9^{9}}}}"),  # where a number is due, no power is worked out
    ]
    attempts = [Attempt(prompt_of(gold), completion_of(answer)) for gold, answer in requests]
    scores = Math(run=workers.run).grade(attempts)
    assert [score.value for score in scores] == [1.0, None, 0.0, 0.0, 0.0]
    assert scores[1] == Score(None, "9^{9^{9^{9}}}", "unscored: stopped after 1 s", "timeout")


def test_golds_that_cannot_be_used_are_refused(workers: Workers):
    grader = Math(run=workers.run)
    hard = "9^{9^{9^{9}}}"
    golds = ["5", "1,234 km", "\\frac{\\pi}{2}", "(1,2]", None, " ", "((", "0x1f", hard]
    assert grader.refuse([prompt_of(gold) for gold in golds]) == [
        None, None, None, None, "no_gold", "no_gold",
        "gold_unreadable: ((", "gold_unreadable: 0x1f", "gold_too_hard: 9^{9^{9^{9}}}",
    ]  # fmt: skip
    bad = grader.refuse([prompt_of("5", tolerance=2), prompt_of("5", tolerance="x")])
    assert all(reason is not None and reason.startswith("bad_tolerance") for reason in bad)
    assert GRADERS["numeric"]().refuse([prompt_of("5"), prompt_of("x+1"), prompt_of(None)]) == [
        None, "gold_unreadable: x+1", "no_gold",
    ]  # fmt: skip
    assert GRADERS["exact"]().refuse(
        [prompt_of("a b"), prompt_of("\\boxed{a}"), prompt_of("Answer: 5"), prompt_of("")]
    ) == [None, "gold_not_accepted: \\boxed{a}", "gold_not_accepted: Answer: 5", "no_gold"]


def test_choices_that_cannot_be_used_are_refused(workers: Workers):
    two = {"A": "yes", "B": "no"}
    prompts = [
        prompt_of("B", options=two),
        prompt_of("no", options=["yes", "no"]),  # the option's text will do
        prompt_of("C", options=two),
        prompt_of("A"),
        prompt_of(None, options=two),
        prompt_of("A", options=two, output_regex="(unclosed"),
        prompt_of("A", options=two, output_regex=["I choose ([AB])"]),
        prompt_of("x" * 3000, options=["x" * 3000, "y" * 3000]),
        prompt_of(".", options=[".", "?"]),
    ]
    reasons = MultipleChoice(run=workers.run).refuse(prompts)
    assert [None if reason is None else reason.partition(":")[0] for reason in reasons] == [
        None, None, "gold_not_an_option", "no_options", "no_gold", "bad_output_regex", None,
        None, None,
    ]  # fmt: skip


def test_a_records_own_pattern_comes_first(workers: Workers):
    prompt = prompt_of("B", options={"A": "1", "B": "2"}, output_regex=["nothing", "my pick: (.)"])
    hangs = prompt_of("B", options={"A": "1", "B": "2"}, output_regex="(a+)+$")
    grader = MultipleChoice(run=workers.run)
    answers = ["My pick: A, no, My Pick: b", "my pick: A\n\\boxed{B}", "\\boxed{B}", "my pick: Z"]
    assert values(grader, [(prompt, answer) for answer in answers]) == [1.0, 0.0, 1.0, 0.0]
    assert values(grader, [(hangs, "a" * 60 + "b"), (prompt, "my pick: B")]) == [None, 1.0]


def test_long_answers_are_shortened_in_scores():
    score = grade("math", "5", "\\boxed{" + "1+" * 5000 + "1}")
    assert score.value == 0.0
    assert score.answer is not None
    assert len(score.answer) <= 200
