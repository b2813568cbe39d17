"""Packed against padded SFT: real tokens a second, peak memory, fill; same model, same sequences.

    python -m benchmarks sft_throughput                 # a 0.5 B model on a GPU, a tiny one on CPU
    python -m benchmarks sft_throughput --data runs/tiny/sft_data --steps 10
    python -m benchmarks sft_throughput --model DIR --data DATA --capacity 2048 --tokens 2048

Arms: `padded` is one sequence a row through TRL's collator; `trl packed` is TRL's best-fit packing,
the micro-batch flattened into one row; `ours` is the layout that `document_masking: auto` chooses.
On a CPU `block_diagonal` deals sequences into rows of equal width. With `--model` the arms take
turns, a micro-batch of the same sequences each, and are compared by CPU seconds.
"""

from __future__ import annotations

import itertools
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl.data_utils import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import add_fused_lm_head

from benchmarks.shapes import (
    PAD,
    SHAPES,
    add_comparison_arguments,
    peak_gib,
    random_model,
    write_figures,
)
from posttrain.models.load import CPU_VARLEN
from posttrain.tokens import pack_lengths
from posttrain.training.cpu_attention import use_cpu_varlen
from posttrain.training.cpu_head import use_cpu_head
from posttrain.training.document_masking import choose_document_masking, make_collator, sequences
from posttrain.training.sft.data import load_split


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one arm.

    Attributes:
        tokens_per_second: real tokens a second of the clock.
        tokens_per_cpu_second: the same of CPU seconds, by which arms on a CPU are compared: other
            work on the machine does not change it.
        fill: share of computed positions that are real tokens.
    """

    arm: str
    tokens_per_second: float
    tokens_per_cpu_second: float | None
    fill: float
    peak_gib: float
    loss: float


def synthetic(count: int, longest: int, vocabulary: int) -> list[dict[str, list[int]]]:
    """Sequences with log-normal lengths, 40 % prompt."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        length = min(longest, max(8, int(rng.lognormvariate(5.0, 0.8))))
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        prompt = int(0.4 * length) + 1
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


def from_artifact(path: Path, count: int) -> list[dict[str, list[int]]]:
    """Sequences of the packs of an `sft_data` artifact."""
    packs = load_split(path, "train", pad_id=PAD)
    if packs is None:
        raise SystemExit(f"{path} has no packed rows")
    parts = (part for row in range(len(packs) - 1) for part in sequences(packs[row]))
    return [
        {"input_ids": list(ids), "labels": list(labels)}
        for ids, labels in itertools.islice(parts, count)
    ]


def our_packs(rows: Sequence[dict[str, list[int]]], capacity: int) -> list[dict[str, Any]]:
    """Packs of the rows, as build_sft makes them."""
    packed = []
    for pack in pack_lengths([len(row["input_ids"]) for row in rows], capacity):
        packed.append(
            {
                "input_ids": [i for n in pack for i in rows[n]["input_ids"]],
                "labels": [i for n in pack for i in rows[n]["labels"]],
                "seq_lengths": [len(rows[n]["input_ids"]) for n in pack],
            }
        )
    return packed


def batches(rows: Sequence[dict[str, Any]], tokens: int) -> Iterator[list[dict[str, Any]]]:
    """Micro-batches of about `tokens` real tokens, for ever."""
    batch: list[dict[str, Any]] = []
    for row in itertools.cycle(rows):
        batch.append(row)
        if sum(len(r["input_ids"]) for r in batch) >= tokens:
            yield batch
            batch = []


def measure(
    arm: str, model: PreTrainedModel, collator: Any, rows: Sequence[dict[str, Any]], args: Any
) -> Result:
    """Train an arm on `args.steps` micro-batches, after one that warms up."""
    device = model.device
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    real = computed = 0
    loss = 0.0
    started = 0.0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step, batch in enumerate(itertools.islice(batches(rows, args.tokens), args.steps + 1)):
        if step == 1:
            _synchronise(device)
            started = time.perf_counter()
        inputs = {
            key: value.to(device) if isinstance(value, torch.Tensor) else value
            for key, value in collator(batch).items()
        }
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            out = model(**inputs, use_cache=False, fused_lm_head=True)
        out.loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if step:
            real += sum(len(row["input_ids"]) for row in batch)
            computed += inputs["input_ids"].numel()
            loss = float(out.loss.detach())
    _synchronise(device)
    seconds = time.perf_counter() - started
    return Result(arm, real / seconds, None, real / computed, peak_gib(device), loss)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@dataclass
class Arm:
    """Way to train on the same sequences (layout, attention, head), with its sums so far."""

    name: str
    collator: Any
    rows_of: Any
    attention: str
    forward: Any
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    positions: int = 0
    loss: float = 0.0


