"""Judging through a server that refuses, drops and delays: what fails is left out, never made up."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest
from aiohttp import web

from posttrain.config.backend import ChatBackend
from posttrain.config.judge import LengthConfig, PairingConfig
from posttrain.errors import ConfigError, JudgeError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.sampling.engines.chat import ChatSampler
from posttrain.sampling.engines.http import Client
from reward.judge.judge import GenRmJudge, JudgeSampler
from reward.judge.prompt import verdict_text
from reward.judge.verdict import Verdict
from reward.judge.votes import JudgeCosts
from reward.rlhf import JudgedReward
from tests.reward.judge.judging import ANSWERS, completions, config, prompt, worth
from tests.sampling.stub_server import Stub, Trouble, no_trouble

GROUPS, SIZE = 6, 8


class JudgingStub(Stub):
    """Answers with verdicts, in another order than it was asked."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._take(request)
        if isinstance(body, web.StreamResponse):
            return body
        for _ in range(random.Random(json.dumps(body)).randrange(5)):
            await asyncio.sleep(0)
        contents = [message["content"] for message in body["messages"]]
        found = ANSWERS.search(contents[-1])
        answers = found.groups() if found else contents[-2:]  # of the compact layout, or by role
        said = verdict_text(Verdict(*map(worth, answers), 3))
        message = {"role": "assistant", "content": said, "reasoning_content": "hm"}
        usage = {"prompt_tokens": 11, "completion_tokens": 9}
        choice = {"message": message, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": usage})


def groups() -> list[Group]:
    """Rollouts that all differ."""
    return [
        Group(prompt(k), completions([f"{k}.{j}{'1' * (j % 4)}" for j in range(SIZE)]))
        for k in range(GROUPS)
    ]


def share(part: float, trouble: int | str) -> Trouble:
    """Trouble for a share of the questions, every time they are asked."""

    def unlucky(body: dict[str, Any], _again: int) -> int | str | None:
        requests = body["messages"][-1]["content"]
        return trouble if random.Random(requests).random() < part else None

    return unlucky


def judged(
    trouble: Trouble = no_trouble, *, timeout: float = 30.0, gate: int = 1, layout: str = "compact"
) -> tuple[list[GroupRewards], JudgeCosts, Stub]:
    async def run() -> tuple[list[GroupRewards], JudgeCosts, Stub]:
        async with JudgingStub(trouble, gate=gate) as stub:
            reached = {"concurrency": 64, "timeout": timeout, "retries": 0}
            backend = ChatBackend(kind="chat", url=stub.url, model="judge", **reached)
            client = Client(backend, first_wait=0.0)
            sampler = ChatSampler(client, backend, parts=False)
            judge = GenRmJudge([JudgeSampler(sampler, layout)], config())
            reward = JudgedReward(
                judge, config=config(), pairing=PairingConfig(), length=LengthConfig()
            )
            try:
                found = await reward.reward(groups(), seed=1)
                lost = [failure for one in found for failure in one.failures]
                reward.settle(sum(one.requests for one in found), lost)
                return found, judge.ledger, stub
            finally:
                await client.close()

    return asyncio.run(run())


def test_everything_is_in_flight_at_once_and_the_order_of_answers_changes_nothing():
    found, ledger, stub = judged(gate=GROUPS * SIZE)
    assert stub.most == GROUPS * SIZE == ledger.calls
    assert [rewards.rewards for rewards in found] == [r.rewards for r in judged()[0]]
    assert (ledger.prompt_tokens, ledger.completion_tokens) == (11 * ledger.calls, 9 * ledger.calls)


def test_a_server_gets_the_judges_roles():
    found, _, stub = judged(layout="roles")
    assert [rewards.rewards for rewards in found] == [r.rewards for r in judged()[0]]
    roles = {tuple(m["role"] for m in body["messages"]) for body in stub.bodies}
    assert roles == {("user", "response_1", "response_2")}


def test_a_server_that_refuses_the_key_stops_the_run():
    with pytest.raises(ConfigError, match="refuses the key"):
        judged(lambda body, again: 401)


@pytest.mark.parametrize("trouble", [400, 500, "cut"])
def test_a_tenth_of_the_calls_failing_goes_on(trouble: int | str):
    whole = judged()[0]
    found, ledger, _ = judged(share(0.1, trouble))
    assert 0 < ledger.failed < 0.2 * GROUPS * SIZE
    lost = 0
    for got, spared in zip(found, whole, strict=True):
        failed = [row for row in got.judgements if row["failed"]]
        assert all(row["score_1"] is None and row["reason"] for row in failed)
        assert got.counts["judge_failed"] == len(failed)
        lost += len(failed)
        touched = {row[place] for row in failed for place in ("first", "second")}
        for k, base in enumerate(got.parts["base"]):
            assert k in touched or base == spared.parts["base"][k]
    assert lost == ledger.failed


@pytest.mark.parametrize(
    ("trouble", "why"), [(400, "status 400: trouble"), (503, "status 503"), ("cut", "Disconnected")]
)
def test_most_of_the_calls_failing_stops_and_says_why(trouble: int | str, why: str):
    with pytest.raises(JudgeError, match=rf"of 48 judgements failed .*{re.escape(why)}"):
        judged(share(0.6, trouble))


def test_a_call_that_never_returns_is_given_up():
    with pytest.raises(JudgeError, match=r"no answer within 0\.2 s"):
        judged(share(0.6, "hang"), timeout=0.2)
