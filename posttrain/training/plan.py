"""What a run will do, before it does it: rows, tokens, steps, seconds, memory, disk.

data         8,000 packs, 31,204 sequences, 8.1 M tokens, 5.2 M trained
batch        64 packs = 8 × 4 accumulated × 2 processes, about 65,536 tokens
steps        125 an epoch × 2 epochs = 250
time         about 412 s: 1.65 s a step, measured on this device (evaluation not counted)
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl.trainer.sft_config import SFTConfig

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError
from posttrain.training.launch import Launched
from posttrain.training.sft.data import SplitSize
from posttrain.training.sft.trainer import PackedSFTTrainer

GIB = 1 << 30
# above this a forward pass is no longer "a few seconds" on the machine that only plans
MEASURED_UP_TO = 300_000_000
ASSUMED_UTILISATION = 0.4


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters, those that are trained, bytes of the weights, and bytes a process holds."""

    parameters: int
    trainable: int
    weight_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of a run; `lines` prints them."""

    train: SplitSize
    evaluation: SplitSize
    global_batch: int
    steps_per_epoch: int
    steps: int
    size: ModelSize
    disk_bytes: int
    seconds: float | None
    seconds_how: str


def make_plan(
    recipe: SftConfig,
    trainer: PackedSFTTrainer,
    *,
    train: SplitSize,
    evaluation: SplitSize,
    got: Launched,
    measure: bool,
) -> Plan:
    """Count and estimate.

    Args:
        measure: time two micro-batches on this device (model ≤ 300 M parameters only).
    """
    args: SFTConfig = trainer.args
    batch = trainer.global_batch
    per_epoch = math.ceil(train.packs / batch)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    size = model_size(trainer.model, sharded_over=sharded_over(got))
    kept = args.save_total_limit or math.ceil(args.num_train_epochs)
    disk = checkpoint_bytes(size, kept=kept) + size.weight_bytes * len(recipe.keep_epochs)
    seconds, how = _seconds(trainer, steps, train, size.parameters, measure)
    return Plan(train, evaluation, batch, per_epoch, steps, size, disk, seconds, how)


def model_size(model: torch.nn.Module, *, sharded_over: int) -> ModelSize:
    """Count a model; `sharded_over` processes split weights, gradients and optimiser."""
    sizes = [(_numel(p), p.element_size(), p.requires_grad) for p in model.parameters()]
    trainable = sum(n for n, _, grad in sizes if grad)
    weight_bytes = sum(n * size for n, size, _ in sizes)
    state = (weight_bytes + 12 * trainable) // sharded_over
    return ModelSize(sum(n for n, _, _ in sizes), trainable, weight_bytes, state)


def checkpoint_bytes(size: ModelSize, *, kept: int) -> int:
    """Disk for the model and `kept` resume checkpoints."""
    # a resume checkpoint: weights and two Adam moments; one more exists while it is written
    return (kept + 1) * (size.weight_bytes + 8 * size.trainable) + size.weight_bytes


def sharded_over(got: Launched) -> int:
    """Processes that a parameter is split over."""
    return got.world_size if got.sharding in ("zero3", "fsdp2") else 1


def _numel(parameter: torch.Tensor) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _seconds(
    trainer: PackedSFTTrainer, steps: int, train: SplitSize, parameters: int, measure: bool
) -> tuple[float | None, str]:
    if not measure:
        return None, "not estimated"
    return estimate_seconds(
        parameters=parameters,
        tokens=steps * trainer.global_batch * train.tokens / max(train.packs, 1),
        micros=steps * trainer.args.gradient_accumulation_steps,
        args=trainer.args,
        micro=lambda: _time_micro_batch(trainer),
    )


def estimate_seconds(
    *, parameters: int, tokens: float, micros: int, args: Any, micro: Callable[[], float]
) -> tuple[float, str]:
    """Seconds of a run, and how that was found.

    Args:
        tokens: forward and backward, on all processes.
        micros: micro-batches on each process.
        micro: times one; called for models that are small enough.
    """
    if parameters <= MEASURED_UP_TO:
        seconds = micro()
        return seconds * micros, f"{seconds * 1000:.0f} ms a micro-batch, measured on this device"
    rate = _matmul_flops(args.device) * ASSUMED_UTILISATION
    seconds = 6 * parameters * tokens / rate / args.world_size
    return seconds, (
        f"6 × parameters × tokens at {rate / 1e12:.1f} TFLOP/s a device "
        f"({ASSUMED_UTILISATION:.0%} of its measured matrix product; all experts counted)"
    )


def _time_micro_batch(trainer: PackedSFTTrainer) -> float:
    """Seconds of one forward and backward pass on real packs; leaves no gradient behind."""
    size = trainer.args.per_device_train_batch_size
    packs = [trainer.train_dataset[row % (len(trainer.train_dataset) - 1)] for row in range(size)]
    columns = ("input_ids", "labels", "seq_lengths")
    batch = trainer.data_collator([{key: pack[key] for key in columns} for pack in packs])
    batch = trainer._prepare_inputs(batch)

    def loss() -> torch.Tensor:
        with trainer.compute_loss_context_manager():
            return trainer.model(**batch, use_cache=False, fused_lm_head=True).loss

    return time_passes(trainer.model, loss, trainer.args.device)


def time_passes(
    model: torch.nn.Module, loss: Callable[[], torch.Tensor], device: torch.device
) -> float:
    """Seconds of one forward and backward pass; leaves no gradient behind."""
    model.to(device).train()
    seconds: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        loss().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
    return min(seconds[1:])


def _matmul_flops(device: torch.device, side: int = 2048) -> float:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(side, side, device=device, dtype=dtype)
    (a @ a).sum().item()
    started = time.perf_counter()
    (a @ a).sum().item()
    return 2 * side**3 / (time.perf_counter() - started)


def check_disk(needed: int, out: Path) -> None:
    """Stop when the checkpoints cannot fit.

    Args:
        needed: bytes.

    Raises:
        ConfigError: with what is needed and what is free.
    """
    existing = next(p for p in (out, *out.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigError(
            f"{out} needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; "
            "keep fewer checkpoints (trainer.save_total_limit), or choose another out="
        )


def plan_lines(plan: Plan, args: SFTConfig, got: Launched) -> list[tuple[str, str]]:
    """The plan as (name, sentence) lines."""
    train, held = plan.train, plan.evaluation
    per_step = plan.global_batch * train.tokens / max(train.packs, 1)
    fill = (
        f"{train.tokens:,} tokens, {train.trained:,} trained ({train.trained / train.tokens:.0%})"
    )
    lines = [
        ("train", f"{train.packs:,} packs, {train.sequences:,} sequences, {fill}"),
        ("held out", f"{held.packs:,} packs, {held.sequences:,} sequences, {held.tokens:,} tokens"),
        *model_lines(plan.size, args, got),
        (
            "batch",
            f"{plan.global_batch} packs = {args.per_device_train_batch_size} × "
            f"{args.gradient_accumulation_steps} accumulated × {got.world_size} process(es), "
            f"about {per_step:,.0f} tokens",
        ),
        ("steps", f"{plan.steps_per_epoch:,} an epoch, {plan.steps:,} in all"),
        ("disk", f"{plan.disk_bytes / GIB:.2f} GiB at most, resume checkpoints included"),
    ]
    if plan.seconds is not None:
        lines.append(
            (
                "time",
                f"about {plan.seconds:,.0f} s: {plan.seconds_how}; evaluation and "
                "saving not counted",
            )
        )
    return lines


def model_lines(size: ModelSize, args: Any, got: Launched) -> list[tuple[str, str]]:
    """What is trained and on what."""
    return [
        ("model", f"{size.parameters:,} parameters, {size.trainable:,} trained"),
        (
            "launch",
            f"{got.world_size} process(es) on {got.device}, sharding {got.sharding}, "
            f"{'bf16' if args.bf16 else 'fp16' if args.fp16 else 'fp32'}",
        ),
        (
            "memory",
            f"{size.state_bytes / GIB:.2f} GiB a process for weights, gradients and "
            "optimiser; activations come on top",
        ),
    ]
