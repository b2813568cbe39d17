"""What a group-relative run will do, before it does it.

batch        128 prompts × 16 = 2,048 rollouts on 2 process(es), 1 update of 8 × 128 accumulated
steps        100: 12,800 prompts drawn, 1.07 epochs, 204,800 rollouts of at most 512 tokens
time         about 5,400 s: 54 s a step, from a few rollouts made and trained on here; …
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from posttrain.group_rewards import GroupRewards
from posttrain.training.plan import (
    GIB,
    MEASURED_UP_TO,
    ModelSize,
    checkpoint_bytes,
    model_lines,
    model_size,
)
from posttrain.training.rl.batch import collate, trained_rows, with_advantages
from posttrain.training.rl.stage import Prepared
from posttrain.training.rl.trainer import GroupTrainer

# rollouts that are made to see how long they take
MEASURED = 32
# of JSON for each token of a rollout, judgements not counted
TOKEN_BYTES = 5


@dataclass(frozen=True, slots=True)
class GrpoPlan:
    """The numbers of a run; `plan_lines` prints them."""

    size: ModelSize
    rollouts: int
    disk_bytes: int
    seconds: float | None


def make_plan(prepared: Prepared, *, measure: bool) -> GrpoPlan:
    """Count and estimate.

    Args:
        measure: make and train on a few rollouts on this device (model ≤ 300 M parameters only).
    """
    trainer, recipe = prepared.trainer, prepared.recipe
    args = trainer.args
    size = model_size(trainer.model, sharded_over=1)
    rollouts = prepared.drawn * recipe.num_generations
    kept = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
    disk = checkpoint_bytes(size, kept=kept)
    disk += rollouts * recipe.sampling.max_tokens * TOKEN_BYTES
    seconds = None
    if measure and size.parameters <= MEASURED_UP_TO and recipe.sampling.server is None:
        seconds = _seconds_a_rollout(trainer) * rollouts / prepared.launched.world_size
    return GrpoPlan(size, rollouts, disk, seconds)


def _seconds_a_rollout(trainer: GroupTrainer) -> float:
    """Of making a few and one pass forward and back over them; leaves no gradient behind."""
    recipe = trainer.recipe
    prompts = trainer.maker.drawn(0)[0][: -(-MEASURED // recipe.num_generations)]
    trainer.model.to(trainer.args.device).train()
    started = time.perf_counter()
    groups = trainer.maker.roll_out(0, prompts)
    given = [GroupRewards((0.0,) * recipe.num_generations)] * len(groups)
    scored = with_advantages(range(len(groups)), groups, given)
    rows = trained_rows(scored, overlong="train")
    size = trainer.args.per_device_train_batch_size
    for at in range(0, len(rows), size):
        batch = trainer.place(collate(rows[at : at + size], pad_id=trainer.pad_id))
        with trainer.compute_loss_context_manager():
            trainer.score(trainer.model, batch)[0].sum().backward()
    if trainer.args.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    trainer.model.zero_grad(set_to_none=True)
    return seconds / len(rows)


def plan_lines(plan: GrpoPlan, prepared: Prepared) -> list[tuple[str, str]]:
    """The plan as (name, sentence) lines, the preflight's among them."""
    trainer, recipe, got = prepared.trainer, prepared.recipe, prepared.launched
    args, loss = trainer.args, recipe.loss
    prompts = len(trainer.rollouts.prompts)
    num_iterations = f"{loss.num_iterations} update{'s' if loss.num_iterations > 1 else ''}"
    lines = [
        *model_lines(plan.size, args, got),
        ("loss", _loss_line(prepared)),
        (
            "batch",
            f"{recipe.prompts_per_step} prompts × {recipe.num_generations} = "
            f"{recipe.prompts_per_step * recipe.num_generations:,} rollouts on {got.world_size} "
            f"process(es), {num_iterations} of {args.per_device_train_batch_size} × "
            f"{args.gradient_accumulation_steps} accumulated on each",
        ),
        (
            "steps",
            f"{args.max_steps}: {prepared.drawn:,} prompts drawn, {prepared.drawn / prompts:.2f} "
            f"epochs, {plan.rollouts:,} rollouts of at most {recipe.sampling.max_tokens} tokens",
        ),
        ("disk", f"{plan.disk_bytes / GIB:.2f} GiB at most, resume checkpoints included"),
        *prepared.preflight.lines,
    ]
    if plan.seconds is not None:
        lines.append(
            (
                "time",
                f"about {plan.seconds:,.0f} s: {plan.seconds / args.max_steps:.1f} s a step, from "
                "a few rollouts made and trained on here; rewards come on top",
            )
        )
    return lines


def _loss_line(prepared: Prepared) -> str:
    loss = prepared.recipe.loss
    clip = f"clip −{loss.clip_low:g}/+{loss.clip_high:g}"
    # with one update the policy is the one that sampled, and nothing can be clipped
    idle = " (idle with one update a batch)" if loss.num_iterations == 1 else ""
    kl = f", KL {loss.kl:g}" if loss.kl else ", no KL"
    kept = "out of" if loss.overlong == "mask" else "in"
    return f"per token over the batch, {clip}{idle}{kl}, truncated completions {kept} the loss"
