"""Recipes and prompts that cannot mean anything, each with a message that says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.config.rlhf import RlhfConfig
from posttrain.errors import ConfigError, DataError
from posttrain.records import Message
from posttrain.rollouts import Prompt
from posttrain.training.rl.stage import GroupStage, grpo_arguments
from tests.training.rl.policy import (
    Scripted,
    make_prompts,
    make_recipe,
    raw_recipe,
    start,
)

PROMPTS = make_prompts(24)


def refused(policy: Path, out: Path, match: str, prompts: Any = PROMPTS, **keys: Any) -> None:
    with pytest.raises((ConfigError, DataError), match=match):
        start(make_recipe(policy, out, **keys), prompts, Scripted())


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ("beta", "set loss: instead"),
        ("use_vllm", "set rollouts: instead"),
        ("gradient_accumulation_steps", "prompts_per_step"),
        ("temperature", "set sampling:"),
        ("logging_steps", "every step has its row"),
        ("learning_rat", "did you mean 'learning_rate'"),
    ],
)
def test_fields_that_are_decided_here(policy: Path, tmp_path: Path, field: str, match: str):
    refused(policy, tmp_path, match, trainer={field: 1})


@pytest.mark.parametrize(("given", "seconds"), [({}, 4 * 3600), ({"ddp_timeout": 60}, 60)])
def test_a_process_waits_for_the_others_rollouts(
    policy: Path, tmp_path: Path, given: dict[str, int], seconds: int
):
    recipe = make_recipe(policy, tmp_path, trainer=given)
    assert grpo_arguments(recipe, out=tmp_path).ddp_timeout == seconds


def test_steps_that_end_inside_a_batch(policy: Path, tmp_path: Path):
    keys: dict[str, Any] = {"loss": {"num_iterations": 3}}
    trainer = {"per_device_train_batch_size": 8, "max_steps": 4}
    refused(policy, tmp_path, r"max_steps 4 ends inside .* multiple of 3", trainer=trainer, **keys)
    trainer |= {"max_steps": 3, "save_steps": 2}
    refused(policy, tmp_path, r"save_steps 2 ends inside", trainer=trainer, **keys)


@pytest.mark.parametrize(
    ("limits", "keys", "match"),
    [
        ({2: 4}, {}, "begins with 1"),
        ({1: 65}, {}, "65 is never reached"),
        ({1: 4, 4: 8}, {}, "at batch 4 of 3"),
        ({1: 8}, {"rollouts": {"engine": "vllm_colocate", "max_length": 8}}, "raise max_length"),
    ],
)
def test_a_schedule_of_completion_limits_that_cannot_be(
    policy: Path, tmp_path: Path, limits: dict[int, int], keys: dict[str, Any], match: str
):
    schedule = [{"from_batch": batch, "tokens": tokens} for batch, tokens in limits.items()]
    sampling = {"max_tokens": 8, "max_completion": schedule}
    refused(policy, tmp_path, match, sampling=sampling, **keys)


def test_prompts_that_are_too_few_twice_there_or_too_long(policy: Path, tmp_path: Path):
    refused(
        policy, tmp_path, r"3 batches × 6 prompts draw 18; there are 8 .*max_epochs: 3", PROMPTS[:8]
    )
    refused(policy, tmp_path, "there are no prompts", [])
    twice = [*PROMPTS[:-1], PROMPTS[0]]
    refused(policy, tmp_path, "two prompts are called 'prompt-0'", twice)
    long = replace(PROMPTS[3], messages=(Message("user", "w5 " * 250),))
    with_long = [*PROMPTS[:3], long, *PROMPTS[4:]]
    refused(policy, tmp_path, r"'prompt-3' has 253 tokens; .* at most 3$", with_long)


def test_tools_that_nobody_runs(policy: Path, tmp_path: Path):
    tool = replace(PROMPTS[3], tools="[]", environment="python")
    refused(policy, tmp_path, "'prompt-3' names the environment 'python'", [tool, *PROMPTS[4:]])


def test_what_a_recipe_cannot_mean(tmp_path: Path):
    def raw(**keys: Any) -> dict[str, Any]:
        return raw_recipe(Path("policy"), tmp_path, **keys)

    cases = {
        "training starts from a policy": raw(model={"config": {}}),
        "adapter.dropout must be 0": raw(adapter={"preset": "attention", "dropout": 0.1}),
    }
    for match, given in cases.items():
        with pytest.raises(ConfigError, match=match):
            validate(given, GroupTraining, where="test")


def test_samples_of_a_setting_mean_nothing_in_rlhf(tmp_path: Path):
    judge = {"backend": {"kind": "transformers"}, "checkpoint": "judge"}
    raw = raw_recipe(Path("policy"), tmp_path) | {
        "prompts": [{"name": "a", "format": "chat", "path": "a.jsonl"}],
        "settings": [{"name": "rlhf", "n": 4}],
        "judge": {"models": [judge]},
    }
    with pytest.raises(ConfigError, match="every prompt has num_generations: rollouts"):
        validate(raw, RlhfConfig, where="test")
    raw["settings"] = [{"name": "rlhf"}]
    assert validate(raw, RlhfConfig, where="test").num_generations == 4


def test_another_reward_or_other_prompts_are_another_run(policy: Path, tmp_path: Path):
    recipe = make_recipe(policy, tmp_path / "out")
    GroupStage(recipe, prompts=PROMPTS, reward=Scripted()).open()
    other = Scripted(identity={"reward": "another"})
    with pytest.raises(ConfigError, match=r"differ in: reward\.reward"):
        GroupStage(recipe, prompts=PROMPTS, reward=other).open()
    changed: list[Prompt] = [replace(PROMPTS[0], thinking=True), *PROMPTS[1:]]
    with pytest.raises(ConfigError, match="differ in: prompts_digest"):
        GroupStage(recipe, prompts=changed, reward=Scripted()).open()
    stricter = make_recipe(policy, tmp_path / "out", loss={"overlong": "train", "kl": 0.1})
    with pytest.raises(ConfigError, match=r"differ in: loss\.kl"):
        GroupStage(stricter, prompts=PROMPTS, reward=Scripted()).open()
