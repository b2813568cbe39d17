"""The lines of a plan: what a run will do, and what would make it wrong, before it starts.

Memory is that of a training step on one device: weights and optimiser from the parameters, the rest
from a step without data (`activations`, `shards`). Not counted: the CUDA context (about 1 GiB) and
what a GPU's allocator loses to fragments; on a CPU large blocks go back when they are freed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel

from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.models.load import VARLEN_ATTENTION, has_recurrent_kernels, parameter_count
from posttrain.timing import duration, scale_up
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.activations import (
    RolloutShape,
    StepMemory,
    StepShape,
    measure_step,
    rollout_bytes,
)
from posttrain.training.launch import Launched

GIB = 1 << 30
# a dry run takes less than a minute, loading the model included: no slice is begun that would
# probably end later than this
MEASURING_SECONDS = 20.0
# tokens; enough to find the processor's caches as full as in a long pass
FIRST_SLICE = 128
LONG_ON_A_CPU = 3600.0
# bytes on a CPU that saving, the page and small blocks take behind the plan
_LATER = 96 << 20
# of a step's memory on a CPU, what glibc's heap holds besides live blocks: an eighth was measured
# on a model of 135 M parameters and packs of 512 tokens
_HEAP = 0.2

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


def checkpoint_bytes(size: ModelSize, *, checkpoints: int) -> int:
    """Bytes on disk of the model and so many resume checkpoints."""
    # a resume checkpoint has weights and two Adam moments; one more exists while it is written
    return (checkpoints + 1) * (size.weight_bytes + 8 * size.trainable) + size.weight_bytes


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
    rows: int,
    *,
    name: str,
    batch: int,
    batches: int,
    max_epochs: int,
    updates: int = 1,
    fitting: str = "",
) -> None:
    """Raises ConfigError: the run draws more rows, called `name`, than `max_epochs` allows; with
    the ways out. `updates`: optimiser steps on each batch; `fitting`: overrides that go together
    and make a run of these rows."""
    total = batch * batches
    if total <= rows * max_epochs:
        return
    most = rows * max_epochs // batch * updates
    ways = [f"give {-(-total // max_epochs):,} {name}"]
    if most:
        ways.append(f"set trainer.max_steps: {most}")
    elif not fitting:
        ways.append(f"take batches of at most {rows * max_epochs:,} {name}")
    ways.append(f"set max_epochs: {-(-total // max(rows, 1))} to repeat them")
    raise ConfigError(
        f"{batches} batches × {batch} {name} draw {total:,}; there are {rows:,} and max_epochs is "
        f"{max_epochs}: {', or '.join(ways)}"
        + (f". As they are, add to the command: {fitting}" if fitting else "")
    )


def check_batch(trainer: Any, rows: int, *, name: str) -> None:
    """Refuse a launch whose batch is not the recipe's `rows`, called `name` in the plural."""
    if trainer.global_batch != rows:
        raise ConfigError(
            f"an optimiser step has {rows} {name}, this launch makes it {trainer.global_batch}: "
            "the launcher did not say in WORLD_SIZE how many processes it starts; use posttrain "
            "launch"
        )


def batch_line(trainer: Any, launched: Launched, *, name: str, row_tokens: float) -> Line:
    """How an optimiser step is made up of rows of `row_tokens` tokens on average."""
    args, batch = trainer.args, trainer.global_batch
    return "batch", (
        f"{batch} {name} = {args.per_device_train_batch_size} × "
        f"{args.gradient_accumulation_steps} accumulated × {launched.world_size} process(es), "
        f"about {batch * row_tokens:,.0f} tokens"
    )


@dataclass(frozen=True, slots=True)
class TimedSlice:
    """A timed forward and backward pass.

    Attributes:
        seconds: of a whole micro-batch.
        positions: of the largest slice that was timed; `whole`: of the micro-batch.
    """

    seconds: float
    positions: int
    whole: int

    @property
    def text(self) -> str:
        """What was measured, and what was scaled up."""
        each = f"{self.seconds:.2f} s a micro-batch of {self.whole:,} positions"
        if self.positions >= self.whole:
            return f"{each}, measured on this device"
        return f"{each}, scaled up from {self.positions:,} measured on this device"


