"""A recipe's `trainer:` block → the installed TRL's config, checked field by field."""

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
from posttrain.training.launch import check_precision

LIGER_MODELS = ("llama", "qwen2", "qwen3")
REPORTERS = ("tensorboard", "wandb", "trackio")
# the paper's for DPO (Appendix C), and that of the reference code's RLVR recipe; the paper gives
# none for RLHF and for the judge
LEARNING_RATE = 3e-6
MICRO_BATCH = 8  # TRL's
# fields of which 0 or less makes no run, but for max_steps: -1, which means whole epochs
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
_READ_AS_FALSE = (
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
    """A TRL config from a recipe's `trainer:` block.

    Args:
        out: where resume checkpoints go.
        defaults: of this stage, where the recipe says nothing.
        decided: the values of owned fields.
        env: where the launcher leaves what it was asked for.
        counted_in_steps: a run is one stretch of optimiser steps, without epochs.

    Raises:
        ConfigError: a value that the trainer refuses, an impossible combination, or another
            precision than the launcher's.
    """
    check_values(recipe.trainer, kind)
    shared: dict[str, Any] = {
        **DEFAULTS,
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "use_cpu": not torch.cuda.is_available(),
        # for trackers: transformers would name a run after nothing, or after its resume folder
        "run_name": "/".join(Path(recipe.out).absolute().parts[-2:]),
        # pinning is for GPUs; on CPU it only warns
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    # TRL 1.16 has no other field for it yet, so the advice does not help the user
    warnings.filterwarnings("ignore", message="`gradient_checkpointing.*is deprecated")
    fixed = {"output_dir": str(out), "seed": recipe.seed, "data_seed": recipe.seed, **decided}
    values = {**shared, **defaults, **recipe.trainer, **fixed}
    try:
        args: Any = kind(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(
            f"trainer: the installed trl {trl.__version__} refuses this: {error}"
        ) from error
    except DistNetworkError as error:
        # the main process listens on the port that the launcher names, the others connect to it
        raise ConfigError(
            f"the processes cannot meet at {env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')} "
            f"({str(error).splitlines()[0]}): another run may hold the port; give this one another "
            "with posttrain launch --main_process_port, or in MASTER_PORT"
        ) from error
    _check_combinations(args)
    _check_liger(args, recipe.model)
    if counted_in_steps and args.max_steps <= 0:
        raise ConfigError("trainer.max_steps: a run is counted in steps; give it")
    if counted_in_steps and args.save_strategy in ("best", "epoch"):
        raise ConfigError(
            f"trainer.save_strategy {args.save_strategy}: a run is one stretch of steps; "
            "set steps (with save_steps), or no"
        )
    check_precision(args, recipe.model, recipe.adapter, env)
    return args


def batch_layout(
    trainer: Mapping[str, Any], kind: type[Any], env: Mapping[str, str]
) -> tuple[int, int]:
    """Rows of a micro-batch on one process, and the processes that the launcher starts."""
    check_values(trainer, kind)
    micro = trainer.get("per_device_train_batch_size", MICRO_BATCH)
    return micro, int(env.get("WORLD_SIZE", "1"))


def check_values(trainer: Mapping[str, Any], kind: type[Any]) -> None:
    """Raises ConfigError: a value that is not of its field's type, or makes no run. A dataclass
    takes any: `learning_rate: fast` would fail when training starts."""
    types = typing.get_type_hints(kind)
    for key, value in trainer.items():
        try:
            pydantic.TypeAdapter(types[key], config=_ANY_TYPE).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            wanted = " or ".join(dict.fromkeys(item["msg"] for item in error.errors()))
            word = _READ_AS_FALSE.format(key=key) if value is False else ""
            raise ConfigError(f"trainer.{key}: {wanted}, found {value!r}{word}") from None
        whole_epochs = (key, value) == ("max_steps", -1)
        if key in POSITIVE and value is not None and not value > 0 and not whole_epochs:
            raise ConfigError(f"trainer.{key}: must be above 0, found {value!r}")
    if trainer.get("learning_rate", 0) < 0:
        raise ConfigError(
            f"trainer.learning_rate: must not be negative, found {trainer['learning_rate']}"
        )


def _check_liger(args: Any, model: ModelConfig) -> None:
    """TRL 1.16 applies Liger's kernels of layers alone (norms, rotary embedding, SwiGLU): the fused
    loss would replace the forward pass that returns log-probabilities."""
    if not args.use_liger_kernel:
        return
    read = model.config
    if read is None:
        assert model.path is not None, "a recipe has one of them"
        try:
            read, _ = PreTrainedConfig.get_config_dict(model.path, revision=model.revision)
        except OSError:
            return  # loading the model names what is wrong with its path
    why = None
    if read["model_type"] not in LIGER_MODELS:
        why = (
            f"its losses were compared with the model's own for {', '.join(LIGER_MODELS)}, not for "
            f"{read['model_type']}; where Liger has no kernels for a model it applies none and "
            "says nothing"
        )
    elif (args.liger_kernel_config or {}).get("fused_linear_cross_entropy"):
        why = "its fused loss would replace the one over the whole batch; leave it out"
    elif find_spec("liger_kernel") is None:
        why = "install it first (pip install liger-kernel)"
    elif args.device.type != "cuda":
        why = "its kernels run on GPUs alone"
    if why is not None:
        raise ConfigError(f"trainer.use_liger_kernel: {why}")


def _check_combinations(args: Any) -> None:
    if getattr(args, "activation_offloading", False) and not torch.cuda.is_available():
        raise ConfigError("trainer.activation_offloading needs an accelerator")
    # transformers has parsed it by now
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
