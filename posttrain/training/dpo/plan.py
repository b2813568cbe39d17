"""What a DPO run will do, before it does it.

pairs        6,400: 1,920 no_tools, 1,920 with_tools, 2,560 hallucination_penalty; 0.9 M tokens
batch        128 pairs = 16 × 8 accumulated × 1 process, about 23,000 tokens
steps        50 × 128 = 6,400 pairs drawn, 1.00 epochs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from posttrain.errors import ConfigError
from posttrain.training.dpo.data import Pairs
from posttrain.training.dpo.trainer import PairTrainer
from posttrain.training.launch import Launched
from posttrain.training.plan import (
    GIB,
    ModelSize,
    checkpoint_bytes,
    estimate_seconds,
    model_lines,
    model_size,
    sharded_over,
    time_passes,
)

# a forward pass is about a third of a step
FORWARD_SHARE = 1 / 3


def check_enough_pairs(*, pairs: int, batch: int, steps: int, max_epochs: int) -> None:
    """Stop when pairs would be drawn more often than the recipe allows.

    Raises:
        ConfigError: with the three ways out.
    """
    drawn = batch * steps
    if drawn <= pairs * max_epochs:
        return
    epochs = -(-drawn // pairs)
    most = pairs * max_epochs // batch
    ways = [f"build {-(-drawn // max_epochs):,} pairs", f"set max_epochs: {epochs} to repeat them"]
    if most:
        ways.insert(1, f"set trainer.max_steps: {most}")
    raise ConfigError(
        f"{steps} steps × batch {batch} draw {drawn:,} pairs; the data has {pairs:,} and "
        f"max_epochs is {max_epochs}: {', or '.join(ways)}"
    )


@dataclass(frozen=True, slots=True)
class DpoPlan:
    """The numbers of a run; `plan_lines` prints them."""

    size: ModelSize
    drawn: int
    tokens: int
    trained: int
    missing: int
    disk_bytes: int
    seconds: float | None
    seconds_how: str


def make_plan(trainer: PairTrainer, *, got: Launched, measure: bool) -> DpoPlan:
    """Count and estimate.

    Args:
        measure: time a micro-batch on this device (model ≤ 300 M parameters only).
    """
    args, pairs = trainer.args, trainer.pairs
    drawn = trainer.global_batch * args.max_steps
    tokens, trained = int(pairs.lengths.sum()), _trained(pairs)
    missing = sum(len(trainer.store.shards[n]) for n in trainer.store.missing())
    size = model_size(trainer.model, sharded_over=sharded_over(got))
    kept = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
    cached = 24 * len(pairs) + 4 * int(trainer.store.key.tokens) * trained
    seconds, how = None, "not estimated"
    if measure:
        passes = drawn + FORWARD_SHARE * missing
        seconds, how = estimate_seconds(
            parameters=size.parameters,
            tokens=tokens / len(pairs) * passes,
            micros=round(passes / (args.per_device_train_batch_size * args.world_size)),
            args=args,
            micro=lambda: _time_micro_batch(trainer),
        )
    disk = checkpoint_bytes(size, kept=kept) + cached
    return DpoPlan(size, drawn, tokens, trained, missing, disk, seconds, how)


def _trained(pairs: Pairs) -> int:
    return int(pairs.chosen.sampled.sum() + pairs.rejected.sampled.sum())


def _time_micro_batch(trainer: PairTrainer) -> float:
    """Seconds of one forward and backward pass on pairs of the first step's middle length."""
    size = trainer.args.per_device_train_batch_size
    first = list(trainer._get_train_sampler())[: trainer.global_batch]
    start = max(0, (len(first) - size) // 2)
    batch = trainer.data_collator([trainer.pairs.data[row] for row in first[start : start + size]])
    batch = trainer._prepare_inputs(batch)

    def loss() -> torch.Tensor:
        with trainer.compute_loss_context_manager():
            scored = trainer.score(trainer.model, batch)
            return (scored.chosen - scored.rejected).mean()

    return time_passes(trainer.model, loss, trainer.args.device)


def plan_lines(
    plan: DpoPlan, trainer: PairTrainer, got: Launched, *, layout: str
) -> list[tuple[str, str]]:
    """The plan as (name, sentence) lines."""
    args, pairs, loss = trainer.args, trainer.pairs, trainer.loss
    kinds = ", ".join(f"{n:,} {name}" for name, n in pairs.by_category().items())
    batch = trainer.global_batch
    lines = [
        ("pairs", f"{len(pairs):,}: {kinds}; {plan.tokens:,} tokens, {plan.trained:,} trained"),
        ("loss", _loss_line(loss)),
        *model_lines(plan.size, args, got),
        ("layout", LAYOUTS[layout]),
        (
            "batch",
            f"{batch} pairs = {args.per_device_train_batch_size} × "
            f"{args.gradient_accumulation_steps} accumulated × {got.world_size} process(es), "
            f"about {batch * plan.tokens / len(pairs):,.0f} tokens",
        ),
        (
            "steps",
            f"{args.max_steps} × {batch} = {plan.drawn:,} pairs drawn, "
            f"{plan.drawn / len(pairs):.2f} epochs",
        ),
        ("reference", _reference_line(plan, trainer)),
        ("disk", f"{plan.disk_bytes / GIB:.2f} GiB at most, resume checkpoints included"),
    ]
    if plan.seconds is not None:
        lines.append(("time", f"about {plan.seconds:,.0f} s: {plan.seconds_how}; saving apart"))
    return lines


LAYOUTS = {
    "shared_prompt": "shared_prompt: a pair in one row, its prompt computed once",
    "unpacked": "unpacked: a completion a row, right-padded",
}


def _loss_line(loss: Any) -> str:
    kl = f" + {loss.kl_weight:g} × KL(reference ‖ policy) on chosen" if loss.kl_weight else ""
    return (
        f"{loss.preference_weight:g} × −log σ({loss.beta:g} × margin) + {loss.sft_weight:g} × SFT "
        f"on chosen ({loss.sft_form} of its tokens){kl}"
    )


def _reference_line(plan: DpoPlan, trainer: PairTrainer) -> str:
    store = trainer.store
    state = f"{plan.missing:,} pairs to compute" if plan.missing else "all on disk"
    return f"{store.path}: {state} (key {store.key.digest[:12]})"