def take_turns(
    model: PreTrainedModel, packs: Sequence[dict[str, Any]], args: Any
) -> Iterator[Result]:
    """Run all arms on a CPU in turns, a step of each on the sequences of the same pack.

    The learning rate is 0, so that every arm must give the same loss.
    """
    padded = DataCollatorForLanguageModeling(pad_token_id=PAD)
    padding_free = DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=True)
    trl_forward = model.forward
    assert use_cpu_head(model)
    our_forward = model.forward
    assert use_cpu_varlen(model)

    def best_fit(pack: dict[str, Any]) -> list[Any]:
        return list(pack_dataset(Dataset.from_list(unpacked(pack)), args.capacity, "bfd"))

    def whole(pack: dict[str, Any]) -> list[dict[str, Any]]:
        return [pack]

    varlen = make_collator("varlen", PAD)
    block_diagonal = make_collator("block_diagonal", PAD)
    arms = [
        Arm("ours (varlen)", varlen, whole, CPU_VARLEN, our_forward),
        Arm("ours (block_diagonal)", block_diagonal, whole, "sdpa", our_forward),
        Arm("trl padded", padded, unpacked, "sdpa", trl_forward),
        Arm("trl packed", padding_free, best_fit, "sdpa", trl_forward),
    ]
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    tokens = 0
    for step in range(args.steps + 1):
        pack = packs[step % len(packs)]
        tokens += len(pack["input_ids"]) if step else 0
        losses: list[float] = []
        for turn in range(len(arms)):
            arm = arms[(turn + step) % len(arms)]
            model.set_attn_implementation(arm.attention)
            model.forward = arm.forward
            rows = arm.rows_of(pack)
            started = time.perf_counter()
            cpu_started = time.process_time()
            inputs = arm.collator(rows)
            loss = model(**inputs, use_cache=False, fused_lm_head=True).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            if step:  # the first round warms up
                arm.cpu_seconds += time.process_time() - cpu_started
                arm.seconds += time.perf_counter() - started
                arm.positions += inputs["input_ids"].numel()
                arm.loss += losses[-1] / args.steps
        if max(losses) - min(losses) > 1e-4:
            raise SystemExit(f"the arms do not train the same: losses {losses}")
    for arm in arms:
        yield Result(
            arm=arm.name,
            tokens_per_second=tokens / arm.seconds,
            tokens_per_cpu_second=tokens / arm.cpu_seconds,
            fill=tokens / arm.positions,
            peak_gib=peak_gib(model.device),
            loss=arm.loss,
        )


def unpacked(pack: dict[str, Any]) -> list[dict[str, Any]]:
    """Sequences of a pack, each in a row of its own."""
    return [{"input_ids": list(ids), "labels": list(labels)} for ids, labels in sequences(pack)]


def build(shape: str, longest: int, path: Path | None = None) -> PreTrainedModel:
    """Model with TRL's head, which computes no logits of positions without a label."""
    model = random_model(shape, positions=longest)
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    return model.train()


def add_arguments(parser: ArgumentParser) -> None:
    on_gpu = torch.cuda.is_available()
    add_comparison_arguments(parser)
    parser.add_argument("--data", type=Path, help="an sft_data artifact; default: synthetic")
    parser.add_argument("--model", type=Path, help="a model's folder, on a CPU; default: random")
    parser.add_argument("--capacity", type=int, default=8192 if on_gpu else 1024)
    parser.add_argument("--tokens", type=int, default=32768 if on_gpu else 4096)
    parser.add_argument("--steps", type=int, default=20 if on_gpu else 3)


def main(args: Namespace) -> None:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        print("no GPU: with one, this measures a 0.5 B model in bf16 with varlen kernels.")
        print("Now in fp32 on a CPU, where TRL's packed arm masks over the whole micro-batch.")
    vocabulary = SHAPES[args.shape]["vocab_size"]
    count = 20 * args.steps * args.tokens // 200
    if args.data:
        rows = from_artifact(args.data, count)
    else:
        rows = synthetic(min(count, 20_000), args.capacity, vocabulary)
    if on_gpu:
        results = list(run_arms(rows, args))
    else:
        model = build(args.shape, args.capacity, args.model)
        results = list(take_turns(model, our_packs(rows, args.tokens), args))
    for r in results:
        print(
            f"{r.arm:<22} {r.tokens_per_second:>9,.0f} tokens/s  "
            f"{r.tokens_per_cpu_second or 0:>9,.0f} a CPU s  fill {r.fill:>6.1%}  "
            f"peak {r.peak_gib:.2f} GiB  loss {r.loss:.3f}"
        )
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    size = sum(weight.numel() for weight in random_model(args.shape).parameters())
    write_figures(args.out, results, device=device, parameters=size)


def run_arms(rows: list[dict[str, list[int]]], args: Any) -> Iterator[Result]:
    """Run each arm on a fresh copy of the same model, on a GPU."""
    padding_free = DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=True)
    model = build(args.shape, args.capacity)
    document_masking = choose_document_masking("auto", model)
    packs = our_packs(rows, args.capacity)
    yield measure(
        f"ours ({document_masking})", model, make_collator(document_masking, PAD), packs, args
    )
    padded = DataCollatorForLanguageModeling(pad_token_id=PAD)
    yield measure("trl padded", build(args.shape, args.capacity), padded, rows, args)
    packed: list[Any] = list(pack_dataset(Dataset.from_list(rows), args.capacity, "bfd"))
    yield measure("trl packed", build(args.shape, args.capacity), padding_free, packed, args)
