"""The reward of RLHF: who meets whom, what becomes of failures, and what each reward is made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from posttrain.config.backend import Server
from posttrain.config.judge import LengthConfig, PairingConfig
from posttrain.group_rewards import Group, GroupRewards
from posttrain.records import Score, json_text
from posttrain.rollouts import Completion
from posttrain.sampling.sampler import Request
from reward.graders.base import Attempt
from reward.judge.judge import GenRmJudge, JudgeSampler
from reward.judge.prompt import EMPTY
from reward.length import with_lengths
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


def test_lengths_count_tokens_or_characters_without_white_space_around():
    """An answer without reasoning has a reasoning of length 0."""
    group = [
        completion(" 漢字 ", reasoning="hm  "),
        completion("abcd", reasoning="  "),
        completion("abc", reasoning="hm"),
    ]

    def weights(unit: str) -> list[float | None]:
        """The shorter one of the group gets +0.5, the longer one −0.5; equal ones nothing."""
        coefficients = {"reasoning_coefficient": 1.0, "answer_coefficient": 1.0, "unit": unit}
        length = LengthConfig.model_validate({**NO_LENGTH.model_dump(), **coefficients})
        _, parts = with_lengths([0.0] * 3, group, length)
        return [*parts["reasoning_length"], *parts["answer_length"]]

    # characters: 2, 0, 2 and 2, 4, 3; bytes, as the scripted tokenizer counts: 4, 2, 2 and 8, 4, 3
    assert weights("characters") == pytest.approx([-1 / 3, 2 / 3, -1 / 3, 0.5, -0.5, 0.0])
    assert weights("tokens") == pytest.approx([-2 / 3, 1 / 3, 1 / 3, -0.6, 0.2, 0.4])


def rewarded(
    judge: GenRmJudge,
    group: Sequence[Completion],
    *,
    length: LengthConfig = NO_LENGTH,
    **prompted: Any,
) -> GroupRewards:
    judging = config(max_failure_rate=0.5)
    reward = JudgedReward(judge, config=judging, pairing=PairingConfig(), length=length)
    [found] = asyncio.run(reward.reward([Group(prompt(**prompted), tuple(group))], seed=1))
    reward.settle(found.requests, found.failures)
    return found


def test_the_base_reward_is_the_mean_over_both_positions():
    found = rewarded(judge_of(fair), completions(FOUR))
    assert found.rewards == (1.0, 2.0, 3.0, 4.0)
    places = [(row["first"], row["second"]) for row in found.judgements]
    assert places == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert (found.judgements[0]["score_1"], found.judgements[0]["score_2"]) == (1, 2)
    counts = ("position_1_wins", "position_2_wins", "ties", "matches", "judge_calls")
    assert [found.counts[name] for name in counts] == [1, 3, 0, 4, 4]
    assert "votes" not in found.judgements[0]
    [two, *_] = rewarded(judge_of(fair, babble), completions(FOUR)).judgements
    assert [vote["reason"] for vote in two["votes"]] == [None, "no readable verdict in its answer"]


def test_a_served_judge_begins_with_whole_groups_and_asks_nothing_twice():
    groups = [
        Group(prompt(), completions(FOUR)),
        Group(prompt(1), completions(("12", "12345"))),
        Group(prompt(), completions(FOUR)),  # its comparisons are the first's
    ]

    async def judged(
        begun: Sequence[Group], *, batched: bool, rollout_urls: Sequence[str] = ()
    ) -> tuple[list[GroupRewards], Any]:
        sampler = Scripted(fair, batched=batched)
        judge = GenRmJudge([JudgeSampler(sampler, "compact")], config(), rollout_urls=rollout_urls)
        reward = JudgedReward(judge, config=config(), pairing=PairingConfig(), length=NO_LENGTH)
        for group in begun:
            reward.begin_group(group, seed=1)
        for _ in range(9):
            await asyncio.sleep(0)
        early = sum(map(len, sampler.calls))
        rewards = await reward.reward(groups, seed=1)
        return rewards, (early, sum(map(len, sampler.calls)))

    at_the_end, requests = asyncio.run(judged((), batched=False))
    assert requests == (0, 6)
    assert asyncio.run(judged(groups[:2], batched=False)) == (at_the_end, (6, 6))
    assert asyncio.run(judged(groups[1:], batched=False)) == (at_the_end, (6, 6))
    # one in this process, or on the rollouts' server, would compete with the rollouts
    assert asyncio.run(judged(groups, batched=True)) == (at_the_end, (0, 6))
    [model] = config().models
    assert isinstance(model.backend, Server)
    urls = model.backend.urls
    assert asyncio.run(judged(groups, batched=False, rollout_urls=urls)) == (at_the_end, (0, 6))


def test_rollouts_that_were_given_up_are_in_no_match():
    rollouts = [completion("1"), failed(1), completion("123", index=2), failed(3)]
    found = rewarded(judge_of(fair), rollouts)
    assert found.rewards == (1.0, None, 3.0, None)
    assert [(row["first"], row["second"]) for row in found.judgements] == [(0, 2), (2, 0)]
    found = rewarded(judge_of(fair), [failed(), failed(1), completion("1", index=2)])
    assert found.rewards == (None, None, None)


def test_a_failed_judgement_takes_away_its_own_match_and_without_any_a_rollout_is_unscored():
    def silent(request: Request, rng: random.Random) -> str:
        return babble(request, rng) if "12" in answers_of(request) else fair(request, rng)

    found = rewarded(judge_of(silent), completions(FOUR), length=LengthConfig())
    row = found.judgements[0]
    assert (row["failed"], row["score_1"], row["ranking"]) == (True, None, None)
    assert (row["reason"], row["text"]) == ("no readable verdict in its answer", "Both are fine.")
    assert (found.counts["judge_failed"], found.counts["judge_retries"]) == (2, 6)
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
    found = rewarded(judge_of(sampler), rollouts)
    [(first, second), _] = [answers_of(request) for request in sampler.calls[0]]
    assert (first, second) == ("12", EMPTY)
    assert found.rewards == (2.0, 1.0)


def test_every_part_is_told_apart_and_they_add_up():
    lengths = [(30, "1234"), (10, "12"), (20, "123"), (40, "1")]
    rollouts = [
        completion(answer, index=k, reasoning="r" * long)
        for k, (long, answer) in enumerate(lengths)
    ]
    found = rewarded(judge_of(fair), rollouts, length=LengthConfig())
    assert found.parts["base"] == (4.0, 2.0, 3.0, 1.0)
    # reasoning: w = 1/3, 1, 2/3, 0, mean 1/2; the shortest has a base below the gate: no bonus
    assert found.parts["reasoning_length"] == pytest.approx((-1 / 12, 0.25, 1 / 12, -0.25))
    assert found.parts["answer_length"] == pytest.approx((-0.25, 1 / 12, -1 / 12, 0.25))
    assert found.parts["reasoning_bonus"] == (0.0,) * 4
    assert found.parts["reasoning_tokens"] == (30.0, 10.0, 20.0, 40.0)
    parts = ("base", "reasoning_length", "answer_length", "reasoning_bonus", "answer_bonus")
    for k, reward in enumerate(found.rewards):
        assert reward == pytest.approx(sum(found.parts[name][k] or 0.0 for name in parts))


def test_accuracy_is_watched_at_once_for_all_groups_and_is_no_part_of_the_reward():
    class Counting(Says):
        calls = 0

        def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
            self.calls += 1
            return super().grade(attempts)

    graded: dict[str, Any] = {"grader": "says", "gold": "1"}
    groups = [
        Group(prompt(**prompted), tuple(completions(texts)))
        for prompted, texts in (
            (graded, ("1", "2", "?")),
            ({"grader": "says"}, ("3", "4")),
            (graded, ("?", "1")),
        )
    ]
    grader, settings = Counting(), {"pairing": PairingConfig(), "length": NO_LENGTH}
    watched, plain = (
        asyncio.run(
            JudgedReward(judge_of(fair), config=config(), graders=graders, **settings).reward(
                groups, seed=1
            )
        )
        for graders in ({"says": grader}, None)
    )
    accuracies = [(1.0, 0.0, None), None, (None, 1.0)]
    assert [result.parts.get("accuracy") for result in watched] == accuracies
    assert grader.calls == 1
    assert [result.rewards for result in plain] == [result.rewards for result in watched]


@pytest.mark.parametrize(("own", "shown"), [("Be kind.", "Be kind."), (7, "Be short.")])
def test_a_prompts_own_principle_goes_before_the_recipes(own: Any, shown: str):
    sampler = Scripted(fair)
    judge = judge_of(sampler, principle="Be short.")
    rewarded(judge, completions(FOUR), metadata=json_text({"principle": own}))
    assert all(f"[P]{shown}\n" in r.messages[-1].content for r in sampler.calls[0])


def test_the_identity_binds_the_length():
    def identity(**length: Any) -> Mapping[str, Any]:
        settings = {"pairing": PairingConfig(), "length": LengthConfig(**length)}
        return JudgedReward(judge_of(fair), config=config(), **settings).identity

    assert json_text(identity()) == json_text(identity())
    assert identity(answer_bonus=0.0) != identity()
