"""Checks of the processes, sharding and precision that the launcher has really started.

accelerate drops any of them silently. A precision in which the weights would not move is refused
too.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from posttrain.config.sft import AdapterConfig, LaunchConfig, ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.inference import emulates_bfloat16

# kinds of sharding in which no process holds all weights
SPLITS_WEIGHTS = ("zero3", "fsdp2")
# types of devices for which PyTorch (2.13) has kernels of ring attention
RING_DEVICES = ("cuda",)
TWO_CPU_PROCESSES = "posttrain launch --config_file accelerate/cpu-2 sft --config …"


@dataclass(frozen=True, slots=True)
class Launched:
    """Layout of a run that has started.

    Attributes:
        world_size: Number of processes.
        sharding: "none", "zero2", "zero3" or "fsdp2".
        device: Name of the GPU, or "cpu".
        precision: "fp32", "bf16" or "fp16".
        context: Number of processes among which each sequence is split.
    """

    world_size: int
    sharding: str
    device: str
    precision: str
    context: int = 1

    @property
    def text(self) -> str:
        """Sentence for the plan."""
        text = (
            f"{self.world_size} process(es) on {self.device}, sharding {self.sharding}, "
            f"{self.precision}"
        )
        return text if self.context == 1 else f"{text}, each sequence split among {self.context}"


def read_launch(accelerator: Accelerator) -> Launched:
    """Read the layout from the accelerator that the trainer uses."""
    state: Any = accelerator.state
    device = accelerator.device
    precision = accelerator.mixed_precision
    parallelism = accelerator.parallelism_config
    sharding = "none"
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        sharding = f"zero{state.deepspeed_plugin.zero_stage}"
    elif accelerator.distributed_type == DistributedType.FSDP:
        sharding = f"fsdp{state.fsdp_plugin.fsdp_version}"
    return Launched(
        world_size=accelerator.num_processes,
        sharding=sharding,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        precision="fp32" if precision == "no" else precision,
        context=(parallelism and parallelism.cp_size) or 1,
    )


def context_processes(env: Mapping[str, str] = os.environ) -> int:
    """Number of processes among which the launcher splits each sequence; 1 if it splits none."""
    return _parallel_size(env, "CP")


def check_parallelism(method: str, device: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse the launcher's `parallelism_config` where the run would not be what one process does.

    Args:
        method: "sft", "dpo" or "grpo".
        device: type of the device, such as "cuda".

    Raises:
        ConfigError: with the reason, and what to use instead.
    """
    for name in ("TP", "SP"):
        if _parallel_size(env, name) > 1:
            raise ConfigError(
                f"the launcher's parallelism_config_{name.lower()}_size: no stage was compared "
                "with one process under it. Use --config_file accelerate/fsdp2, or fsdp2-context "
                "for sequences that no device holds"
            )
    if context_processes(env) == 1:
        return
    split = "the launcher's parallelism_config_cp_size splits each sequence among processes"
    if method != "sft":
        raise ConfigError(
            f"{split}, which sft alone can train with: pairs and rollouts lie side by side under "
            "masks that ring attention does not take, and TRL's GRPO refuses it. Use --config_file "
            "accelerate/fsdp2 or zero3"
        )
    if device not in RING_DEVICES:
        raise ConfigError(
            f"{split}: PyTorch has kernels of its ring attention for CUDA, not for {device}. Start "
            "without it: one process holds a whole sequence"
        )


