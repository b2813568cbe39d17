"""Lines of a run's plan, and checks that refuse a run before it starts.

Memory is that of a training step on one device: weights and optimiser from the parameters, the rest
from a step without data (`activations`, `shards`). Not counted: the CUDA context (about 1 GiB) and
what a GPU's allocator loses to fragments; on a CPU large blocks go back when they are freed.
"""

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
from posttrain.training.sharded import gathered_bytes, tensor_bytes

GIB = 1 << 30
# a dry run takes less than a minute, loading the model included: no slice is begun that would
# probably end later than this
MEASURING_SECONDS = 20.0
# tokens; enough to find the processor's caches as full as in a long pass
FIRST_SLICE = 128
# seconds of a run on a CPU from which the plan says how to make it shorter
LONG_ON_A_CPU = 3600.0
# bytes on a CPU that saving, the page and small blocks take after the plan has been made
_LATER_BYTES = 96 << 20
# share of a step's memory on a CPU that glibc's heap holds besides live blocks: an eighth was
# measured on a model of 135 M parameters and packs of 512 tokens
_HEAP_SHARE = 0.2
_PAGE_BYTES = 4096

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Size of a model, over all processes.

    Attributes:
        parameters: Number of parameters.
        trainable: Number of parameters that are trained.
        weight_bytes: Bytes of all parameters, as loaded.
        trainable_bytes: Bytes of the trained parameters, as loaded.
    """

    parameters: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int


def model_size(model: torch.nn.Module) -> ModelSize:
    """Size of a model, whose parameters may be sharded or without data."""
    parameters = 0
    trainable = 0
    weight_bytes = 0
    trainable_bytes = 0
    for parameter in model.parameters():
        # not `numel`, which is 0 for a parameter that ZeRO-3 has partitioned
        count = parameter_count(parameter)
        parameters += count
        weight_bytes += count * parameter.element_size()
        if parameter.requires_grad:
            trainable += count
            trainable_bytes += count * parameter.element_size()
    return ModelSize(parameters, trainable, weight_bytes, trainable_bytes)


def checkpoint_bytes(size: ModelSize, *, checkpoints: int) -> int:
    """Bytes on disk of the model and of this number of resume checkpoints."""
    # a resume checkpoint has weights and two Adam moments; one more exists while it is written
    return (checkpoints + 1) * (size.weight_bytes + 8 * size.trainable) + size.weight_bytes


def check_disk(needed: int, out: Path) -> None:
    """Refuse a run for which the disk of `out` has too few free bytes.

    Raises:
        ConfigError: fewer than `needed` bytes are free.
    """
    folder = out
    if not folder.exists():
        # the stage has not made it yet
        folder = next(parent for parent in out.resolve().parents if parent.exists())
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed:
        raise ConfigError(
            f"{out} needs about {needed / GIB:.2f} GiB, {free_bytes / GIB:.2f} GiB are free; "
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
    """Refuse a run that draws more rows than `max_epochs` allows.

    Args:
        name: word for the rows in the message, in the plural.
        batch: rows of a batch.
        updates: optimiser steps on each batch.
        fitting: overrides that together make the run fit these rows; "" if there are none.

    Raises:
        ConfigError: too many rows; the message proposes changes.
    """
    rows_drawn = batch * batches
    if rows_drawn <= rows * max_epochs:
        return
    largest_max_steps = rows * max_epochs // batch * updates
    changes = [f"give {-(-rows_drawn // max_epochs):,} {name}"]
    if largest_max_steps:
        changes.append(f"set trainer.max_steps: {largest_max_steps}")
    elif not fitting:
        changes.append(f"take batches of at most {rows * max_epochs:,} {name}")
    changes.append(f"set max_epochs: {-(-rows_drawn // max(rows, 1))} to repeat them")
    message = (
        f"{batches} batches × {batch} {name} draw {rows_drawn:,}; there are {rows:,} and "
        f"max_epochs is {max_epochs}: {', or '.join(changes)}"
    )
    if fitting:
        message += f". As they are, add to the command: {fitting}"
    raise ConfigError(message)


def check_batch(trainer: Any, rows: int, *, name: str) -> None:
    """Refuse a launch whose batch is not the recipe's `rows`, called `name` in the plural."""
    if trainer.global_batch != rows:
        raise ConfigError(
            f"an optimiser step has {rows} {name}, this launch makes it {trainer.global_batch}: "
            "the launcher did not say in WORLD_SIZE how many processes it starts; use posttrain "
            "launch"
        )


