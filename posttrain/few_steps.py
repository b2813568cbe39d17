"""Recipes at a few steps each, in directories of their own: whether a user's stages still run.

What is cut are steps, prompts, completions and their tokens; what is kept is all that decides
whether a recipe fits its data, its model and its stage. Building data is not cut: shares, filters
and held-out rows would then be those of other data. All numbers are ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.chain import ChainStage
from posttrain.config.recipe_files import recipe_text
from posttrain.config.stages import StageStep

STEPS = 2
PROMPTS = 8
COMPLETIONS = 4
TOKENS = 64
PAIRS = 4  # of a step of DPO, and judged
# so that so few prompts and pairs are enough for the steps
_EPOCHS = 100
# a model of two steps says little that a judge can read, or that a verifier passes
_UNGUARDED = {"truncated": {}, "zero_variance": {}, "unscored": {}}
_MOST_FAILURES = 0.99


def write_few_steps(stages: Sequence[ChainStage], folder: Path) -> list[StageStep]:
    """Write each stage's recipe at a few steps into a folder, its output beside it.

    Returns:
        The steps of the chain of these recipes.
    """
    outs = {os.path.normpath(stage.out): f"{folder / stage.step.title}" for stage in stages}
    steps: list[StageStep] = []
    for stage in stages:
        recipe = _moved(few_steps(stage.recipe), outs)
        path = folder / "recipes" / f"{stage.step.title}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recipe_text(recipe), "utf-8")
        change = {"recipe": f"{path.resolve()}", "overrides": (), "launch": None}
        steps.append(stage.step.model_copy(update=change))
    return steps


def few_steps(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved recipe of any stage with less to do."""
    small = dict(recipe)
    if "trainer" in small:
        small["trainer"] = _few_trainer_steps(small["trainer"])
        small["launch"] = {}
    if "prompts_per_step" in small:  # training on groups of rollouts
        small["prompts_per_step"] = min(small["prompts_per_step"], PAIRS)
        small["num_generations"] = min(small["num_generations"], COMPLETIONS)
        rollouts = small["prompts_per_step"] * small["num_generations"]
        small["trainer"]["per_device_train_batch_size"] = rollouts
        small["guard"] = _UNGUARDED
        small["loss"] = {**small["loss"], "overlong": "train", "num_iterations": 1}
        small["loss"]["force_on_policy_ratio"] = False
    if "batch" in small:  # pairs of DPO
        small["batch"] = min(small["batch"], PAIRS)
        small["trainer"]["per_device_train_batch_size"] = small["batch"]
    if "max_epochs" in small:
        small["max_epochs"] = _EPOCHS
    if "keep_epochs" in small:
        small["keep_epochs"] = []
    if "drop_unsolved" in small:
        small["drop_unsolved"] = False
    if isinstance(small.get("prompts"), list):
        small["prompts"] = [_at_most(source, "count", PROMPTS) for source in small["prompts"]]
    elif "prompts" in small:  # of a win rate: how many
        small = _at_most(small, "prompts", PROMPTS)
    if "pairs" in small:
        small = _at_most(small, "pairs", PAIRS)
    if "n" in small:
        small = _at_most(small, "n", COMPLETIONS)
    if small.get("settings"):
        small["settings"] = [_few_of_setting(setting) for setting in small["settings"]]
    if "sampling" in small:
        small["sampling"] = _few_tokens(small["sampling"])
    if isinstance(small.get("judge"), dict) and "sampling" in small["judge"]:
        judge = {**small["judge"], "sampling": _few_tokens(small["judge"]["sampling"])}
        if "max_failure_rate" in judge:
            judge["max_failure_rate"] = _MOST_FAILURES
        small["judge"] = judge
    if "kv_cache" in small:  # quantisation
        small = _at_most(_at_most(small, "samples", PROMPTS), "measured", PROMPTS)
    if "make" in small:  # synthesis: what is made, and by which models
        small = _few_synthesised(small)
    return small


def _few_synthesised(recipe: Mapping[str, Any]) -> dict[str, Any]:
    few = _at_most(recipe, "limit", PROMPTS)
    few["make"] = dict(few["make"])
    for key in ("n", "most"):
        if key in few["make"]:
            few["make"] = _at_most(few["make"], key, COMPLETIONS)
    few["models"] = {
        role: [{**model, "sampling": _few_tokens(model["sampling"])} for model in models]
        for role, models in few["models"].items()
    }
    return few


def _few_trainer_steps(trainer: Mapping[str, Any]) -> dict[str, Any]:
    few = {key: value for key, value in trainer.items() if key != "warmup_ratio"}
    few["max_steps"] = min(trainer.get("max_steps") or STEPS, STEPS)
    if few["max_steps"] < 1:  # transformers' word for "by epochs"
        few["max_steps"] = STEPS
    few["warmup_steps"] = 0
    return few


def _few_of_setting(setting: Mapping[str, Any]) -> dict[str, Any]:
    few = dict(setting)
    if few.get("n") is not None:
        few["n"] = min(few["n"], COMPLETIONS)
    if "max_tokens" in few.get("sampling", ()):
        few["sampling"] = _few_tokens(few["sampling"])
    return few


def _few_tokens(sampling: Mapping[str, Any]) -> dict[str, Any]:
    few = _at_most(sampling, "max_tokens", TOKENS)
    if few.get("max_total_tokens") is not None:
        few["max_total_tokens"] = min(few["max_total_tokens"], TOKENS)
    if few.get("max_completion") is not None:  # a schedule over batches that are not reached
        few["max_completion"] = None
    return few


def _at_most(block: Mapping[str, Any], key: str, most: int) -> dict[str, Any]:
    """The block with a number that is no larger; null stands for all."""
    value = block.get(key)
    return {**block, key: most if value is None else min(value, most)}


def _moved(value: Any, outs: Mapping[str, str]) -> Any:
    """A tree of plain values in which other directories take the place of outputs."""
    if isinstance(value, dict):
        return {key: _moved(inner, outs) for key, inner in value.items()}
    if isinstance(value, list):
        return [_moved(inner, outs) for inner in value]
    if not isinstance(value, str):
        return value
    path = os.path.normpath(value)
    for out, target in outs.items():
        suffix = path.removeprefix(out)
        if path.startswith(out) and suffix[:1] in ("", os.sep, ":"):
            return target + suffix
    return value
