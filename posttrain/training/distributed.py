"""What the launcher really started, and a refusal when it is not what was asked for.

`accelerate launch --cpu --num_processes 2` starts one process and says nothing; a DeepSpeed or FSDP
config with CPU forced trains as plain DDP and says nothing. Both stop here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from posttrain.config.sft import LaunchConfig
from posttrain.errors import ConfigError

TWO_CPU_PROCESSES = (
    "accelerate launch --config_file recipes/accelerate/cpu-2.yaml scripts/sft.py --config …"
)


@dataclass(frozen=True, slots=True)
class Launched:
    """What runs: processes, how parameters are sharded, on what device."""

    world_size: int
    sharding: str
    device: str


def launched(accelerator: Accelerator) -> Launched:
    """Read the layout off the accelerator that the trainer uses."""
    return Launched(
        world_size=accelerator.num_processes,
        sharding=_sharding(accelerator),
        device=_device(accelerator),
    )


def _sharding(accelerator: Accelerator) -> str:
    state: Any = accelerator.state
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return f"zero{state.deepspeed_plugin.zero_stage}"
    if accelerator.distributed_type == DistributedType.FSDP:
        return f"fsdp{state.fsdp_plugin.fsdp_version}"
    return "none"


def _device(accelerator: Accelerator) -> str:
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_name(accelerator.device)
    return accelerator.device.type


def check_launch(asked: LaunchConfig, got: Launched, env: Mapping[str, str] = os.environ) -> None:
    """Stop when the run is not the one that recipe and launcher asked for.

    Args:
        asked: the recipe's `launch:` block; its Nones are not checked.
        got: what runs.
        env: the process environment, where accelerate leaves what its config asked for.

    Raises:
        ConfigError: naming what was asked, what runs, and the command that gives it.
    """
    if asked.world_size not in (None, got.world_size):
        raise ConfigError(
            f"launch.world_size is {asked.world_size}, {got.world_size} process(es) run. "
            f"On CPU, start several with: {TWO_CPU_PROCESSES}"
        )
    if asked.sharding not in (None, got.sharding):
        raise ConfigError(
            f"launch.sharding is {asked.sharding}, this run has {got.sharding}. Start it with "
            f"accelerate launch --config_file recipes/accelerate/{_recipe_for(asked.sharding)}"
        )
    for name, wanted in _asked_by_launcher(env).items():
        if got.sharding != wanted:
            raise ConfigError(
                f"the launcher asked for {wanted} ({name}), but {got.sharding} runs: forcing CPU "
                "drops sharding silently. Use accelerators, or recipes/accelerate/cpu-2.yaml"
            )
    if got.world_size == 1 and _several_cpu_processes_asked(env):
        raise ConfigError(
            "the launcher asked for several CPU processes and started one (accelerate starts "
            f"them only through a distributed type). Use: {TWO_CPU_PROCESSES}"
        )


def _asked_by_launcher(env: Mapping[str, str]) -> dict[str, str]:
    asked: dict[str, str] = {}
    if env.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        stage = env.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")
        if stage is not None:
            asked["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = f"zero{stage}"
    if env.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        asked["ACCELERATE_USE_FSDP"] = f"fsdp{env.get('FSDP_VERSION', '1')}"
    return asked


def _several_cpu_processes_asked(env: Mapping[str, str]) -> bool:
    # accelerate's one-process launcher sets MASTER_ADDR only when num_processes is above 1
    return (
        env.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
        and "MASTER_ADDR" in env
        and "LOCAL_RANK" not in env
    )


def _recipe_for(sharding: str | None) -> str:
    return {"none": "ddp.yaml", None: "ddp.yaml"}.get(sharding, f"{sharding}.yaml")
