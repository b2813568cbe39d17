"""Verifiers run while other rollouts are still decoded, and change nothing of what is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from posttrain.group_rewards import Group
from posttrain.records import Score
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.rollout import Task, roll_out
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Generation, Request
from posttrain.training.rl.early import EarlyWork, begin_early
from reward.rlvr import Domain, RoutedReward
from tests.sampling.scripted import END, Adder, Scripted, question


@dataclass
class Waiting:
    """A verifier that says when it began."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    verified: list[str] = field(default_factory=list)

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        self.verified.append(prompt.id)
        self.begun.set()
        return Score(1.0, None, "made")

    def passes(self, score: Score) -> bool:
        return score.value == 1.0


class OneByOne(Scripted):
    """Goes on with the second request only when somebody verifies the first."""

    verifier: Waiting

    async def sample_each(
        self,
        requests: Sequence[Request],
        *,
        on_done: Callable[[int, Generation], None],
        progress: Any = None,
    ) -> None:
        for number, generation in reversed(list(enumerate(await super().sample(requests)))):
            on_done(number, generation)
            if generation.step is not None and not generation.step.parsed.tool_calls:
                await asyncio.wait_for(self.verifier.begun.wait(), 30)


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.mark.parametrize("first", ["3", CALL])
def test_a_verifier_begins_before_the_batch_is_decoded(first: str):
    async def steps() -> tuple[list[Completion], Any, Waiting]:
        sampler = OneByOne(lambda r, _: ("3" if r.continues else first) + END)
        sampler.verifier = verifier = Waiting()
        reward = RoutedReward(lambda _: verifier, domains={"d": Domain(("",), 0.5)})
        tasks = [Task(question(k), 0, 7) for k in range(3)]
        completions = await roll_out(
            tasks,
            sampler,
            open_environment=lambda _: Adder(),
            limits=RolloutLimits(Parameters(max_tokens=200)),
            on_end=begin_early(
                reward,
                [t.prompt for t in tasks],
                EarlyWork(asyncio.get_running_loop()),
                group_size=1,
                seed=0,
            ),
        )
        groups = [Group(t.prompt, (c,)) for t, c in zip(tasks, completions, strict=True)]
        return completions, await reward.reward(groups, seed=0), verifier

    completions, rewards, verifier = asyncio.run(steps())
    assert [c.prompt_id for c in completions] == [question(k).id for k in range(3)]
    assert [len(c.steps) for c in completions] == [1 if first == "3" else 2] * 3
    assert [given.rewards for given in rewards] == [(1.0,)] * 3
    # each once, in the order in which they ended
    assert verifier.verified == [c.prompt_id for c in reversed(completions)]


@dataclass
class Groups:
    """A reward that says which groups it was given early, and with which seed."""

    begun: list[tuple[Group, int]] = field(default_factory=list)

    def begin_group(self, group: Group, *, seed: int) -> list[asyncio.Task[Any]]:
        self.begun.append((group, seed))
        return []


def test_a_group_is_handed_over_once_when_its_last_rollout_ends():
    reward: Any = Groups()
    prompts = [question(0), question(1)]
    rollouts = {
        position: Completion(prompts[position // 3].id, position % 3, (), "stop")
        for position in range(6)
    }
    with asyncio.Runner() as runner:
        early = EarlyWork(runner.get_loop())
    begin = begin_early(reward, prompts, early, group_size=3, seed=5)
    begun: list[int] = []
    for position in (4, 0, 3, 5, 2, 1):
        begin(position, rollouts[position])
        begun.append(len(reward.begun))
    assert begun == [0, 0, 0, 1, 1, 2]
    groups = [Group(prompts[g], tuple(rollouts[3 * g + k] for k in range(3))) for g in (1, 0)]
    assert reward.begun == [(group, 5) for group in groups]


def test_decoding_hands_each_row_over_once_when_it_ends(policy: Path):
    model: Any = AutoModelForCausalLM.from_pretrained(str(policy)).eval()
    limits = (9, 2, 5, 0, 1, 7)
    requests = [
        EngineRequest((3, 4 + k), Parameters(max_tokens=limit), seed=k, stop_ids=())
        for k, limit in enumerate(limits)
    ]
    found: list[tuple[int, EngineOutput]] = []
    outputs = decode(
        model, requests, batch_size=3, on_done=lambda k, output: found.append((k, output))
    )
    assert dict(found) == dict(enumerate(outputs))
    order = [k for k, _ in found]
    assert sorted(order) == list(range(len(limits)))
    assert order[0] == 3  # nothing to write
    # within the first batch the shorter rows come first
    assert order.index(1) < order.index(2) < order.index(0)
