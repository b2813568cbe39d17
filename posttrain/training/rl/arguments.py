"""A recipe of group-relative training → the installed TRL's `GRPOConfig`.

prompts_per_step: 128, num_generations: 16, micro-batch 8, 2 processes
→ gradient_accumulation_steps=128
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trl.trainer.grpo_config import GRPOConfig

from posttrain.config.grpo import GroupTraining
from posttrain.config.grpo_owned import OWNED_TRAINER_FIELDS
from posttrain.errors import ConfigError
from posttrain.training.arguments import check_trainer_fields, make_arguments
from posttrain.training.rl.order import accumulation

# of the reference code's RLVR recipe; the paper gives none for RLHF and for the judge
LEARNING_RATE = 3e-6
WARMUP_STEPS = 10
# TRL's
MICRO_BATCH = 8


def grpo_arguments(
    recipe: GroupTraining, *, out: Path, env: Mapping[str, str] = os.environ
) -> GRPOConfig:
    """The trainer's arguments.

    Args:
        recipe: the resolved recipe.
        out: where resume checkpoints go.
        env: the process environment, where the launcher leaves processes and precision.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, groups that would be split.
    """
    check_trainer_fields(recipe.trainer, GRPOConfig, owned=OWNED_TRAINER_FIELDS)
    micro = recipe.trainer.get("per_device_train_batch_size", MICRO_BATCH)
    revision = recipe.model.revision
    steps = accumulation(
        per_batch=recipe.prompts_per_step,
        num_generations=recipe.num_generations,
        num_iterations=recipe.loss.num_iterations,
        micro=micro,
        processes=int(env.get("WORLD_SIZE", "1")),
    )
    args = make_arguments(
        GRPOConfig,
        recipe,
        env=env,
        owned=OWNED_TRAINER_FIELDS,
        defaults={
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": WARMUP_STEPS,
            "per_device_train_batch_size": MICRO_BATCH,
            "save_strategy": "steps",
            "save_steps": 10 * recipe.loss.num_iterations,
        },
        decided={
            "output_dir": str(out),
            "seed": recipe.seed,
            "data_seed": recipe.seed,
            "gradient_accumulation_steps": steps,
            "num_generations": recipe.num_generations,
            "max_completion_length": recipe.sampling.max_tokens,
            "temperature": recipe.sampling.temperature,
            "beta": recipe.loss.kl,
            # the reference is loaded from where the policy was
            "model_init_kwargs": {"revision": revision} if recipe.loss.kl and revision else None,
            "loss_type": "dapo",
            "epsilon": recipe.loss.clip_low,
            "epsilon_high": recipe.loss.clip_high,
            "disable_dropout": True,
            # TRL's term fails on sigmoid routers
            "router_aux_loss_coef": 0.0,
            "pad_to_multiple_of": None,
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
        },
    )
    _check_steps(args, recipe.loss.num_iterations)
    return args


def _check_steps(args: GRPOConfig, num_iterations: int) -> None:
    if args.max_steps <= 0:
        raise ConfigError("trainer.max_steps: a run is counted in optimiser steps; give it")
    if args.save_strategy in ("best", "epoch"):
        raise ConfigError(
            f"trainer.save_strategy {args.save_strategy}: a run is one stretch of steps; "
            "set steps (with save_steps), or no"
        )
    for name in ("max_steps", "save_steps"):
        value = getattr(args, name)
        if value % num_iterations:
            raise ConfigError(
                f"trainer.{name} {value:g} ends inside a batch of rollouts, which has "
                f"{num_iterations} updates: set it to a multiple of {num_iterations}"
            )
