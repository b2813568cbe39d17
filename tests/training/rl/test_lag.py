"""`rollouts.lag: 1`: which weights sample which step, in process and on a server, killed or not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.config.rlvr import RlvrConfig
from posttrain.errors import ConfigError, TrainingError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.training.rl.ahead import AheadRollouts, SampledGroups
from posttrain.training.rl.stage import GroupStage
from tests.training.forks import forked
from tests.training.rl.policy import (
    Scripted,
    make_prompts,
    raw_recipe,
    start,
    words_of,
)
from tests.training.rl.policy import make_recipe as make_any_recipe
from tests.training.rl.servers import policy_server
from tests.training.rl.test_batch import completion, step
from tests.training.tiny import rollout_groups

PROMPTS = make_prompts(24)
# steps that are large enough to tell one batch's weights from the next's
TRAINER: dict[str, Any] = {"learning_rate": 0.05, "max_steps": 4}
LAG: dict[str, Any] = {"rollouts": {"engine": "in_process", "lag": 1}}
ADAPTER: dict[str, Any] = {"adapter": {"rank": 4, "preset": "attention"}}


def make_recipe(policy: Path, out: Path, trainer: Any = None, **keys: Any) -> GroupTraining:
    """Steps of 4 prompts × 3 rollouts in 3 micro-batches."""
    micro = {"per_device_train_batch_size": 4, **(trainer or {})}
    sizes = {"prompts_per_step": 4, "num_generations": 3, "sampling": {"max_tokens": 4}}
    return make_any_recipe(policy, out, micro, **sizes, **keys)


class Keeping(Scripted):
    """Keeps the groups of every batch, in the order in which they are rewarded."""

    def __init__(self) -> None:
        super().__init__(words_of)
        self.batches: list[list[Group]] = []

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        self.batches.append([*groups])
        return await super().reward(groups, seed=seed)


class Weights(TrainerCallback):
    """Keeps the weights before the first step and behind each one."""

    def __init__(self) -> None:
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep(kwargs["model"])

    def _keep(self, model: Any) -> None:
        self.kept.append({name: weight.clone() for name, weight in model.state_dict().items()})


def test_step_k_is_sampled_by_the_weights_after_step_k_minus_two(policy: Path, tmp_path: Path):
    reward = Keeping()
    weights = Weights()
    recipe = make_recipe(policy, tmp_path / "out", TRAINER, **LAG)
    trainer = start(recipe, PROMPTS, reward).trainer
    trainer.add_callback(weights)
    trainer.train()
    assert len(weights.kept) == 5
    assert len(reward.batches) == 4

    plain = start(make_recipe(policy, tmp_path / "plain", TRAINER), PROMPTS, Scripted()).trainer
    for number, groups in enumerate(reward.batches):
        plain.model.load_state_dict(weights.kept[max(0, number - 1)])
        with plain.engine.current(number):
            sampling = plain.steps.roll_out(number, plain.steps.draw(number))
            expected = plain.rollouts.runner.run(sampling)
        assert groups == expected
    written = {
        (group["step"], rollout["version"])
        for group in rollout_groups(Path(recipe.out))
        for rollout in group["rollouts"]
    }
    assert written == {(1, 0), (2, 0), (3, 1), (4, 2)}
    rows = [row for row in trainer.state.log_history if "rollouts" in row]
    # trainer and sampler agree in the first step, and no longer from the second on
    assert rows[0]["logp_difference"] < 1e-5
    assert all(row["logp_difference"] > 1e-3 for row in rows[1:])


def outcome(out: Path) -> tuple[bytes, list[bytes]]:
    """Weights and rollouts of a run."""
    files = sorted((out / "rollouts").iterdir())
    return (out / "model.safetensors").read_bytes(), [file.read_bytes() for file in files]


class Dying(Scripted):
    """Kills the process while it rewards a batch, counted from 0; lists the batches before."""

    def __init__(self, batch: int | None, rewarded: Path) -> None:
        super().__init__(words_of)
        self.batch = batch
        self.rewarded = rewarded

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        if len(self.requests) == self.batch:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.rewarded.open("a") as file:
            file.write(f"{seed} {[group.prompt.id for group in groups]}\n")
        return await super().reward(groups, seed=seed)


def run(recipe: GroupTraining, batch: int | None = None, *, processes: int = 1) -> list[int]:
    out = Path(recipe.out)

    def stage() -> None:
        reward = Dying(batch, out.with_suffix(".rewarded"))
        GroupStage(recipe, prompts=PROMPTS, reward=reward).run(dry_run=False)

    return forked(stage, processes=processes, check=batch is None).codes


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_killed_ends_with_the_same_weights(
    policy: Path, tmp_path: Path, processes: int
):
    """Killed twice while a batch is rewarded, each time behind another checkpoint.

    Runs without lag are killed there in tests/training/test_resume.py.
    """
    keys = {**LAG, "launch": {"world_size": processes, "sharding": "none"}}
    trainer = TRAINER | {"save_steps": 1, "per_device_train_batch_size": 2}
    whole = make_recipe(policy, tmp_path / "whole", trainer, **keys)
    killed = make_recipe(policy, tmp_path / "killed", trainer, **keys)
    run(whole, processes=processes)
    # batches that a process rewards begin anew behind a checkpoint
    for batch in (2, 1):
        assert -signal.SIGKILL in run(killed, batch, processes=processes)
    run(killed, processes=processes)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    # a checkpoint has the rewards of the rollouts that it holds
    rewarded = [(tmp_path / f"{name}.rewarded").read_text() for name in ("killed", "whole")]
    if processes == 1:
        assert rewarded[0] == rewarded[1]


def test_a_checkpoint_keeps_rollouts_and_rewards_but_no_failures(tmp_path: Path):
    prompts = {prompt.id: prompt for prompt in PROMPTS[:3]}
    groups: list[Group] = []
    for prompt in prompts.values():
        # U+2028 ends a line for `str.splitlines`, and for JSON it is a letter
        rollouts = (completion(0, replace(step((10, 11)), text="w1\u2028w2")), completion(1))
        groups.append(Group(prompt, rollouts))
    tokens = GroupRewards(
        ((0.1, -0.2), None),
        {"reverse_kl": (0.05, None)},
        judgements=({"of": 0, "text": "\ud800"},),
        counts={"teacher_failed": 0},
        requests=2,
        domain="a",
        seconds=(0.1, 0.3),
    )
    failed = GroupRewards((1.0, None), requests=2, failures=(Failure("timeout", "late"),))
    file = tmp_path / "rollouts.jsonl"
    with asyncio.Runner() as runner:
        ahead = AheadRollouts(runner)
        ahead.put(4, SampledGroups(groups, [tokens, None, failed]))
        ahead.save(file)
        resumed = AheadRollouts(runner)
        resumed.load(file, step=4, prompts=prompts)
        assert resumed.take(4) == SampledGroups(groups, [tokens, None, None])


def test_a_server_samples_beside_the_training_what_would_be_sampled_in_process(
    policy: Path, tmp_path: Path
):
    texts: list[list[str]] = []
    with policy_server(policy) as server:
        served = {"engine": "lora_server", "url": server.url, "retries": 0, "lag": 1}
        for name, rollouts in (("here", LAG["rollouts"]), ("served", served)):
            keys = ADAPTER | {"rollouts": rollouts}
            recipe = make_recipe(policy, tmp_path / name, TRAINER, **keys)
            GroupStage(recipe, prompts=PROMPTS, reward=Scripted(words_of)).run(dry_run=False)
            groups = rollout_groups(tmp_path / name)
            texts.append([one["text"] for group in groups for one in group["rollouts"]])
    assert texts[0] == texts[1]
    assert [entry for entry in server.log if entry[0] == "+"] == [
        f"+policy-{number:05d}" for number in range(4)
    ]


def test_a_server_that_fails_beside_the_training_ends_the_run(policy: Path, tmp_path: Path):
    class Failing(Scripted):
        async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
            if len(self.requests) == 2:
                raise TrainingError("no verifier answers")
            return await super().reward(groups, seed=seed)

    with policy_server(policy) as server:
        served = {"engine": "lora_server", "url": server.url, "retries": 0, "lag": 1}
        recipe = make_recipe(policy, tmp_path / "out", TRAINER, **ADAPTER, rollouts=served)
        with pytest.raises(TrainingError, match="no verifier answers"):
            GroupStage(recipe, prompts=PROMPTS, reward=Failing(words_of)).run(dry_run=False)
    assert server.loaded == {}


def test_lag_without_importance_weights_is_refused(policy: Path, tmp_path: Path):
    loss = {"importance": None, "overlong": "train"}
    with pytest.raises(ConfigError, match=r"which loss\.importance corrects"):
        make_recipe(policy, tmp_path / "out", **LAG, loss=loss)


def test_lag_with_prompts_that_depend_on_the_step_before_is_refused(policy: Path, tmp_path: Path):
    rlvr = {"pass_rates": "profile", "domains": {"a": {"ratio": 1}}}
    raw = raw_recipe(policy, tmp_path / "out", **rlvr, **LAG)
    for keys in ({"dynamic_sampling": {}}, {"curriculum": {"order": "difficulty_pools"}}):
        with pytest.raises(ConfigError, match="draws the next step's prompts before"):
            validate(raw | keys, RlvrConfig, where="test")