def batch_line(trainer: Any, launched: Launched, *, name: str, row_tokens: float) -> Line:
    """Line about the rows and tokens of an optimiser step.

    Args:
        name: word for the rows, in the plural.
        row_tokens: tokens of a row on average.
    """
    args = trainer.args
    batch = trainer.global_batch
    return "batch", (
        f"{batch} {name} = {args.per_device_train_batch_size} × "
        f"{args.gradient_accumulation_steps} accumulated × "
        f"{launched.world_size // launched.context} process(es), "
        f"about {batch * row_tokens:,.0f} tokens"
    )


@dataclass(frozen=True, slots=True)
class TimedSlice:
    """A timed forward and backward pass.

    Attributes:
        seconds: Seconds of a whole micro-batch, scaled up where only a slice of it was timed.
        positions: Positions of the largest slice that was timed.
        batch_positions: Positions of the micro-batch.
    """

    seconds: float
    positions: int
    batch_positions: int

    @property
    def text(self) -> str:
        """Text about the seconds and where they come from."""
        cost = f"{self.seconds:.2f} s a micro-batch of {self.batch_positions:,} positions"
        if self.positions >= self.batch_positions:
            return f"{cost}, measured on this device"
        return f"{cost}, scaled up from {self.positions:,} measured on this device"


def time_line(
    trainer: Any,
    batch_of: Callable[[int], Any],
    loss: Callable[[Any], torch.Tensor],
    *,
    tokens: int,
    micros: int,
    shrink: Sequence[str],
) -> list[Line]:
    """Lines with the estimated seconds of a run, and on a CPU with keys to reduce.

    Args:
        batch_of: function of a number of tokens; the collated micro-batch, cut to about that many.
        loss: scalar loss of a prepared micro-batch.
        tokens: tokens of the whole micro-batch.
        micros: number of micro-batches on each process.
        shrink: recipe keys that make the run shorter, the best first.
    """
    micro_batch = time_slices(trainer, batch_of, loss, tokens=tokens)
    seconds = micro_batch.seconds * micros
    text = f"about {duration(seconds)}: {micro_batch.text}; evaluation and saving not counted"
    return [("time", text), *shorter_lines(trainer.args.device, seconds, shrink)]


def shorter_lines(device: torch.device, seconds: float, shrink: Sequence[str]) -> list[Line]:
    """Line with the recipe keys to reduce where a run takes hours on a CPU; else no line."""
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
    """Time passes over ever longer slices of a micro-batch. Leaves no gradient behind.

    Ends when the whole of it is timed or `MEASURING_SECONDS` are nearly spent. Passes have the
    run's checkpointing, precision and kernels. Arguments as for `time_line`.
    """
    model = trainer.model
    model.to(trainer.args.device).train()
    batch_positions = batch_of(tokens)["input_ids"].numel()
    length = min(FIRST_SLICE, tokens)
    # not among the results: the first pass after a start is slower than all that follow
    seconds_spent = _time_pass(trainer, batch_of(length), loss)
    measurements: list[tuple[int, float]] = []
    while True:
        batch = batch_of(length)
        seconds = _time_pass(trainer, batch, loss)
        seconds_spent += seconds
        measurements.append((batch["input_ids"].numel(), seconds))
        # the next slice is twice as long; attention makes it take a little more than twice
        if length >= tokens or seconds_spent + 3 * seconds > MEASURING_SECONDS:
            break
        length = min(2 * length, tokens)
    # kept until now: to allocate gradients anew would cost a short pass as much as it computes
    model.zero_grad(set_to_none=True)
    positions, _ = measurements[-1]
    return TimedSlice(scale_up(measurements, batch_positions), positions, batch_positions)


