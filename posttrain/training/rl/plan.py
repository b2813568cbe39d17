"""What a group-relative run will do, counted and timed before it does it: lines such as

steps        100: 12,800 prompts drawn, 1.07 epochs, 204,800 rollouts of at most 512 tokens
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import torch

from posttrain.config.backend import Server
from posttrain.config.grpo import GrpoLossConfig, InProcessRollouts, LoraServer, RolloutEngine
from posttrain.errors import ConfigError
from posttrain.group_rewards import GroupRewards
from posttrain.training.plan import GIB, MEASURED_UP_TO, Line, ModelSize, checkpoint_bytes
from posttrain.training.rl.batch import collate, trained_rows, with_advantages
from posttrain.training.rl.trainer import GroupTrainer
from posttrain.training.stage import PreparedRun

# rollouts that are sampled to see how long they take
MEASURED = 32
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
        measure: make and train on a few rollouts on this device (model ≤ 300 M parameters only).
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
        ("rollouts", _rollouts_line(recipe.rollouts, size, whole=whole)),
    ]
    here = recipe.rollouts.engine == "in_process"
    if measure and size.parameters <= MEASURED_UP_TO and here and whole:
        seconds = _seconds_a_rollout(trainer) * rollouts / processes
        time_line = (
            f"about {seconds:,.0f} s: {seconds / args.max_steps:.1f} s a step, from a few rollouts "
            "made and trained on here; rewards come on top"
        )
        lines.append(("time", time_line))
    return lines, disk


def _seconds_a_rollout(trainer: GroupTrainer) -> float:
    """Of making a few and one pass forward and back over them; leaves no gradient behind."""
    recipe = trainer.recipe
    prompts = trainer.steps.draw(0)[: -(-MEASURED // recipe.num_generations)]
    trainer.model.to(trainer.args.device).train()
    started = time.perf_counter()
    groups = trainer.rollouts.runner.run(trainer.steps.roll_out(0, prompts))
    rewards = [GroupRewards((0.0,) * recipe.num_generations)] * len(groups)
    scored = with_advantages(range(len(groups)), groups, rewards, recipe.loss)
    rows = trained_rows(scored, overlong="train")
    size = trainer.args.per_device_train_batch_size
    for at in range(0, len(rows), size):
        batch = trainer._prepare_inputs(collate(rows[at : at + size], pad_id=trainer.pad_id))
        with trainer.compute_loss_context_manager():
            trainer.score(trainer.model, batch)[0].sum().backward()
    if trainer.args.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    trainer.model.zero_grad(set_to_none=True)
    return seconds / len(rows)


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


def describe_loss(loss: GrpoLossConfig) -> str:
    """One line for the plan and the card."""
    clip = f"clip −{loss.clip_low:g}/+{loss.clip_high:g}"
    # with one update the policy is the one that sampled, and nothing can be clipped
    idle = " (idle with one update a batch)" if loss.num_iterations == 1 else ""
    kl = f", KL {loss.kl:g}" if loss.kl else ", no KL"
    kept = "out of" if loss.overlong == "mask" else "in"
    return f"per token over the batch, {clip}{idle}{kl}, truncated completions {kept} the loss"
