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
from dataclasses import dataclass
from pathlib import Path

import torch
from trl.trainer.sft_config import SFTConfig

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError
from posttrain.training.distributed import Launched
from posttrain.training.packed_data import SplitSize
from posttrain.training.sft_trainer import PackedSFTTrainer

GIB = 1 << 30
# above this a forward pass is no longer "a few seconds" on the machine that only plans
MEASURED_UP_TO = 300_000_000
ASSUMED_UTILISATION = 0.4


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of a run; `lines` prints them."""

    train: SplitSize
    evaluation: SplitSize
    global_batch: int
    steps_per_epoch: int
    steps: int
    parameters: int
    trainable: int
    disk_bytes: int
    state_bytes: int
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
    sizes = [(_numel(p), p.element_size(), p.requires_grad) for p in trainer.model.parameters()]
    parameters = sum(n for n, _, _ in sizes)
    trainable = sum(n for n, _, grad in sizes if grad)
    weight_bytes = sum(n * size for n, size, _ in sizes)
    kept = args.save_total_limit or math.ceil(args.num_train_epochs)
    # a resume checkpoint: weights and two Adam moments; one more exists while it is written
    resume = (kept + 1) * (weight_bytes + 8 * trainable)
    disk = resume + weight_bytes * (1 + len(recipe.keep_epochs))
    state = weight_bytes + 12 * trainable
    if got.sharding in ("zero3", "fsdp2"):
        state //= got.world_size
    seconds, how = _seconds(trainer, steps, train, parameters, measure)
    return Plan(
        train, evaluation, batch, per_epoch, steps, parameters, trainable, disk, state, seconds, how
    )


def _numel(parameter: torch.Tensor) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _seconds(
    trainer: PackedSFTTrainer, steps: int, train: SplitSize, parameters: int, measure: bool
) -> tuple[float | None, str]:
    if not measure:
        return None, "not estimated"
    tokens = steps * trainer.global_batch * train.tokens / max(train.packs, 1)
    if parameters <= MEASURED_UP_TO:
        micro = _time_micro_batch(trainer)
        micros = steps * trainer.args.gradient_accumulation_steps
        return micro * micros, f"{micro * 1000:.0f} ms a micro-batch, measured on this device"
    rate = _matmul_flops(trainer.args.device) * ASSUMED_UTILISATION
    seconds = 6 * parameters * tokens / rate / trainer.args.world_size
    return seconds, (
        f"6 × parameters × tokens at {rate / 1e12:.1f} TFLOP/s a device "
        f"({ASSUMED_UTILISATION:.0%} of its measured matrix product; all experts counted)"
    )


def _time_micro_batch(trainer: PackedSFTTrainer) -> float:
    """Seconds of one forward and backward pass on real packs; leaves no gradient behind."""
    model, size = trainer.model, trainer.args.per_device_train_batch_size
    packs = [trainer.train_dataset[row % (len(trainer.train_dataset) - 1)] for row in range(size)]
    columns = ("input_ids", "labels", "seq_lengths")
    batch = trainer.data_collator([{key: pack[key] for key in columns} for pack in packs])
    batch = trainer._prepare_inputs(batch)
    model.to(trainer.args.device).train()
    seconds: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        with trainer.compute_loss_context_manager():
            model(**batch, use_cache=False, fused_lm_head=True).loss.backward()
        if trainer.args.device.type == "cuda":
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


def check_disk(plan: Plan, out: Path) -> None:
    """Stop when the checkpoints cannot fit.

    Raises:
        ConfigError: with what is needed and what is free.
    """
    existing = next(p for p in (out, *out.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < plan.disk_bytes:
        raise ConfigError(
            f"{out} needs about {plan.disk_bytes / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; "
            "lower trainer.save_total_limit or keep_epochs, or choose another out="
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
        ("model", f"{plan.parameters:,} parameters, {plan.trainable:,} trained"),
        (
            "launch",
            f"{got.world_size} process(es) on {got.device}, sharding {got.sharding}, "
            f"{'bf16' if args.bf16 else 'fp16' if args.fp16 else 'fp32'}",
        ),
        (
            "batch",
            f"{plan.global_batch} packs = {args.per_device_train_batch_size} × "
            f"{args.gradient_accumulation_steps} accumulated × {got.world_size} process(es), "
            f"about {per_step:,.0f} tokens",
        ),
        ("steps", f"{plan.steps_per_epoch:,} an epoch, {plan.steps:,} in all"),
        (
            "memory",
            f"{plan.state_bytes / GIB:.2f} GiB a process for weights, gradients and "
            "optimiser; activations come on top",
        ),
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
