"""The reward of RLHF: who meets whom, what becomes of failures, and what each reward is made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from posttrain.config.judge import LengthConfig, PairingConfig
from posttrain.group_rewards import Group, GroupRewards
from posttrain.records import Score, json_text
from posttrain.rollouts import Completion
from posttrain.sampling.sampler import Request
from reward.graders.base import Attempt, Grader
from reward.judge.judge import GenRmJudge
from reward.judge.prompt import EMPTY
from reward.rlhf import JudgedReward
from tests.reward.judge.judging import (
    answers_of,
    babble,
    completion,
    completions,
    config,
    failed,
    fair,
    judge_of,
    prompt,
)
from tests.sampling.scripted import Scripted

NO_LENGTH = LengthConfig(
    reasoning_coefficient=0, answer_coefficient=0, reasoning_bonus=0, answer_bonus=0
)
FOUR = ("1", "12", "123", "1234")


class Says:
    """Grades by what the answer is: "1" is right, "?" cannot be scored."""

    def refuse(self, prompts: Sequence[Any]) -> list[str | None]:
        return [None] * len(prompts)

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        values = [None if a.completion.answer == "?" else a.completion.answer for a in attempts]
        return [Score(None if v is None else float(v == "1"), v, "") for v in values]


def rewarded(
    judge: GenRmJudge,
    *groups: Sequence[Completion],
    length: LengthConfig = NO_LENGTH,
    strategy: str = "circular",
    max_failure_rate: float = 0.2,
    graders: Mapping[str, Grader] | None = None,
    seed: int = 1,
    **prompted: Any,
) -> list[GroupRewards]:
    reward = JudgedReward(
        judge,
        config=config(max_failure_rate=max_failure_rate),
        pairing=PairingConfig.model_validate({"strategy": strategy}),
        length=length,
        graders=graders,
    )
    given = [Group(prompt(k, **prompted), tuple(group)) for k, group in enumerate(groups)]
    found = asyncio.run(reward.reward(given, seed=seed))
    reward.settle(sum(one.requests for one in found), [f for one in found for f in one.failures])
    return found


@pytest.mark.parametrize(
    ("strategy", "calls"), [("circular", 16), ("both_orders", 32), ("all_pairs", 120)]
)
def test_what_each_pairing_costs_at_sixteen(strategy: str, calls: int):
    sampler = Scripted(fair)
    # all answers differ, so that no two matches are asked alike
    answers = [f"{k:x}{'1' * (k % 5)}" for k in range(16)]
    [found] = rewarded(judge_of(sampler), completions(answers), strategy=strategy)
    assert found.counts["judge_calls"] == found.counts["matches"] == calls
    assert [len(call) for call in sampler.calls] == [calls]
    assert len(found.judgements) == calls
    assert None not in found.rewards


def test_the_base_reward_is_the_mean_over_both_positions():
    [found] = rewarded(judge_of(fair), completions(FOUR))
    assert found.rewards == (1.0, 2.0, 3.0, 4.0)
    assert [(row["first"], row["second"]) for row in found.judgements] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 0),
    ]
    assert found.judgements[0]["score_1"] == 1
    assert found.judgements[0]["score_2"] == 2
    assert found.counts["position_1_wins"] == 1
    assert found.counts["position_2_wins"] == 3
    assert found.counts["ties"] == 0


def test_rollouts_that_were_given_up_are_in_no_match():
    rollouts = [completion("1"), failed(1), completion("123", index=2), failed(3)]
    [found] = rewarded(judge_of(fair), rollouts)
    assert found.rewards == (1.0, None, 3.0, None)
    assert [(row["first"], row["second"]) for row in found.judgements] == [(0, 2), (2, 0)]
    [found] = rewarded(judge_of(fair), [failed(), failed(1), completion("1", index=2)])
    assert found.rewards == (None, None, None)


def test_a_failed_judgement_takes_away_its_own_match_only():
    def silent_on_first_pair(request: Request, rng: random.Random) -> str:
        pair = answers_of(request)
        return babble(request, rng) if pair == ("1", "12") else fair(request, rng)

    [found] = rewarded(judge_of(silent_on_first_pair), completions(FOUR), max_failure_rate=0.25)
    assert found.rewards == (1.0, 2.0, 3.0, 4.0)
    row = found.judgements[0]
    assert (row["failed"], row["score_1"], row["ranking"]) == (True, None, None)
    assert row["reason"] == "no readable verdict in its answer"
    assert row["text"] == "Both are fine."
    assert found.counts["judge_failed"] == 1
    assert found.counts["judge_retries"] == 3


def test_without_any_judgement_a_rollout_is_unscored():
    def silent_about_two(request: Request, rng: random.Random) -> str:
        return babble(request, rng) if "12" in answers_of(request) else fair(request, rng)

    [found] = rewarded(
        judge_of(silent_about_two), completions(FOUR), max_failure_rate=0.5, length=LengthConfig()
    )
    assert found.rewards[1] is None
    assert {values[1] for name, values in found.parts.items() if "tokens" not in name} == {None}
    # the others are as if it were not there: 1 and 123 lost a match each
    assert found.parts["base"] == (1.0, None, 3.0, 4.0)


def test_only_final_answers_are_shown_and_missing_ones_are_marked():
    sampler = Scripted(fair)
    rollouts = [
        completion("12", reasoning="secret 12345"),
        completion(None, index=1, reasoning="cut", finish="length"),
    ]
    [found] = rewarded(judge_of(sampler), rollouts)
    [(first, second), _] = [answers_of(request) for request in sampler.calls[0]]
    assert (first, second) == ("12", EMPTY)
    assert found.rewards == (2.0, 1.0)


def test_every_part_is_told_apart_and_they_add_up():
    lengths = [(30, "1234"), (10, "12"), (20, "123"), (40, "1")]
    rollouts = [
        completion(answer, index=k, reasoning="r" * long)
        for k, (long, answer) in enumerate(lengths)
    ]
    length = LengthConfig(style_coefficient=0.1, absolute_penalty=2.0)
    [found] = rewarded(judge_of(fair), rollouts, length=length)
    assert found.parts["base"] == (4.0, 2.0, 3.0, 1.0)
    # reasoning: w = 1/3, 1, 2/3, 0, mean 1/2; the shortest has a base below the gate: no bonus
    assert found.parts["reasoning_length"] == pytest.approx((-1 / 12, 0.25, 1 / 12, -0.25))
    assert found.parts["answer_length"] == pytest.approx((-0.25, 1 / 12, -1 / 12, 0.25))
    assert found.parts["reasoning_bonus"] == (0.0,) * 4
    assert found.parts["absolute_penalty"] == pytest.approx((-0.68, -0.24, -0.46, -0.82))
    assert found.parts["reasoning_tokens"] == (30.0, 10.0, 20.0, 40.0)
    parts = ("base", "reasoning_length", "answer_length", "reasoning_bonus", "answer_bonus",
             "style", "absolute_penalty")  # fmt: skip
    for k, reward in enumerate(found.rewards):
        assert reward == pytest.approx(sum(found.parts[name][k] or 0.0 for name in parts))


def test_accuracy_is_watched_and_is_no_part_of_the_reward():
    rollouts = completions(["1", "2", "?", "12"])
    graders = {"says": Says()}
    [found] = rewarded(judge_of(fair), rollouts, graders=graders, grader="says", gold="1")
    assert found.parts["accuracy"] == (1.0, 0.0, None, 0.0)
    [plain] = rewarded(judge_of(fair), rollouts, graders=graders)
    assert "accuracy" not in plain.parts
    assert plain.rewards == found.rewards


def test_a_prompts_own_principle_goes_before_the_recipes():
    for own, shown in (
        ({"principle": "Be kind."}, "Be kind."),
        ({}, "Be short."),
        (7, "Be short."),
    ):
        sampler = Scripted(fair)
        metadata = json_text(own if isinstance(own, dict) else {"principle": own})
        judge = judge_of(sampler, principle="Be short.")
        rewarded(judge, completions(FOUR), metadata=metadata)
        assert all(f"[P]{shown}\n" in r.messages[-1].content for r in sampler.calls[0])


def test_the_identity_binds_judge_pairing_and_length():
    def identity(**length: Any) -> Mapping[str, Any]:
        return JudgedReward(
            judge_of(fair),
            config=config(),
            pairing=PairingConfig(),
            length=LengthConfig(**length),
        ).identity

    assert identity() == identity()
    assert identity(answer_bonus=0.0) != identity()
    json_text(identity())