def _time_pass(trainer: Any, batch: Any, loss: Callable[[Any], torch.Tensor]) -> float:
    """Seconds of one forward and backward pass as in training; adds to the gradients."""
    inputs = trainer._prepare_inputs(batch)
    with trainer.recomputing_activations():
        start = time.perf_counter()
        with trainer.compute_loss_context_manager():
            value = loss(inputs)
        value.backward()
        if trainer.args.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def check_stops(model: PreTrainedModel, special: SpecialTokens) -> str:
    """Line about the stop and pad tokens of the generation config.

    Raises:
        ConfigError: generation would not stop at the end of a turn.
    """
    generation = model.generation_config
    assert generation is not None
    end_ids = generation.eos_token_id
    stop_ids = end_ids if isinstance(end_ids, list) else [end_ids]
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
        weights: Weights of the model, of a reference model, and rounded copies.
        optimizer: Moments, and float32 copies of weights that are held in half precision.
        step: Activations and gradients of a training step.
        rollouts: Cache and gathered weights while completions are sampled, or the share of a vLLM
            that sleeps while the policy trains.
        vllm: Share of a vLLM that does not sleep.
        teachers: Frozen models that score what the policy samples.
        process: On a CPU, the interpreter and its libraries, which share the memory.
        heap: On a CPU, the gaps between live blocks.
    """

    weights: int
    optimizer: int
    step: StepMemory
    rollouts: int = 0
    vllm: int = 0
    teachers: int = 0
    process: int = 0
    heap: int = 0

    @property
    def peak(self) -> int:
        """Bytes at the worst moment: that of a training step, or that of the rollouts."""
        # completions are sampled before there are gradients, so that the two do not add up
        permanent = self.process + self.weights + self.optimizer + self.teachers
        permanent += self.vllm + self.heap
        return permanent + max(self.step.total, self.rollouts)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by name, those of the step one by one."""
        return {
            "weights": self.weights,
            "optimizer": self.optimizer,
            **asdict(self.step),
            "rollouts": self.rollouts,
            "vllm": self.vllm,
            "teachers": self.teachers,
            "process": self.process,
            "heap": self.heap,
        }


@dataclass(frozen=True, slots=True)
class FrozenModels:
    """Models of a process that score what the policy samples, such as teachers.

    Attributes:
        models: The models, each once.
        on_device: Greatest number of them on the device at a time; None: all.
    """

    models: Sequence[torch.nn.Module] = ()
    on_device: int | None = None

    def bytes_on(self, device: torch.device) -> int:
        """Bytes of as many of the models as are on a device at a time, the largest ones.

        Of a model that is split over processes: its parts here, and what one pass gathers.
        """
        sizes = sorted(map(tensor_bytes, self.models), reverse=True)
        gathered = max(map(gathered_bytes, self.models), default=0)
        # those that leave a CPU's memory go nowhere
        return sum(sizes if device.type == "cpu" else sizes[: self.on_device]) + gathered