def time_line(
    trainer: Any,
    batch_of: Callable[[int], Any],
    loss: Callable[[Any], torch.Tensor],
    *,
    tokens: int,
    micros: int,
    shrink: Sequence[str],
) -> list[Line]:
    """An estimate of the run's seconds and where it comes from; on a CPU also what to shrink.

    Args:
        batch_of: the collated micro-batch, cut to about this number of tokens.
        tokens: of the whole micro-batch.
        micros: micro-batches on each process.
        shrink: keys of recipes that make the run shorter, the best first.
    """
    timed = time_slices(trainer, batch_of, loss, tokens=tokens)
    seconds = timed.seconds * micros
    text = f"about {duration(seconds)}: {timed.text}; evaluation and saving not counted"
    return [("time", text), *shorter_lines(trainer.args.device, seconds, shrink)]


def shorter_lines(device: torch.device, seconds: float, shrink: Sequence[str]) -> list[Line]:
    """What to shrink where a run takes hours on a CPU."""
    if device.type != "cpu" or seconds < LONG_ON_A_CPU:
        return []
    return [("shorter", f"{duration(seconds)} on a CPU. Shrink {', or '.join(shrink)}")]


def time_slices(
    trainer: Any,
    batch_of: Callable[[int], Any],
    loss: Callable[[Any], torch.Tensor],
    *,
    tokens: int,
) -> TimedSlice:
    """Time passes over ever longer slices of a micro-batch, up to all of it or to the bound in
    seconds, with the run's checkpointing, precision and kernels. Leaves no gradient behind."""
    model = trainer.model
    model.to(trainer.args.device).train()
    whole = batch_of(tokens)["input_ids"].numel()
    # the first pass after a start is slower than all that follow
    length = min(FIRST_SLICE, tokens)
    spent = _time_pass(trainer, batch_of(length), loss)
    timed: list[tuple[int, float]] = []
    while True:
        batch = batch_of(length)
        seconds = _time_pass(trainer, batch, loss)
        spent += seconds
        timed.append((batch["input_ids"].numel(), seconds))
        # the next slice is twice as long; attention makes it take a little more than twice
        if length >= tokens or spent + 3 * seconds > MEASURING_SECONDS:
            break
        length = min(2 * length, tokens)
    # kept until now: to allocate them anew would cost each short pass as much as it computes
    model.zero_grad(set_to_none=True)
    positions, _ = timed[-1]
    return TimedSlice(scale_up(timed, whole), positions, whole)


def _time_pass(trainer: Any, batch: Any, loss: Callable[[Any], torch.Tensor]) -> float:
    """Seconds of one forward and backward pass as in training; adds to the gradients."""
    inputs = trainer._prepare_inputs(batch)
    with trainer.recomputing_activations():
        started = time.perf_counter()
        with trainer.compute_loss_context_manager():
            value = loss(inputs)
        value.backward()
        if trainer.args.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


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


# ---- memory ----


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device.

    Attributes:
        weights: with those of a reference model.
        optimizer: moments, and float32 copies of weights that are held in less.
        rollouts: cache and gathered weights while completions are sampled, or the share of a vLLM
            that sleeps while it trains; `vllm`: the share of one that does not.
        process: on a CPU the interpreter and its libraries, which share the memory.
        heap: on a CPU the gaps between live blocks.
    """

    weights: int
    optimizer: int
    step: StepMemory
    rollouts: int = 0
    vllm: int = 0
    process: int = 0
    heap: int = 0

    @property
    def peak(self) -> int:
        """At the worst moment: completions are sampled before there are gradients."""
        always = self.process + self.weights + self.optimizer + self.vllm + self.heap
        return always + max(self.step.total, self.rollouts)

    @property
    def parts(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "optimizer": self.optimizer,
            **asdict(self.step),
            "rollouts": self.rollouts,
            "vllm": self.vllm,
            "process": self.process,
            "heap": self.heap,
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
    step = measure_step(base.config, shape, adapter, launched)
    return MemoryPlan(
        **parts,
        step=step,
        rollouts=sampling,
        vllm=vllm,
        process=process_bytes(trainer) if cpu else 0,
        heap=int(_HEAP * step.total) if cpu else 0,
    )


def process_bytes(trainer: Any) -> int:
    """Bytes that this process holds besides the weights of its models, and will hold later."""
    models = [trainer.model, getattr(trainer, "ref_model", None)]
    held = sum(
        tensor.nbytes
        for model in models
        if model is not None
        for tensor in (*model.parameters(), *model.buffers())
    )
    return max(psutil.Process().memory_info().rss - held, 0) + _LATER


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
    return psutil.virtual_memory().available // processes + plan.weights + plan.process


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
