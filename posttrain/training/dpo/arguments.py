"""A DPO recipe → the installed TRL's `DPOConfig`; accumulation follows from the batch.

batch: 128, per_device_train_batch_size: 8, 2 processes   → gradient_accumulation_steps=8
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trl.trainer.dpo_config import DPOConfig

from posttrain.config.dpo import OWNED_TRAINER_FIELDS, DpoConfig
from posttrain.errors import ConfigError
from posttrain.training.arguments import check_trainer_fields, make_arguments

# the paper's, Appendix C
LEARNING_RATE = 3e-6
MAX_STEPS = 50
# TRL's
MICRO_BATCH = 8


def dpo_arguments(
    recipe: DpoConfig, *, out: Path, env: Mapping[str, str] = os.environ
) -> DPOConfig:
    """The trainer's arguments.

    Args:
        recipe: the resolved recipe.
        out: where resume checkpoints go.
        env: the process environment, where the launcher leaves processes and precision.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, a batch that does not divide.
    """
    check_trainer_fields(recipe.trainer, DPOConfig, owned=OWNED_TRAINER_FIELDS)
    micro = recipe.trainer.get("per_device_train_batch_size", MICRO_BATCH)
    processes = int(env.get("WORLD_SIZE", "1"))
    args = make_arguments(
        DPOConfig,
        recipe,
        env=env,
        owned=OWNED_TRAINER_FIELDS,
        defaults={
            "learning_rate": LEARNING_RATE,
            "max_steps": MAX_STEPS,
            "per_device_train_batch_size": MICRO_BATCH,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 25,
        },
        decided={
            "output_dir": str(out),
            "seed": recipe.seed,
            "data_seed": recipe.seed,
            "gradient_accumulation_steps": accumulation(recipe.batch, micro, processes),
            "beta": recipe.loss.beta,
            "loss_type": ["sigmoid", "sft"],
            "loss_weights": [recipe.loss.preference_weight, recipe.loss.sft_weight],
            "max_length": None,
            # the trainer then loads no second model; the log-probabilities are ours
            "precompute_ref_log_probs": True,
            "remove_unused_columns": False,
            # its row holds the loss before any update
            "logging_first_step": True,
        },
    )
    if args.max_steps <= 0:
        raise ConfigError("trainer.max_steps: a DPO run is counted in steps; give it")
    if args.save_strategy in ("best", "epoch"):
        raise ConfigError(
            f"trainer.save_strategy {args.save_strategy}: a run is one stretch of steps; "
            "set steps (with save_steps), or no"
        )
    return args


def accumulation(batch: int, micro: int, processes: int) -> int:
    """Micro-batches an optimiser step on each process.

    Args:
        batch: pairs an optimiser step.
        micro: pairs a micro-batch on one process.
        processes: that run.

    Raises:
        ConfigError: they do not divide; with the micro-batches that do.
    """
    if batch % (micro * processes):
        fitting = [n for n in range(1, batch // processes + 1) if batch % (n * processes) == 0]
        hint = (
            f"trainer.per_device_train_batch_size may be {', '.join(map(str, fitting))}"
            if fitting
            else f"batch must be a multiple of {processes}"
        )
        raise ConfigError(
            f"batch {batch} is no multiple of {micro} pairs × {processes} process(es); {hint}"
        )
    return batch // (micro * processes)
