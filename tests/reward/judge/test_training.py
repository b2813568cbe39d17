"""Judgements against their gold: equation 1 over completions, its parts and its counts."""

from __future__ import annotations

import asyncio
from dataclasses import astuple

import pytest

from posttrain.chat import parse_completion
from posttrain.errors import DataError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.records import Message
from posttrain.rollouts import Completion, Finish, Prompt, Step
from reward.judge.verdict import Gold, Verdict, VerdictReward, gold_from, outcome_of, preferred

SAID = '{"score_1": 4, "score_2": 2, "ranking": 2}'


def completion(text: str, *, finish: Finish = "stop", index: int = 0) -> Completion:
    parsed = parse_completion(text, thinking=True)
    kind = "length" if finish == "length" else "stop"
    step = Step(text, parsed, kind, reasoning_tokens=1, answer_tokens=1, prompt_tokens=1)
    return Completion("p", index, (() if finish == "failed" else (step,)), finish)


def prompt(gold: str | None) -> Prompt:
    return Prompt("p", "p", "judging", (Message("user", "judge"),), gold=gold)


def rewarded(gold: str, *texts: Completion) -> GroupRewards:
    group = Group(prompt(gold), texts)
    (found,) = asyncio.run(VerdictReward().reward([group], seed=0))
    return found


def test_a_group_of_judgements():
    gold = '{"score_1":5,"score_2":2,"ranking":1}'
    found = rewarded(
        gold,
        completion(f"Good.</think>{SAID}<|im_end|>"),
        completion('x</think>{"score_1": 2, "score_2": 5, "ranking": 6}<|im_end|>'),
        completion("x</think>The first.<|im_end|>"),
        completion(f"x</think>{SAID}", finish="length"),
        completion("", finish="failed"),
    )
    # malformed: 10, and as far off as can be from 5 (4), 2 (3) and 1 (5)
    assert found.rewards == (-2.0, -11.0, -22.0, -22.0, None)
    assert found.parts == {
        "format": (1.0, 1.0, 0.0, 0.0, None),
        "right_order": (1.0, 0.0, 0.0, 0.0, None),
        "score_error_1": (1.0, 3.0, None, None, None),
        "score_error_2": (0.0, 3.0, None, None, None),
        "ranking_error": (1.0, 5.0, None, None, None),
    }
    assert found.counts == {
        "judgements": 4,
        "malformed": 2,
        "prefers_1": 1,
        "prefers_2": 1,
        "prefers_neither": 0,
    }


def test_a_verdict_in_the_reasoning_is_none():
    gold = '{"score_1":4,"score_2":2,"ranking":2}'
    inside = completion(f"{SAID}</think>See above.<|im_end|>")
    never_closed = completion(f"{SAID}<|im_end|>")
    assert rewarded(gold, inside, never_closed).parts["format"] == (0.0, 0.0)


@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [
        (Verdict(4, 2, 6), 1),
        (Verdict(2, 4, 1), 2),
        (Verdict(3, 3, 3), 1),
        (Verdict(3, 3, 4), 2),
        (Verdict(3, 3, 3.5), 0),
        (Gold(None, None, 1), 1),
        (Gold(None, None, 3.5), 0),
    ],
)
def test_scores_decide_and_the_ranking_breaks_their_tie(verdict: Verdict | Gold, wanted: int):
    assert preferred(verdict) == wanted
    assert preferred(Gold(*astuple(verdict)).swapped()) == {1: 2, 2: 1, 0: 0}[wanted]


def test_no_side_is_half_right_and_a_tied_gold_has_no_right_side():
    neither = completion('</think>{"score_1": 3, "score_2": 3, "ranking": 3.5}<|im_end|>')
    found = outcome_of(neither, Gold(5, 1, 1))
    assert found is not None
    assert (found.parts["right_order"], found.figures["same_scores"]) == (0.5, 1.0)
    assert (found.figures["prefers_first"], found.figures["prefers_neither"]) == (None, 1.0)
    assert (found.figures["score_error"], found.figures["ranking_error"]) == (2.0, 2.5)
    found = outcome_of(neither, Gold(None, None, 3.5))
    assert found is not None
    assert (found.parts["right_order"], found.reward) == (None, 0)
    found = outcome_of(completion("</think>no"), Gold(None, None, 3.5))
    assert found is not None
    assert (found.parts["right_order"], found.figures["format"]) == (None, 0.0)
    assert found.figures["pairwise_accuracy_readable"] is None


@pytest.mark.parametrize(
    "text", [None, "56", "{}", '{"score_1":1,"score_2":2,"ranking":null}', "[1]"]
)
def test_a_prompt_without_a_gold_verdict_says_where_it_should_come_from(text: str | None):
    with pytest.raises(DataError, match="made by build_genrm"):
        gold_from(prompt(text))
