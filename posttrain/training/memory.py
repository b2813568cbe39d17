"""Memory of a training step on one device, planned before the first one: weights and optimiser from
the parameters, the rest from a step without data (`activations`, `shards`). Not counted: the CUDA
context (about 1 GiB) and what the allocator loses to fragments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch

from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.models.load import VARLEN_ATTENTION, has_recurrent_kernels
from posttrain.tokens.encode import IGNORED
from posttrain.training.activations import (
    RolloutShape,
    StepMemory,
    StepShape,
    measure_step,
    rollout_bytes,
)
from posttrain.training.launch import Launched
from posttrain.training.plan import GIB, ModelSize, model_size


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device.

    Attributes:
        weights: with those of a reference model.
        optimizer: moments, and float32 copies of weights that are held in less.
        rollouts: cache and gathered weights while completions are sampled, or the share of a vLLM
            that sleeps while it trains; `vllm`: the share of one that does not.
    """

    weights: int
    optimizer: int
    step: StepMemory
    rollouts: int = 0
    vllm: int = 0

    @property
    def peak(self) -> int:
        """At the worst moment: completions are sampled before there are gradients."""
        return self.weights + self.optimizer + self.vllm + max(self.step.total, self.rollouts)

    @property
    def parts(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "optimizer": self.optimizer,
            **asdict(self.step),
            "rollouts": self.rollouts,
            "vllm": self.vllm,
        }


def state_bytes(
    size: ModelSize, launched: Launched, *, moments: int = 8, reference: int = 0
) -> dict[str, int]:
    """Bytes of weights and optimiser, by how they are sharded; `moments` are the optimiser's bytes
    for each trained number, `reference` those of a second model."""
    n, half = launched.world_size, 4 if launched.precision == "fp32" else 2
    if launched.sharding in ("zero2", "zero3"):
        split = n if launched.sharding == "zero3" else 1
        weights, optimizer = half * size.parameters, (moments + 4) * size.trainable // n
    elif launched.sharding.startswith("fsdp"):
        split = n
        # trained weights are held in float32, and computed in less
        weights = size.weight_bytes - size.trainable_bytes + 4 * size.trainable
        optimizer = moments * size.trainable // n
    else:
        split, weights, optimizer = 1, size.weight_bytes, moments * size.trainable_bytes // 4
    return {"weights": (weights + reference) // split, "optimizer": optimizer}


def plan_memory(
    trainer: Any,
    launched: Launched,
    batch: Mapping[str, torch.Tensor],
    *,
    adapter: AdapterConfig | None,
    rollouts: RolloutShape | ColocatedVllm | None = None,
) -> MemoryPlan:
    """The plan of a trainer whose largest collated micro-batch is `batch`."""
    args, base, reference = trainer.args, trainer.base_model, getattr(trainer, "ref_model", None)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(launched.precision)
    cpu, whole = launched.device == "cpu", launched.sharding == "none"
    dtype = base.dtype if whole or half is None else half
    ids, labels = batch["input_ids"], int((batch["labels"] != IGNORED).sum())
    shape = StepShape(
        rows=ids.shape[0],
        columns=ids.shape[1],
        # on a CPU TRL's head scores every position
        labels=ids.numel() if cpu and not whole else labels,
        masked=base.config._attn_implementation not in VARLEN_ATTENTION,
        dtype=dtype,
        autocast=half if whole else None,
        checkpointing=args.gradient_checkpointing,
        cpu_head=cpu and whole,
        kernels=has_recurrent_kernels() and not cpu,
        accumulated=args.gradient_accumulation_steps > 1,
    )
    size = model_size(trainer.model)
    parts = state_bytes(
        size,
        launched,
        moments=2 if "8bit" in args.optim else 8,
        reference=0 if reference is None else model_size(reference).weight_bytes,
    )
    sampling = vllm = 0
    if isinstance(rollouts, ColocatedVllm):
        share = int(rollouts.gpu_memory * device_bytes(args.device))
        sampling, vllm = (share, 0) if rollouts.sleep else (0, share)
    elif rollouts is not None:
        sampling = rollout_bytes(base.config, rollouts, dtype) + whole_bytes(size, launched)
    return MemoryPlan(
        **parts,
        step=measure_step(base.config, shape, adapter, launched),
        rollouts=sampling,
        vllm=vllm,
    )


def whole_bytes(size: ModelSize, launched: Launched) -> int:
    """Of the weights that a process gathers to sample by itself."""
    if launched.sharding in ("none", "zero2"):
        return 0
    return (4 if launched.precision == "fp32" else 2) * size.parameters


def device_bytes(device: torch.device) -> int:
    """All memory of a GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return psutil.virtual_memory().total


def device_room(device: torch.device, plan: MemoryPlan) -> int:
    """Bytes that a process may have on a device; what it has loaded by now is part of the plan."""
    if device.type == "cuda":
        return device_bytes(device)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return psutil.virtual_memory().available // processes + plan.weights


def memory_line(plan: MemoryPlan, room: int) -> tuple[str, str]:
    """The plan's line; parts below a hundredth of the peak are left out.

    Raises:
        ConfigError: the peak does not fit.
    """
    parts = sorted(((n, name) for name, n in plan.parts.items()), reverse=True)
    shown = ", ".join(f"{name} {n / GIB:.2f}" for n, name in parts if n > plan.peak / 100)
    text = f"{plan.peak / GIB:.3f} of {room / GIB:.1f} GiB a process at the most: {shown}"
    if plan.peak <= room:
        return "memory", text
    raise ConfigError(
        f"a step needs more memory than there is, {text}. Smaller: activations with "
        "trainer.gradient_checkpointing: true and a smaller trainer.per_device_train_batch_size; "
        "weights, gradients and optimizer with --config_file accelerate/fsdp2, more processes or "
        "an adapter:; rollouts with a smaller rollouts.batch_size or rollouts.gpu_memory"
    )
