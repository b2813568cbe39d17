"""Recipes and prompts that cannot mean anything, each with a message that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.load import validate
from posttrain.config.rlhf import RlhfConfig
from posttrain.errors import ConfigError, DataError
from posttrain.records import Message
from posttrain.rollouts import Prompt
from posttrain.training.rl.stage import GroupStage, grpo_arguments
from tests.training.rl.policy import Scripted, make_prompts, make_recipe, raw_recipe, start

PROMPTS = make_prompts(24)
LONG = replace(PROMPTS[3], messages=(Message("user", "w5 " * 250),))
TOOL = replace(PROMPTS[3], tools="[]", environment="python")
ENDS: dict[str, Any] = {"loss": {"num_iterations": 3}}


def limits(**tokens: int) -> dict[str, Any]:
    """`max_completion` by batch: `limits(b1=4, b4=8)`."""
    schedule = [{"from_batch": int(batch[1:]), "tokens": n} for batch, n in tokens.items()]
    return {"sampling": {"max_tokens": 8, "max_completion": schedule}}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"trainer": {"beta": 1}}, "set loss: instead"),
        ({"trainer": {"gradient_accumulation_steps": 1}}, "prompts_per_step"),
        ({"trainer": {"max_steps": 4}, **ENDS}, r"max_steps 4 ends inside .* multiple of 3"),
        ({"trainer": {"save_steps": 2}, **ENDS}, "save_steps 2 ends inside"),
        (limits(b2=4), "begins with 1"),
        (limits(b1=65), "65 is never reached"),
        (limits(b1=4, b4=8), "at batch 4 of 3"),
        (
            limits(b1=8) | {"rollouts": {"engine": "vllm_colocate", "max_length": 8}},
            "raise max_length",
        ),
    ],
)
def test_recipes_that_mean_nothing(policy: Path, keys: dict[str, Any], match: str):
    with pytest.raises(ConfigError, match=match):
        grpo_arguments(make_recipe(policy, Path("out"), **keys), out=Path("out"))


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        (PROMPTS[:8], r"3 batches × 6 prompts draw 18; there are 8 .*max_epochs: 3"),
        ([], "there are no prompts"),
        ([*PROMPTS[:-1], PROMPTS[0]], "two prompts are called 'prompt-0'"),
        ([*PROMPTS[:3], LONG, *PROMPTS[4:]], r"'prompt-3' has 253 tokens; .* at most 3$"),
        ([TOOL, *PROMPTS[4:]], "'prompt-3' names the environment 'python'"),
    ],
)
def test_prompts_that_cannot_be_rolled_out(
    policy: Path, tmp_path: Path, prompts: Sequence[Prompt], match: str
):
    with pytest.raises((ConfigError, DataError), match=match):
        start(make_recipe(policy, tmp_path), prompts, Scripted())


@pytest.mark.parametrize(("given", "seconds"), [({}, 4 * 3600), ({"ddp_timeout": 60}, 60)])
def test_a_process_waits_for_the_others_rollouts(
    policy: Path, tmp_path: Path, given: dict[str, int], seconds: int
):
    recipe = make_recipe(policy, tmp_path, trainer=given)
    assert grpo_arguments(recipe, out=tmp_path).ddp_timeout == seconds


def test_samples_of_a_setting_mean_nothing_in_rlhf(tmp_path: Path):
    raw = raw_recipe(Path("policy"), tmp_path) | {
        "prompts": [{"name": "a", "format": "chat", "path": "a.jsonl"}],
        "settings": [{"name": "rlhf", "n": 4}],
        "judge": {"models": [{"backend": {"kind": "transformers"}, "checkpoint": "judge"}]},
    }
    with pytest.raises(ConfigError, match="every prompt has num_generations: rollouts"):
        validate(raw, RlhfConfig, where="test")
    raw["settings"] = [{"name": "rlhf"}]
    assert validate(raw, RlhfConfig, where="test").num_generations == 4


def test_another_reward_or_other_prompts_are_another_run(policy: Path, tmp_path: Path):
    def opened(prompts: Sequence[Prompt] = PROMPTS, reward: str = "scripted", **keys: Any) -> None:
        recipe = make_recipe(policy, tmp_path / "out", **keys)
        scripted = Scripted(identity={"reward": reward})
        GroupStage(recipe, prompts=prompts, reward=scripted).open()

    opened()
    with pytest.raises(ConfigError, match=r"differ in: reward\.reward"):
        opened(reward="another")
    with pytest.raises(ConfigError, match="differ in: prompts_digest"):
        opened([replace(PROMPTS[0], thinking=True), *PROMPTS[1:]])
    with pytest.raises(ConfigError, match=r"differ in: loss\.kl"):
        opened(loss={"overlong": "train", "kl": 0.1})


def test_a_prompt_that_spells_a_token_holds_it(policy: Path, tmp_path: Path):
    spelling = replace(PROMPTS[3], messages=(Message("user", "what is <|spare|> ?"),))
    recipe = make_recipe(policy, tmp_path / "out")
    stage = GroupStage(recipe, prompts=[*PROMPTS[:3], spelling], reward=Scripted())
    assert stage.data_contains("<|spare|>", 9)
    assert not stage.data_contains("<|other|>", 8)
