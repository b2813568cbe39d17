"""What a group-relative run will do, counted and timed before it does it: lines such as

steps        100: 12,800 prompts drawn, 1.07 epochs, 204,800 rollouts of at most 512 tokens
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch

from posttrain.config.backend import Server
from posttrain.config.grpo import (
    GroupTraining,
    GrpoLossConfig,
    InProcessRollouts,
    LoraServer,
    RolloutEngine,
)
from posttrain.errors import ConfigError
from posttrain.group_rewards import GroupRewards
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

# tokens at which the first rollouts are cut that are sampled to see how long they take
FIRST_ROLLOUT = 16
# of JSON for each token of a rollout, judgements not counted
TOKEN_BYTES = 5
SPLITS_WEIGHTS = ("zero3", "fsdp2")


async def check_reachable(name: str, url: str) -> None:
    """Refuse a server that takes no connection, before hours of rollouts depend on it.

    Args:
        name: the recipe's key that gives the address.
    """
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address.hostname, port), 10)
    except OSError as error:
        reason = str(error) or "no connection in time"
        raise ConfigError(
            f"{name} {url}: nothing answers there ({reason}): start the server, or correct the "
            "address; the same command then goes on"
        ) from error
    writer.close()


def make_plan(
    prepared: PreparedRun[GroupTrainer], size: ModelSize, *, measure: bool
) -> tuple[list[Line], int]:
    """Count and estimate.

    Args:
        measure: sample a few rollouts on this device and time the training on them.
    """
    trainer, processes = prepared.trainer, prepared.launched.world_size
    recipe, args, prompts = trainer.recipe, trainer.args, len(trainer.rollouts.prompts)
    updates, max_tokens = recipe.loss.num_iterations, recipe.sampling.max_tokens
    drawn = args.max_steps // updates * recipe.prompts_per_step
    rollouts = drawn * recipe.num_generations
    kept = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
    disk = checkpoint_bytes(size, kept=kept) + rollouts * max_tokens * TOKEN_BYTES
    whole = prepared.launched.sharding not in SPLITS_WEIGHTS
    batch = (
        f"{recipe.prompts_per_step} prompts × {recipe.num_generations} = "
        f"{recipe.prompts_per_step * recipe.num_generations:,} rollouts on {processes} "
        f"process(es), {updates} update{'s' if updates > 1 else ''} of "
        f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps} accumulated on "
        "each"
    )
    steps = (
        f"{args.max_steps}: {drawn:,} prompts drawn, {drawn / prompts:.2f} epochs, {rollouts:,} "
        f"rollouts of at most {max_tokens} tokens"
    )
    lines = [
        ("loss", describe_loss(recipe.loss)),
        ("batch", batch),
        ("steps", steps),
        ("rollouts", _rollouts_line(recipe.rollouts, size, whole=whole) + _lag_text(recipe)),
    ]
    here = recipe.rollouts.engine == "in_process"
    if measure and here and whole:
        timed = time_rollouts(trainer)
        seconds = timed.seconds * rollouts / processes
        text = f"about {duration(seconds)}: {seconds / args.max_steps:.1f} s a step, {timed.text}"
        if timed.scoring is None:
            text += "; rewards come on top"
        else:
            scoring = timed.scoring * rollouts / processes / args.max_steps
            text += f"; {scoring:.1f} s of it for scores of teachers and student"
        shrink = (
            "trainer.max_steps",
            "sampling.max_tokens",
            "num_generations",
            "prompts_per_step",
            "the model (model.path)",
        )
        lines += [("time", text), *shorter_lines(args.device, seconds, shrink)]
    return lines, disk


@dataclass(frozen=True, slots=True)
class TimedRollouts:
    """Seconds of one rollout with all that is done with it, and how they were measured; `scoring`
    are those of them for a reward that scores token by token, None where that was not timed."""

    seconds: float
    text: str
    scoring: float | None = None


def time_rollouts(trainer: GroupTrainer) -> TimedRollouts:
    """Sample one prompt's rollouts, cut ever later, until they end by themselves or the bound in
    seconds is near; then time a micro-batch of them. Leaves no gradient behind."""
    recipe = trainer.recipe
    prompts = trainer.steps.draw(0)[:1]
    trainer.model.to(trainer.args.device).train()
    most = recipe.sampling.completion_limit(1) or recipe.sampling.max_tokens
    longest = min(FIRST_ROLLOUT, most)
    begun = time.perf_counter()
    while True:
        started = time.perf_counter()
        groups = trainer.rollouts.runner.run(trainer.steps.roll_out(0, prompts, longest=longest))
        sampling = time.perf_counter() - started
        cut = longest < most and any(one.truncated for one in groups[0].completions)
        if not cut or started + 5 * sampling > begun + MEASURING_SECONDS:
            break
        longest = min(4 * longest, most)
    rewards = [GroupRewards((0.0,) * recipe.num_generations)]
    scored = with_advantages(range(1), groups, rewards, recipe.loss)
    rows = trained_rows(scored, overlong="train")[: trainer.args.per_device_train_batch_size]
    columns = collate(rows, pad_id=trainer.pad_id)["input_ids"].shape[1]

    def batch_of(tokens: int) -> Any:
        return collate(rows[: max(1, tokens // columns)], pad_id=trainer.pad_id)

    def loss(batch: Any) -> torch.Tensor:
        return trainer.score(trainer.model, batch)[0].sum()

    micro_batch = time_slices(trainer, batch_of, loss, tokens=len(rows) * columns)
    training = micro_batch.seconds / len(rows)
    seconds = sampling / recipe.num_generations
    source = f"from {recipe.num_generations} rollouts of a prompt, sampled and trained on here"
    if cut:
        # in proportion to all columns, the prompt's included, which attention sees as well
        seconds *= most / longest
        training *= (columns - longest + most) / columns
        source += f"; they were cut at {longest} tokens and scaled up to {most:,}, the most"
    scoring: float | None = None
    if isinstance(trainer.rollouts.reward, PolicyReward):
        started = time.perf_counter()
        trainer.rollouts.runner.run(trainer.rollouts.reward.reward(groups, seed=0))
        scoring = (time.perf_counter() - started) / recipe.num_generations
        if cut:
            scoring *= (columns - longest + most) / columns
    return TimedRollouts(seconds + training + (scoring or 0.0), source, scoring)


def _rollouts_line(engine: RolloutEngine, size: ModelSize, *, whole: bool) -> str:
    if isinstance(engine, InProcessRollouts):
        gathered = f"; {size.weight_bytes / GIB:.2f} GiB of weights are gathered on each device"
        return f"in process, {engine.batch_size} at a time{'' if whole else gathered}"
    where = engine.url if isinstance(engine, Server) else f"{engine.gpu_memory:.0%} of each device"
    sent = "the adapter" if isinstance(engine, LoraServer) else "all weights"
    return (
        f"{engine.engine}, {where}, given {sent} before each batch; a killed run goes on and loses "
        "or repeats nothing, but vLLM's samples are not the same bytes again"
    )


def _lag_text(recipe: GroupTraining) -> str:
    if not recipe.rollouts.lag:
        return ""
    return "; step k is sampled by the weights after step k − 2 (rollouts.lag 1)"


def describe_loss(loss: GrpoLossConfig) -> str:
    """One line for the plan and the card."""
    clip = f"clip −{loss.clip_low:g}/+{loss.clip_high:g}"
    # with one update the policy is the one that sampled, and nothing can be clipped
    idle = " (idle with one update a batch)" if loss.num_iterations == 1 else ""
    kl = f", KL {loss.kl:g}" if loss.kl else ", no KL"
    kept = "out of" if loss.overlong == "mask" else "in"
    return f"per token over the batch, {clip}{idle}{kl}, truncated completions {kept} the loss"
