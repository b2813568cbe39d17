"""What names a run of group-relative training: recipe, prompts, policy and reward.

stage = open_stage(recipe, prompts=prompts, reward=reward)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posttrain.artifacts import StageDir, digest_of
from posttrain.config.grpo import GroupTraining
from posttrain.group_rewards import GroupReward
from posttrain.rollouts import Prompt
from posttrain.sampling.generate import prompt_lines
from posttrain.training.stage import KIND, model_parent

_INPUTS = ("data", "prompts", "settings", "judge")
# how a server is reached decides nothing about what it is asked
_REACHING = {"url", "concurrency", "timeout", "retries", "api_key_env"}


def stage_config(
    recipe: GroupTraining, *, prompts: Sequence[Prompt], reward: GroupReward
) -> dict[str, Any]:
    """What names a run: the recipe, prompts and policy by digest, and what the reward is."""
    # the guard's limits may change when a stopped run goes on; sources are in the prompts' digest
    outside = {"out", "guard", *(name for name in _INPUTS if name in type(recipe).model_fields)}
    server = True if recipe.sampling.server is None else _REACHING
    left_out: Any = dict.fromkeys(outside, True) | {"sampling": {"server": server}}
    config = recipe.model_dump(mode="json", exclude=left_out)
    config["prompts_digest"] = digest_of(prompt_lines(prompts))
    config["reward"] = dict(reward.identity)
    if (parent := model_parent(recipe.model)) is not None:
        config["model"]["path"] = parent.digest
    return config


def open_stage(
    recipe: GroupTraining, *, prompts: Sequence[Prompt], reward: GroupReward, claim: bool = True
) -> StageDir:
    """Claim the output directory, or only check that it could be had.

    Raises:
        ConfigError: it belongs to another config.
    """
    config = stage_config(recipe, prompts=prompts, reward=reward)
    return StageDir.open(recipe.out, kind=KIND, config=config, claim=claim)
