"""The lines of a plan: what a run will do, and what would make it wrong, before it starts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.models.load import parameter_count
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.launch import Launched

GIB = 1 << 30
# above this a forward pass is no longer "a few seconds" on the machine that only plans
MEASURED_UP_TO = 300_000_000
ASSUMED_UTILISATION = 0.4

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters and those that are trained, over all processes; the bytes of both as loaded."""

    parameters: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int


def model_size(model: torch.nn.Module) -> ModelSize:
    """Count a model; works on sharded parameters and on those without data."""
    sizes = [(parameter_count(p), p.element_size(), p.requires_grad) for p in model.parameters()]
    return ModelSize(
        parameters=sum(n for n, _, _ in sizes),
        trainable=sum(n for n, _, trained in sizes if trained),
        weight_bytes=sum(n * size for n, size, _ in sizes),
        trainable_bytes=sum(n * size for n, size, trained in sizes if trained),
    )


def checkpoint_bytes(size: ModelSize, *, kept: int) -> int:
    """Disk for the model and `kept` resume checkpoints."""
    # a resume checkpoint: weights and two Adam moments; one more exists while it is written
    return (kept + 1) * (size.weight_bytes + 8 * size.trainable) + size.weight_bytes


def check_disk(needed: int, out: Path) -> None:
    """Raises ConfigError: the `needed` bytes are not free on the disk of `out`."""
    existing = next(p for p in (out, *out.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigError(
            f"{out} needs about {needed / GIB:.2f} GiB, {free / GIB:.2f} GiB are free; "
            "keep fewer checkpoints (trainer.save_total_limit), or choose another out="
        )


def check_enough(
    rows: int, *, name: str, batch: int, batches: int, max_epochs: int, updates: int = 1
) -> None:
    """Raises ConfigError: the run draws more rows, called `name`, than `max_epochs` allows; with
    the ways out. `updates`: optimiser steps on each batch."""
    total = batch * batches
    if total <= rows * max_epochs:
        return
    most = rows * max_epochs // batch * updates
    ways = [
        f"give {-(-total // max_epochs):,} {name}",
        f"set trainer.max_steps: {most}"
        if most
        else f"take batches of at most {rows * max_epochs:,} {name}",
        f"set max_epochs: {-(-total // max(rows, 1))} to repeat them",
    ]
    raise ConfigError(
        f"{batches} batches × {batch} {name} draw {total:,}; there are {rows:,} and max_epochs is "
        f"{max_epochs}: {', or '.join(ways)}"
    )


def batch_line(trainer: Any, launched: Launched, *, name: str, row_tokens: float) -> Line:
    """How an optimiser step is made up of rows of `row_tokens` tokens on average."""
    args, batch = trainer.args, trainer.global_batch
    return "batch", (
        f"{batch} {name} = {args.per_device_train_batch_size} × "
        f"{args.gradient_accumulation_steps} accumulated × {launched.world_size} process(es), "
        f"about {batch * row_tokens:,.0f} tokens"
    )


def time_line(
    trainer: Any,
    rows: Sequence[Any],
    loss: Callable[[Any], torch.Tensor],
    *,
    parameters: int,
    tokens: float,
    micros: int,
) -> Line:
    """An estimate of the run's seconds, and where it comes from.

    Args:
        rows: of data, a micro-batch of them; timed on models that are small enough.
        tokens: forward and backward, on all processes.
        micros: micro-batches on each process.
    """
    args = trainer.args
    if parameters <= MEASURED_UP_TO:
        batch = trainer._prepare_inputs(trainer.data_collator(rows))
        each = _time_passes(trainer, lambda: loss(batch))
        seconds = each * micros
        source = f"{each * 1000:.0f} ms a micro-batch, measured on this device"
    else:
        rate = _matmul_flops(args.device) * ASSUMED_UTILISATION
        seconds = 6 * parameters * tokens / rate / args.world_size
        source = (
            f"6 × parameters × tokens at {rate / 1e12:.1f} TFLOP/s a device "
            f"({ASSUMED_UTILISATION:.0%} of its measured matrix product; all experts counted)"
        )
    return "time", f"about {seconds:,.0f} s: {source}; evaluation and saving not counted"


def _time_passes(trainer: Any, loss: Callable[[], torch.Tensor]) -> float:
    """Seconds of one forward and backward pass; leaves no gradient behind."""
    model, device = trainer.model, trainer.args.device
    model.to(device).train()
    seconds: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        with trainer.compute_loss_context_manager():
            value = loss()
        value.backward()
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


def check_stops(model: PreTrainedModel, special: SpecialTokens) -> str:
    """One line on the generation config.

    Raises:
        ConfigError: generation would not stop at the end of a turn.
    """
    generation = model.generation_config
    assert generation is not None
    stops = generation.eos_token_id
    stop_ids = stops if isinstance(stops, list) else [stops]
    if special.end_id not in stop_ids or generation.pad_token_id in stop_ids:
        raise ConfigError(
            f"generation config stops at {stop_ids} and pads with {generation.pad_token_id}; "
            f"it must stop at {special.end_id} and pad with something else"
        )
    return f"generation stops at {stop_ids}, pads with {generation.pad_token_id}"
