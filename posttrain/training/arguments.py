"""Arguments of the trainer: a recipe's `trainer:` block → the installed TRL's config, checked."""

from __future__ import annotations

import os
import typing
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import torch
import trl
from torch.distributed import DistNetworkError
from transformers import PreTrainedConfig

from posttrain.config.sft import DEFAULTS, ModelConfig, TrainingRecipe
from posttrain.errors import ConfigError
from posttrain.training.launch import check_parallelism, check_precision

# model types whose losses with Liger's kernels were compared with those without
LIGER_MODELS = ("llama", "qwen2", "qwen3")
REPORTERS = ("tensorboard", "wandb", "trackio")
# DPO's in the paper (Appendix C), and RLVR's in the reference code; the paper names none for RLHF
# and for the judge
LEARNING_RATE = 3e-6
# TRL's default of per_device_train_batch_size
MICRO_BATCH = 8
# fields that have to be above 0, but for max_steps: -1, which means whole epochs
POSITIVE = (
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "logging_steps",
    "save_steps",
    "eval_steps",
)
_YAML_FALSE_HINT = (
    "; YAML reads a bare no or off as false: quote the word, as in {key}: 'no' (in a shell, "
    """trainer.{key}="'no'")"""
)
T = TypeVar("T")
_ANY_TYPE = pydantic.ConfigDict(arbitrary_types_allowed=True)