def state_bytes(
    size: ModelSize, launched: Launched, *, moments: int = 8, reference: int = 0
) -> dict[str, int]:
    """Bytes of `weights` and `optimizer` in one process, by how they are sharded.

    Args:
        moments: bytes of the optimiser's moments for each trained parameter.
        reference: bytes of a reference model.
    """
    processes = launched.world_size
    parameter_bytes = 4 if launched.precision == "fp32" else 2
    weight_shards = 1
    if launched.sharding in ("zero2", "zero3"):
        if launched.sharding == "zero3":
            weight_shards = processes
        weights = parameter_bytes * size.parameters
        # DeepSpeed keeps a float32 copy of each trained parameter beside its moments
        optimizer = (moments + 4) * size.trainable // processes
    elif launched.sharding.startswith("fsdp"):
        weight_shards = processes
        # trained weights are held in float32, and computed in the launcher's precision
        weights = size.weight_bytes - size.trainable_bytes + 4 * size.trainable
        optimizer = moments * size.trainable // processes
    else:
        weights = size.weight_bytes
        # the moments have the precision of the weights
        optimizer = moments * size.trainable_bytes // 4
    return {"weights": (weights + reference) // weight_shards, "optimizer": optimizer}


def plan_memory(
    trainer: Any,
    launched: Launched,
    batch: Mapping[str, torch.Tensor],
    *,
    adapter: AdapterConfig | None,
    rollouts: RolloutShape | ColocatedVllm | None = None,
    frozen: FrozenModels = FrozenModels(),
) -> MemoryPlan:
    """Plan of a trainer's memory.

    Args:
        batch: largest collated micro-batch.
        rollouts: shape of the largest rollout batch or settings of a colocated vLLM; None where
            nothing is sampled in this process.
        frozen: models that score beside the policy.
    """
    args = trainer.args
    base_model = trainer.base_model
    reference = getattr(trainer, "ref_model", None)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(launched.precision)
    on_cpu = launched.device == "cpu"
    sharded = launched.sharding != "none"
    # sharded weights are cast when they are gathered, others are autocast in each operation
    dtype = half if sharded and half is not None else base_model.dtype
    ids = batch["input_ids"]
    labels = int((batch["labels"] != IGNORED).sum())
    if on_cpu and sharded:
        # this project's head for CPUs is not used then, and TRL's scores every position
        labels = ids.numel()
    shape = StepShape(
        rows=ids.shape[0],
        columns=ids.shape[1],
        labels=labels,
        masked=base_model.config._attn_implementation not in VARLEN_ATTENTION,
        dtype=dtype,
        autocast=None if sharded else half,
        checkpointing=args.gradient_checkpointing,
        cpu_head=on_cpu and not sharded,
        kernels=has_recurrent_kernels() and not on_cpu,
        accumulated=args.gradient_accumulation_steps > 1,
    )
    size = model_size(trainer.model)
    parts = state_bytes(
        size,
        launched,
        # two moments of a parameter, in float32 or of 8 bits
        moments=2 if "8bit" in args.optim else 8,
        reference=0 if reference is None else model_size(reference).weight_bytes,
    )
    # a policy that is rounded has rounded copies beside the weights that train
    parts["weights"] += getattr(trainer, "copied_bytes", 0)
    sampling = 0
    vllm = 0
    if isinstance(rollouts, ColocatedVllm):
        vllm_share = int(rollouts.gpu_memory * device_bytes(args.device))
        if rollouts.sleep:
            sampling = vllm_share
        else:
            vllm = vllm_share
    elif rollouts is not None:
        cache = rollout_bytes(base_model.config, rollouts, dtype)
        sampling = cache + whole_bytes(size, launched)
    step = measure_step(base_model.config, shape, adapter, launched)
    return MemoryPlan(
        **parts,
        step=step,
        rollouts=sampling,
        vllm=vllm,
        teachers=frozen.bytes_on(args.device),
        process=process_bytes(trainer, frozen.models) if on_cpu else 0,
        heap=int(_HEAP_SHARE * step.total) if on_cpu else 0,
    )


def process_bytes(trainer: Any, frozen: Sequence[torch.nn.Module] = ()) -> int:
    """Bytes that this process holds besides the weights of its models, and will hold later."""
    models = [trainer.model, *frozen]
    reference = getattr(trainer, "ref_model", None)
    if reference is not None:
        models.append(reference)
    for model in models:
        _read_pages(model)
    model_bytes = sum(map(tensor_bytes, models))
    return max(psutil.Process().memory_info().rss - model_bytes, 0) + _LATER_BYTES


def _read_pages(model: torch.nn.Module) -> None:
    """Read every page of a model's weights: those mapped from a file take no memory until then."""
    for tensor in (*model.parameters(), *model.buffers()):
        # a part of sharded weights is a copy, and lies in memory already
        if type(tensor.data) is torch.Tensor and tensor.device.type == "cpu":
            tensor.detach().flatten().view(torch.uint8)[::_PAGE_BYTES].sum()


def whole_bytes(size: ModelSize, launched: Launched) -> int:
    """Bytes of the weights that a process gathers to sample by itself; 0 where it has them."""
    if launched.sharding in ("none", "zero2"):
        return 0
    parameter_bytes = 4 if launched.precision == "fp32" else 2
    return parameter_bytes * size.parameters


def device_bytes(device: torch.device) -> int:
    """Bytes of memory of a GPU, or of the machine where the device is its CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return psutil.virtual_memory().total


def device_room(device: torch.device, plan: MemoryPlan) -> int:
    """Bytes that a process may hold on a device, those that it holds by now included."""
    if device.type == "cuda":
        return device_bytes(device)
    # weights, teachers and libraries are loaded by now, and part of the plan
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    loaded_bytes = plan.weights + plan.teachers + plan.process
    return psutil.virtual_memory().available // processes + loaded_bytes


def memory_line(plan: MemoryPlan, room: int) -> tuple[str, str]:
    """Line about the peak and its parts; parts below a hundredth of the peak are left out.

    Args:
        room: bytes that the process may hold.

    Raises:
        ConfigError: the peak does not fit.
    """
    parts = sorted(((size, name) for name, size in plan.parts.items()), reverse=True)
    large_parts = [f"{name} {size / GIB:.2f}" for size, name in parts if size > plan.peak / 100]
    text = (
        f"{plan.peak / GIB:.3f} of {room / GIB:.1f} GiB a process at the most: "
        f"{', '.join(large_parts)}"
    )
    if plan.peak <= room:
        return "memory", text
    teachers = ""
    if plan.teachers:
        teachers = (
            "; teachers with --config_file accelerate/fsdp2 and more processes, teachers_in_memory "
            "on a GPU, or as an adapter: on one model"
        )
    raise ConfigError(
        f"a step needs more memory than there is, {text}. Smaller: activations with "
        "trainer.gradient_checkpointing: true and a smaller trainer.per_device_train_batch_size; "
        "weights, gradients and optimizer with --config_file accelerate/fsdp2, more processes or "
        "an adapter:; rollouts with a smaller rollouts.batch_size or rollouts.gpu_memory"
        f"{teachers}"
    )
