"""Plan of a group-relative run: counts and time estimates in lines such as

steps        100: 12,800 prompts drawn, 1.07 epochs, 204,800 rollouts of at most 512 tokens
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.config.backend import Server
from posttrain.config.grpo import (
    GrpoLossConfig,
    InProcessRollouts,
    LoraServer,
    RolloutEngine,
)
from posttrain.group_rewards import GroupRewards
from posttrain.training.launch import SPLITS_WEIGHTS
from posttrain.training.plan import (
    GIB,
    MEASURING_SECONDS,
    Line,
    ModelSize,
    checkpoint_bytes,
    duration,
    shorter_lines,
    time_slices,
)
from posttrain.training.rl.batch import collate, trained_rows, with_advantages
from posttrain.training.rl.step import PolicyReward
from posttrain.training.rl.trainer import GroupTrainer
from posttrain.training.stage import PreparedRun

# Limit in tokens of the first timed rollouts; it grows while they are cheap
FIRST_ROLLOUT = 16
# Bytes of JSON for each token of a rollout, judgements not counted
TOKEN_BYTES = 5


def make_plan(
    prepared: PreparedRun[GroupTrainer], size: ModelSize, *, measure: bool
) -> tuple[list[Line], int]:
    """Lines of the plan, and the bytes that the run needs on disk.

    Args:
        measure: sample a few rollouts on this device and time the training on them.
    """
    trainer = prepared.trainer
    processes = prepared.launched.world_size
    recipe = trainer.recipe
    args = trainer.args
    prompts = len(trainer.rollouts.prompts)
    updates = recipe.loss.num_iterations
    max_tokens = recipe.sampling.max_tokens
    prompts_drawn = args.max_steps // updates * recipe.prompts_per_step
    rollouts = prompts_drawn * recipe.num_generations
    checkpoints = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
    disk = checkpoint_bytes(size, checkpoints=checkpoints) + rollouts * max_tokens * TOKEN_BYTES
    holds_weights = prepared.launched.sharding not in SPLITS_WEIGHTS
    batch = (
        f"{recipe.prompts_per_step} prompts × {recipe.num_generations} = "
        f"{recipe.prompts_per_step * recipe.num_generations:,} rollouts on {processes} "
        f"process(es), {updates} update{'s' if updates > 1 else ''} of "
        f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps} accumulated on "
        "each"
    )
    steps = (
        f"{args.max_steps}: {prompts_drawn:,} prompts drawn, {prompts_drawn / prompts:.2f} epochs, "
        f"{rollouts:,} rollouts of at most {max_tokens} tokens"
    )
    engine = _describe_engine(recipe.rollouts, size, holds_weights=holds_weights)
    if recipe.rollouts.lag:
        engine += "; step k is sampled by the weights after step k − 2 (rollouts.lag 1)"
    lines = [
        ("loss", describe_loss(recipe.loss)),
        ("batch", batch),
        ("steps", steps),
        ("rollouts", engine),
    ]
    if measure and holds_weights and recipe.rollouts.engine == "in_process":
        measured = time_rollouts(trainer)
        seconds = measured.seconds * rollouts / processes
        text = (
            f"about {duration(seconds)}: {seconds / args.max_steps:.1f} s a step, {measured.text}"
        )
        if measured.scoring is None:
            text += "; rewards come on top"
        else:
            scoring = measured.scoring * rollouts / processes / args.max_steps
            text += f"; {scoring:.1f} s of it for scores of teachers and student"
        smaller_keys = (
            "trainer.max_steps",
            "sampling.max_tokens",
            "num_generations",
            "prompts_per_step",
            "the model (model.path)",
        )
        lines += [("time", text), *shorter_lines(args.device, seconds, smaller_keys)]
    return lines, disk


@dataclass(frozen=True, slots=True)
class TimedRollouts:
    """Measured cost of one rollout.

    Attributes:
        seconds: Seconds of its sampling, training and, if timed, scoring.
        text: How the seconds were measured.
        scoring: Seconds of a reward that scores token by token; None where there is none to time.
    """

    seconds: float
    text: str
    scoring: float | None = None


def time_rollouts(trainer: GroupTrainer) -> TimedRollouts:
    """Time the rollouts of one prompt and a micro-batch of them. Leaves no gradient behind.

    The rollouts are sampled with a growing limit of tokens, until they end by themselves or
    `MEASURING_SECONDS` are nearly spent.
    """
    recipe = trainer.recipe
    prompts = trainer.steps.draw(0)[:1]
    trainer.model.to(trainer.args.device).train()
    max_tokens = recipe.sampling.completion_limit(1) or recipe.sampling.max_tokens
    longest = min(FIRST_ROLLOUT, max_tokens)
    start = time.perf_counter()
    while True:
        round_start = time.perf_counter()
        groups = trainer.rollouts.runner.run(trainer.steps.roll_out(0, prompts, longest=longest))
        sampling = time.perf_counter() - round_start
        completions = groups[0].completions
        cut = longest < max_tokens and any(rollout.truncated for rollout in completions)
        # a limit four times as high takes about four times the seconds
        if not cut or round_start + 5 * sampling > start + MEASURING_SECONDS:
            break
        longest = min(4 * longest, max_tokens)
    rewards = [GroupRewards((0.0,) * recipe.num_generations)]
    scored = with_advantages(range(1), groups, rewards, recipe.loss)
    rows = trained_rows(scored, overlong="train")[: trainer.args.per_device_train_batch_size]
    columns = collate(rows, pad_id=trainer.pad_id)["input_ids"].shape[1]

    def batch_of_size(tokens: int) -> Any:
        return collate(rows[: max(1, tokens // columns)], pad_id=trainer.pad_id)

    def loss(batch: Any) -> torch.Tensor:
        return trainer.score(trainer.model, batch)[0].sum()

    micro_batch = time_slices(trainer, batch_of_size, loss, tokens=len(rows) * columns)
    training = micro_batch.seconds / len(rows)
    seconds = sampling / recipe.num_generations
    text = f"from {recipe.num_generations} rollouts of a prompt, sampled and trained on here"
    if cut:
        # training costs in proportion to all columns, the prompt's included
        seconds *= max_tokens / longest
        training *= (columns - longest + max_tokens) / columns
        text += f"; they were cut at {longest} tokens and scaled up to {max_tokens:,}, the most"
    scoring: float | None = None
    if isinstance(trainer.rollouts.reward, PolicyReward):
        scoring_start = time.perf_counter()
        trainer.rollouts.runner.run(trainer.rollouts.reward.reward(groups, seed=0))
        scoring = (time.perf_counter() - scoring_start) / recipe.num_generations
        if cut:
            scoring *= (columns - longest + max_tokens) / columns
    return TimedRollouts(seconds + training + (scoring or 0.0), text, scoring)


def _describe_engine(engine: RolloutEngine, size: ModelSize, *, holds_weights: bool) -> str:
    """Description of the sampling engine in one line.

    Args:
        holds_weights: True if every process has all weights, False if they are sharded.
    """
    if isinstance(engine, InProcessRollouts):
        text = f"in process, {engine.batch_size} at a time"
        if not holds_weights:
            text += f"; {size.weight_bytes / GIB:.2f} GiB of weights are gathered on each device"
        return text
    if isinstance(engine, Server):
        location = engine.addresses
    else:
        location = f"{engine.gpu_memory:.0%} of each device"
    weights = "the adapter" if isinstance(engine, LoraServer) else "all weights"
    return (
        f"{engine.engine}, {location}, given {weights} before each batch; a killed run goes "
        "on and loses or repeats nothing, but vLLM's samples are not the same bytes again"
    )


def describe_loss(loss: GrpoLossConfig) -> str:
    """Description of the loss in one line, for the plan and the card."""
    clip = f"clip −{loss.clip_low:g}/+{loss.clip_high:g}"
    # in a step's only update the ratio is 1, so that nothing can be clipped
    idle = " (idle with one update a batch)" if loss.num_iterations == 1 else ""
    kl = f", KL {loss.kl:g}" if loss.kl else ", no KL"
    overlong = "out of" if loss.overlong == "mask" else "in"
    return f"per token over the batch, {clip}{idle}{kl}, truncated completions {overlong} the loss"