def make_arguments(
    kind: type[T],
    recipe: TrainingRecipe,
    *,
    out: Path,
    defaults: Mapping[str, Any],
    decided: Mapping[str, Any],
    env: Mapping[str, str] = os.environ,
    counted_in_steps: bool = False,
) -> T:
    """Build a TRL config from a recipe's `trainer:` block.

    Args:
        out: folder of resume checkpoints.
        defaults: values of this stage for fields that the recipe does not set.
        decided: values of fields that a recipe may not set.
        env: environment, in which the launcher passes on its settings.
        counted_in_steps: the run is one stretch of optimiser steps, without epochs.

    Raises:
        ConfigError: a value that the trainer refuses, an impossible combination, or another
            precision than the launcher's.
    """
    check_values(recipe.trainer, kind)
    shared: dict[str, Any] = {
        **DEFAULTS,
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "use_cpu": not torch.cuda.is_available(),
        # for trackers: transformers would give no name, or that of the resume folder
        "run_name": "/".join(Path(recipe.out).absolute().parts[-2:]),
        # pinned memory is for GPUs; on a CPU it only causes a warning
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    # TRL 1.16 has no other field for it yet, so the warning does not help the user
    warnings.filterwarnings("ignore", message="`gradient_checkpointing.*is deprecated")
    seeds = {"seed": recipe.seed, "data_seed": recipe.seed}
    # later entries win: the recipe over our defaults, and the fields that it may not set over all
    values = {
        **shared,
        **defaults,
        **recipe.trainer,
        "output_dir": str(out),
        **seeds,
        **decided,
    }
    try:
        args: Any = kind(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(
            f"trainer: the installed trl {trl.__version__} refuses this: {error}"
        ) from error
    except DistNetworkError as error:
        # the main process listens on the launcher's port, to which the others connect
        raise ConfigError(
            f"the processes cannot meet at {env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')} "
            f"({str(error).splitlines()[0]}): another run may hold the port; give this one another "
            "with posttrain launch --main_process_port, or in MASTER_PORT"
        ) from error
    _check_combinations(args)
    _check_liger(args, recipe.model)
    if counted_in_steps and args.max_steps <= 0:
        raise ConfigError("trainer.max_steps: a run is counted in steps, so set it")
    if counted_in_steps and args.save_strategy in ("best", "epoch"):
        raise ConfigError(
            f"trainer.save_strategy {args.save_strategy}: a run is one stretch of steps; "
            "set steps (with save_steps), or no"
        )
    check_precision(args, recipe.model, recipe.adapter, env)
    check_parallelism(recipe.method, args.device.type, env)
    return args


def batch_layout(
    trainer: Mapping[str, Any], kind: type[Any], env: Mapping[str, str]
) -> tuple[int, int]:
    """Rows per micro-batch on one process, and number of processes that the launcher starts."""
    check_values(trainer, kind)
    micro = trainer.get("per_device_train_batch_size", MICRO_BATCH)
    return micro, int(env.get("WORLD_SIZE", "1"))


def check_values(trainer: Mapping[str, Any], kind: type[Any]) -> None:
    """Check the values of a `trainer:` block against the types of the fields of its config.

    The config is a dataclass, which accepts anything: `learning_rate: fast` would fail only when
    training starts.

    Raises:
        ConfigError: a value that is not of its field's type, or out of its range.
    """
    types = typing.get_type_hints(kind)
    for key, value in trainer.items():
        try:
            pydantic.TypeAdapter(types[key], config=_ANY_TYPE).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            # a union of types names a reason for each; several may be the same
            reasons = dict.fromkeys(problem["msg"] for problem in error.errors())
            hint = _YAML_FALSE_HINT.format(key=key) if value is False else ""
            raise ConfigError(
                f"trainer.{key}: {' or '.join(reasons)}, found {value!r}{hint}"
            ) from None
        epochs_decide = key == "max_steps" and value == -1
        if key in POSITIVE and value is not None and not value > 0 and not epochs_decide:
            raise ConfigError(f"trainer.{key}: must be above 0, found {value!r}")
    if trainer.get("learning_rate", 0) < 0:
        raise ConfigError(
            f"trainer.learning_rate: must not be negative, found {trainer['learning_rate']}"
        )


def _check_liger(args: Any, model: ModelConfig) -> None:
    """Refuse Liger's kernels where they would change the loss or would not run.

    With TRL 1.16 only kernels of layers apply (norms, rotary embedding, SwiGLU): the fused loss
    would replace the forward pass that returns log-probabilities.
    """
    if not args.use_liger_kernel:
        return
    model_config = model.config
    if model_config is None:
        assert model.path is not None, "a recipe has one of them"
        try:
            model_config, _ = PreTrainedConfig.get_config_dict(model.path, revision=model.revision)
        except OSError:
            return  # loading the model will name what is wrong with its path
    problem = None
    if model_config["model_type"] not in LIGER_MODELS:
        problem = (
            f"its losses were compared with the model's own for {', '.join(LIGER_MODELS)}, not for "
            f"{model_config['model_type']}; where Liger has no kernels for a model it applies none "
            "and says nothing"
        )
    elif (args.liger_kernel_config or {}).get("fused_linear_cross_entropy"):
        problem = "its fused loss would replace the one over the whole batch; leave it out"
    elif find_spec("liger_kernel") is None:
        problem = "install it first (pip install liger-kernel)"
    elif args.device.type != "cuda":
        problem = "its kernels run on GPUs only"
    if problem is not None:
        raise ConfigError(f"trainer.use_liger_kernel: {problem}")


def _check_combinations(args: Any) -> None:
    """Refuse settings that do not work here or that would change the order of the rows."""
    if getattr(args, "activation_offloading", False) and not torch.cuda.is_available():
        raise ConfigError("trainer.activation_offloading needs an accelerator")
    # a mapping in the recipe; transformers has parsed it by now
    accelerator = args.accelerator_config
    if accelerator.split_batches or accelerator.dispatch_batches:
        raise ConfigError(
            "trainer.accelerator_config: split_batches and dispatch_batches would deal rows out "
            "of their order; leave them unset"
        )
    for name in args.report_to or ():
        if name not in REPORTERS:
            raise ConfigError(
                f"trainer.report_to {name!r} is not known here; take one of {', '.join(REPORTERS)}"
            )
        if find_spec(name) is None:
            raise ConfigError(f"trainer.report_to {name}: install it first (pip install {name})")
