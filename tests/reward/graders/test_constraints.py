"""The graders of IFEval and IFBench, where the package with their checkers is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("if_verifiable", reason="extra eval-suite")

from reward.graders.base import Attempt
from reward.graders.constraints import Constraints
from reward.graders.worker_main import run_inline
from tests.reward.graders.attempts import completion_of, prompt_of

NO_COMMA, WORDS = "punctuation:no_comma", "length_constraints:number_words"
AT_LEAST_5 = {"relation": "at least", "num_words": 5, "frequency": None}


def attempt(answer: str, names: list[str], arguments: list[dict]) -> Attempt:
    prompt = prompt_of(None, instruction_id_list=names, kwargs=arguments)
    return Attempt(prompt, completion_of(answer))


@pytest.fixture(scope="module")
def grader() -> Constraints:
    return Constraints("ifeval", run=run_inline)


@pytest.mark.parametrize(
    ("answer", "value", "figures"),
    [
        ("one two three four five", 1.0, (1.0, 1.0, 1.0)),
        ("one, two", 0.0, (0.0, 0.0, 0.0)),
        ("one two", 0.0, (0.0, 0.5, 0.5)),
        # a first line too many breaks the strict reading alone
        ("Sure, here:\none two three four five", 0.0, (1.0, 0.5, 1.0)),
        ("", 0.0, (0.0, 0.0, 0.0)),
    ],
)
def test_strict_and_loose_of_prompt_and_constraints(grader, answer, value, figures):
    (score,) = grader.grade([attempt(answer, [NO_COMMA, WORDS], [{}, AT_LEAST_5])])
    assert score.value == value
    names = ("loose", "constraints", "constraints_loose")
    assert tuple(score.figures[name] for name in names) == figures


def test_a_completion_that_was_cut_off_is_in_every_share(grader):
    cut = attempt("one two three four five", [NO_COMMA], [{}])
    cut = Attempt(cut.prompt, completion_of(cut.completion.answer, finish="length"))
    (score,) = grader.grade([cut])
    assert (score.value, set(score.figures.values()), len(score.figures)) == (0.0, {0.0}, 3)


@pytest.mark.parametrize(
    ("names", "arguments", "reason"),
    [
        ([NO_COMMA], [{}], None),
        (["punctuation:no_coma"], [{}], "unknown_constraint"),
        ([WORDS], [{"relation": "at least"}], "missing_argument"),
        ([NO_COMMA, WORDS], [{}], "no_constraints"),
        ([], [], "no_constraints"),
    ],
)
def test_what_cannot_be_checked_is_refused(grader, names, arguments, reason):
    (why,) = grader.refuse([attempt("", names, arguments).prompt])
    assert why is None if reason is None else why.startswith(reason)
    (score,) = grader.grade([attempt("Fine.", names, arguments)])
    assert (score.value is None) == (reason is not None)


def test_a_sign_counts_as_the_prompt_says_every_time(grader):
    asked = {"letter": "!", "let_relation": "at least", "let_frequency": 3}
    one = attempt("Yes! No! Perhaps!", ["keywords:letter_frequency"], [asked])
    assert {grader.grade([one])[0].value for _ in range(20)} == {1.0}