def _parallel_size(env: Mapping[str, str], name: str) -> int:
    if not _is_true(env, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        return 1
    variable = f"PARALLELISM_CONFIG_{name}_SIZE"
    size = env.get(variable, "1")
    if not size.isdecimal():
        raise ConfigError(f"{variable} is {size!r}; it takes a number of processes")
    return int(size)


def requested_sharding(env: Mapping[str, str] = os.environ) -> str | None:
    """Sharding that the launcher asks for, before a trainer has read it; None: it asks for none."""
    if _is_true(env, "ACCELERATE_USE_DEEPSPEED") and "ACCELERATE_DEEPSPEED_ZERO_STAGE" in env:
        return f"zero{env['ACCELERATE_DEEPSPEED_ZERO_STAGE']}"
    if _is_true(env, "ACCELERATE_USE_FSDP"):
        return f"fsdp{env.get('FSDP_VERSION', '1')}"
    return None


def check_launch(
    requested: LaunchConfig, launched: Launched, env: Mapping[str, str] = os.environ
) -> None:
    """Refuse a run with another layout than the recipe or the launcher's config asked for.

    Args:
        requested: the recipe's `launch:` block; None in it is not checked.
        env: environment, in which accelerate passes on the settings of its config.

    Raises:
        ConfigError: naming what was requested, what runs, and a command that gives it.
    """
    if requested.world_size not in (None, launched.world_size):
        raise ConfigError(
            f"launch.world_size is {requested.world_size}, {launched.world_size} process(es) run. "
            f"On CPU, start several with: {TWO_CPU_PROCESSES}"
        )
    if requested.sharding not in (None, launched.sharding):
        file = "ddp" if requested.sharding == "none" else requested.sharding
        raise ConfigError(
            f"launch.sharding is {requested.sharding}, this run has {launched.sharding}. Start it "
            f"with posttrain launch --config_file accelerate/{file}"
        )
    launcher_sharding = requested_sharding(env)
    if launcher_sharding not in (None, launched.sharding):
        raise ConfigError(
            f"the launcher asked for {launcher_sharding}, but {launched.sharding} runs: forcing "
            "CPU drops sharding silently. Use accelerators, or --config_file accelerate/cpu-2"
        )
    # accelerate's launcher of one process sets MASTER_ADDR only when num_processes is above 1
    several_requested = "MASTER_ADDR" in env and "LOCAL_RANK" not in env
    if launched.world_size == 1 and _is_true(env, "ACCELERATE_USE_CPU") and several_requested:
        raise ConfigError(
            "the launcher asked for several CPU processes and started one (accelerate starts "
            f"them only through a distributed type). Use: {TWO_CPU_PROCESSES}"
        )


def check_device(
    args: Any,
    trainer: Mapping[str, Any],
    requested: LaunchConfig,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Refuse to train on the CPU with a recipe or a launcher's config made for GPUs.

    Args:
        trainer: the recipe's `trainer:` block; with `use_cpu` in it the user wants the CPU.
        requested: the recipe's `launch:` block.

    Raises:
        ConfigError: naming the setting that is for GPUs, and the ways out.
    """
    if requested.gpu and args.device.type == "cpu":
        raise ConfigError(
            "launch.gpu: this recipe is for a GPU, and PyTorch finds none here. For a model of 0.1 "
            "to 0.5 B parameters on a CPU take the recipes cpu/… (such as posttrain sft --config "
            "cpu/sft); launch.gpu=false with model.dtype=float32 and trainer.bf16=false runs this "
            "one all the same"
        )
    precision = env.get("ACCELERATE_MIXED_PRECISION", "no")
    cpu_requested = "use_cpu" in trainer or _is_true(env, "ACCELERATE_USE_CPU")
    if args.device.type == "cpu" and precision != "no" and not cpu_requested:
        raise ConfigError(
            f"the launcher's mixed_precision {precision!r} is for GPUs, and PyTorch finds none "
            "here: start with --config_file accelerate/cpu or accelerate/cpu-2, install a PyTorch "
            "that finds the GPU, or set trainer.use_cpu: true to train on the CPU all the same"
        )


def check_precision(
    args: Any,
    model: ModelConfig,
    adapter: AdapterConfig | None,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Refuse different precisions in launcher and recipe, and weights that would not move.

    Raises:
        ConfigError: naming both precisions, or the dtype of the weights, and what to change.
    """
    recipe_precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "no"
    launcher_precisions: dict[str, str] = {}
    # accelerate sets `no` also where its config is silent; transformers then follows the recipe
    mixed_precision = env.get("ACCELERATE_MIXED_PRECISION", "no")
    if mixed_precision != "no":
        launcher_precisions["mixed_precision"] = mixed_precision
    if args.deepspeed_plugin is not None:
        # `enabled` in a DeepSpeed file, true or false, takes precedence over the recipe
        config = args.deepspeed_plugin.deepspeed_config
        enabled = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled")]
        launcher_precisions["deepspeed_config"] = enabled[0] if enabled else "no"
    for name, precision in launcher_precisions.items():
        if precision != recipe_precision:
            raise ConfigError(
                f"the launcher's {name} asks for {precision!r}, the recipe for "
                f"{recipe_precision!r} (trainer.bf16 is {args.bf16}, trainer.fp16 is {args.fp16}): "
                "change the recipe's trainer.bf16 or trainer.fp16, or the launcher's "
                f"{name} to {recipe_precision!r}"
            )
    sharded = args.deepspeed_plugin is not None or _is_true(env, "ACCELERATE_USE_FSDP")
    # under mixed precision both DeepSpeed and FSDP train float32 copies of the weights
    float32_copies = sharded and recipe_precision != "no"
    if model.dtype != "float32" and adapter is None and not float32_copies:
        raise ConfigError(
            f"model.dtype {model.dtype}: all weights are trained, and a plain optimiser rounds "
            "most small steps away. Set model.dtype: float32 (with trainer.bf16: true it still "
            "computes in bf16), train an adapter:, or set trainer.bf16: true and start with "
            "--config_file accelerate/fsdp2, zero2 or zero3, which keep float32 weights"
        )


def precision_advice(args: Any) -> str | None:
    """Advice where the other precision would be much faster on this CPU; None elsewhere.

    With AMX, training in bfloat16 took about half as long as in float32.
    """
    # older versions of torch cannot tell the capabilities of the CPU
    if args.device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return None
    if args.bf16 and emulates_bfloat16(args.device):
        return (
            "this CPU has no instructions for bfloat16: it trains many times more slowly than in "
            "float32; set trainer.bf16=false"
        )
    if torch.cpu.get_capabilities().get("amx_bf16") and not args.bf16 and not args.fp16:
        return "this CPU has AMX: trainer.bf16=true trains about twice as fast, less exactly"
    return None


def await_shared(out: Path, patience: float) -> None:
    """Wait for the output directory, which the main process has created already.

    Args:
        patience: seconds to wait.

    Raises:
        ConfigError: the directory does not appear, so this machine sees another disk than the main
            process.
    """
    deadline = time.monotonic() + patience
    while not out.exists():
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"out={out} is not there on {socket.gethostname()}, though the main process has "
                "created it: all machines must see the same out, on a shared disk"
            )
        time.sleep(0.5)


def _is_true(env: Mapping[str, str], name: str) -> bool:
    """Tell whether a flag of accelerate is set in the environment."""
    return env.get(name, "").lower() in ("true", "1")
