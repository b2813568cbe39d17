"""Memory of a training step on one device, planned before the first one.

    plan = plan_memory(trainer, launched, largest_batch, adapter=None)
    memory_line(plan, room)     ("memory", "3.1 of 79.2 GiB a process at the most: weights 0.9, …")

Weights, gradients and optimiser are counted from the parameters and from what DDP, DeepSpeed and
FSDP2 keep of them; see `activations` for the rest. Not counted: the CUDA context (about 1 GiB) and
what the allocator loses to fragments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import psutil
import torch

from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.models.load import VARLEN_ATTENTION, has_recurrent_kernels, parameter_count
from posttrain.tokens.encode import IGNORED
from posttrain.training.activations import (
    RolloutShape,
    StepShape,
    activation_bytes,
    rollout_bytes,
)
from posttrain.training.launch import Launched

GIB = 1 << 30
# DeepSpeed's defaults, in numbers: a bucket of gradients, and parameters gathered at a time
BUCKET, GATHERED = 500_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device.

    Attributes:
        weights: with those of a reference model.
        optimizer: moments, and float32 copies of weights that are held in less.
        gathered: weights and gradients of other processes while a layer is at work, and buckets.
        rollouts: cache of keys, values and states while completions are sampled, and the weights
            that are gathered for it; or the share of a vLLM that sleeps while it trains.
        vllm: the share of one that does not.
    """

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    rollouts: int = 0
    vllm: int = 0

    @property
    def peak(self) -> int:
        """At the worst moment of a step: completions are sampled before there are gradients."""
        training = self.gradients + self.gathered + self.activations
        return self.weights + self.optimizer + self.vllm + max(training, self.rollouts)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Numbers of a model: of all weights, of those trained, of its largest layer and outside of
    layers; and their bytes as they were loaded."""

    all: int
    trained: int
    largest_layer: int
    outside: int
    all_bytes: int
    trained_bytes: int


def count_parameters(model: torch.nn.Module) -> ParameterCounts:
    """Count a model; works on sharded parameters and on those without data."""
    weights = [(parameter_count(p), p.element_size(), p.requires_grad) for p in model.parameters()]
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [
        sum(parameter_count(p) for p in module.parameters())
        for module in model.modules()
        if type(module).__name__ in kinds
    ]
    total = sum(n for n, _, _ in weights)
    return ParameterCounts(
        all=total,
        trained=sum(n for n, _, trained in weights if trained),
        largest_layer=max(layers, default=total),
        outside=total - sum(layers),
        all_bytes=sum(n * size for n, size, _ in weights),
        trained_bytes=sum(n * size for n, size, trained in weights if trained),
    )


def state_bytes(
    size: ParameterCounts, launched: Launched, *, moments: int = 8, reference: int = 0
) -> dict[str, int]:
    """Bytes of `MemoryPlan` that follow from the parameters and from how they are sharded.

    Args:
        moments: bytes of the optimiser for each trained number.
        reference: bytes of a second model.
    """
    n, half = launched.world_size, 4 if launched.precision == "fp32" else 2
    trained, gpu = size.trained, launched.device != "cpu"
    bucket = BUCKET if gpu else min(BUCKET, trained)
    if launched.sharding == "zero2":
        weights, optimizer = half * size.all, (moments + 4) * trained // n
        gradients, gathered = half * trained // n, half * bucket
    elif launched.sharding == "zero3":
        weights, optimizer = half * size.all // n, (moments + 4) * trained // n
        gradients = half * trained // n
        gathered = half * (min(GATHERED, size.all) + bucket)
    elif launched.sharding.startswith("fsdp"):
        # trained weights are held in float32, and computed in less
        weights = (size.all_bytes - size.trained_bytes + 4 * trained) // n
        optimizer, gradients = moments * trained // n, 4 * trained // n
        # a layer, the next one on its way, and the gradients of one
        share = 2 + trained / size.all
        gathered = int(half * (share * size.largest_layer + size.outside))
    else:
        weights, gradients = size.all_bytes, size.trained_bytes
        optimizer = moments * size.trained_bytes // 4
        # DDP reduces copies of the gradients
        gathered = size.trained_bytes if n > 1 else 0
    return {
        "weights": weights + reference,
        "gradients": gradients,
        "optimizer": optimizer,
        "gathered": gathered,
    }


def plan_memory(
    trainer: Any,
    launched: Launched,
    batch: Mapping[str, torch.Tensor],
    *,
    adapter: AdapterConfig | None,
    rollouts: RolloutShape | ColocatedVllm | None = None,
) -> MemoryPlan:
    """The plan of a trainer.

    Args:
        batch: the largest collated micro-batch.
        rollouts: sampled in this process, or by vLLM on its device.
    """
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
        first=args.gradient_accumulation_steps == 1 and whole,
    )
    size = count_parameters(trainer.model)
    parts = state_bytes(
        size,
        launched,
        moments=2 if "8bit" in args.optim else 8,
        reference=0 if reference is None else count_parameters(reference).all_bytes,
    )
    sampling = vllm = 0
    if isinstance(rollouts, ColocatedVllm):
        share = int(rollouts.gpu_memory * device_bytes(args.device))
        sampling, vllm = (share, 0) if rollouts.sleep else (0, share)
    elif rollouts is not None:
        sampling = rollout_bytes(base.config, rollouts, dtype) + whole_bytes(size, launched)
    return MemoryPlan(
        **parts,
        activations=activation_bytes(base.config, shape, adapter),
        rollouts=sampling,
        vllm=vllm,
    )


def whole_bytes(size: ParameterCounts, launched: Launched) -> int:
    """Of the weights that a process gathers to sample by itself."""
    if launched.sharding in ("none", "zero2"):
        return 0
    return (4 if launched.precision == "fp32" else 2) * size.all


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
        ConfigError: the peak does not fit; with its parts and what makes them smaller.
    """
    names = [field.name for field in fields(plan)]
    parts = sorted(((getattr(plan, name), name) for name in names), reverse=True)
    shown = ", ".join(f"{name} {n / GIB:.2f}" for n, name in parts if n > plan.peak / 100)
    text = f"{plan.peak / GIB:.3f} of {room / GIB:.1f} GiB a process at the most: {shown}"
    if plan.peak <= room:
        return "memory", text
    raise ConfigError(
        f"a step needs more memory than there is, {text}. Smaller: activations with "
        "trainer.gradient_checkpointing: true and a smaller trainer.per_device_train_batch_size; "
        "weights, gradients and optimizer with recipes/accelerate/fsdp2.yaml, more processes or an "
        "adapter:; rollouts with a smaller rollouts.batch_size or rollouts.gpu_memory"
    )
