"""What the launcher really started, and a refusal when it is not what was asked for: accelerate
drops processes, sharding and precision without a word. So do weights that would not move."""

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

TWO_CPU_PROCESSES = "posttrain launch --config_file accelerate/cpu-2 sft --config …"


@dataclass(frozen=True, slots=True)
class Launched:
    """What runs: processes, how parameters are sharded, on what device, in what precision."""

    world_size: int
    sharding: str
    device: str
    precision: str

    @property
    def text(self) -> str:
        """For the plan."""
        return (
            f"{self.world_size} process(es) on {self.device}, sharding {self.sharding}, "
            f"{self.precision}"
        )


def read_launch(accelerator: Accelerator) -> Launched:
    """Read the layout off the accelerator that the trainer uses."""
    state: Any = accelerator.state
    device, precision = accelerator.device, accelerator.mixed_precision
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
    )


def check_launch(
    requested: LaunchConfig, launched: Launched, env: Mapping[str, str] = os.environ
) -> None:
    """Stop when the run is not the one that recipe and launcher ask for.

    Args:
        requested: the recipe's `launch:` block; its Nones are not checked.
        env: where accelerate leaves what its config asked for.

    Raises:
        ConfigError: naming what was requested, what runs, and the command that gives it.
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
    wanted = None
    if _is_true(env, "ACCELERATE_USE_DEEPSPEED") and "ACCELERATE_DEEPSPEED_ZERO_STAGE" in env:
        wanted = f"zero{env['ACCELERATE_DEEPSPEED_ZERO_STAGE']}"
    elif _is_true(env, "ACCELERATE_USE_FSDP"):
        wanted = f"fsdp{env.get('FSDP_VERSION', '1')}"
    if wanted not in (None, launched.sharding):
        raise ConfigError(
            f"the launcher asked for {wanted}, but {launched.sharding} runs: forcing CPU drops "
            "sharding silently. Use accelerators, or --config_file accelerate/cpu-2"
        )
    # accelerate's one-process launcher sets MASTER_ADDR only when num_processes is above 1
    several = "MASTER_ADDR" in env and "LOCAL_RANK" not in env
    if launched.world_size == 1 and _is_true(env, "ACCELERATE_USE_CPU") and several:
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
    """Stop when a launcher or a recipe for GPUs would train on the CPU.

    Args:
        trainer: the recipe's block; a `use_cpu` in it is the user's own word.
        requested: the recipe's `launch:` block.

    Raises:
        ConfigError: naming what is for GPUs, and the ways out.
    """
    if requested.gpu and args.device.type == "cpu":
        raise ConfigError(
            "launch.gpu: this recipe is for a GPU, and PyTorch finds none here. For a model of 0.1 "
            "to 0.5 B parameters on a CPU take the recipes cpu/… (such as posttrain sft --config "
            "cpu/sft); launch.gpu=false with model.dtype=float32 and trainer.bf16=false runs this "
            "one all the same"
        )
    precision = env.get("ACCELERATE_MIXED_PRECISION", "no")
    wanted = "use_cpu" in trainer or _is_true(env, "ACCELERATE_USE_CPU")
    if args.device.type == "cpu" and precision != "no" and not wanted:
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
    """Stop when launcher and recipe name different precisions, or the weights would not move.

    Raises:
        ConfigError: naming both sides, and what to change.
    """
    recipe = "fp16" if args.fp16 else "bf16" if args.bf16 else "no"
    requested: dict[str, str] = {}
    # `no` is also what accelerate sets when nothing was said: transformers then takes the recipe's
    if (launcher := env.get("ACCELERATE_MIXED_PRECISION", "no")) != "no":
        requested["mixed_precision"] = launcher
    if args.deepspeed_plugin is not None:
        # a DeepSpeed file that says `enabled` itself, true or false, is obeyed before the recipe
        file = args.deepspeed_plugin.deepspeed_config
        enabled = [name for name in ("fp16", "bf16") if file.get(name, {}).get("enabled")]
        requested["deepspeed_config"] = enabled[0] if enabled else "no"
    for name, precision in requested.items():
        if precision != recipe:
            raise ConfigError(
                f"the launcher's {name} asks for {precision!r}, the recipe for {recipe!r} "
                f"(trainer.bf16 is {args.bf16}, trainer.fp16 is {args.fp16}): change the recipe's "
                f"trainer.bf16 or trainer.fp16, or the launcher's {name} to {recipe!r}"
            )
    # both cast up what they train, or keep a float32 copy of it, but only under mixed precision
    sharded = args.deepspeed_plugin is not None or _is_true(env, "ACCELERATE_USE_FSDP")
    if model.dtype != "float32" and adapter is None and not (sharded and recipe != "no"):
        raise ConfigError(
            f"model.dtype {model.dtype}: all weights are trained, and a plain optimiser rounds "
            "most small steps away. Set model.dtype: float32 (with trainer.bf16: true it still "
            "computes in bf16), train an adapter:, or set trainer.bf16: true and start with "
            "--config_file accelerate/fsdp2, zero2 or zero3, which keep float32 weights"
        )


def precision_advice(args: Any) -> str | None:
    """A sentence where the other precision would be much faster on this CPU.

    A product of 512 × 576 by 576 × 1,536 took 65 times as long in bfloat16 as in float32 on a CPU
    with AVX2 alone; with AMX, training took about half as long.
    """
    # older versions of torch do not say what the CPU can do
    if args.device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return None
    capabilities = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    if args.bf16 and not native:
        return (
            "this CPU has no instructions for bfloat16: it trains many times more slowly than in "
            "float32; set trainer.bf16=false"
        )
    if capabilities.get("amx_bf16") and not args.bf16 and not args.fp16:
        return "this CPU has AMX: trainer.bf16=true trains about twice as fast, less exactly"
    return None


def await_shared(out: Path, patience: float) -> None:
    """Wait until the output directory is there, which the main process has created by now.

    Raises:
        ConfigError: it is not: this machine sees another disk than the main process.
    """
    end = time.monotonic() + patience
    while not out.exists():
        if time.monotonic() >= end:
            raise ConfigError(
                f"out={out} is not there on {socket.gethostname()}, though the main process has "
                "created it: all machines must see the same out, on a shared disk"
            )
        time.sleep(0.5)


def _is_true(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").lower() in ("true", "1")
