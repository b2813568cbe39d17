"""The checks of a group-relative run before step 1, and alone under `--dry-run`.

prompts      1,200: 60 % with reasoning; longest 212 tokens + 256 new of 2,048 positions
stops        generation stops at [2], pads with 0
routers      23 frozen; bias moved by 0.001 a step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from posttrain.chat import ChatTemplate, render
from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError, DataError, RenderError
from posttrain.models.adapters import AdapterReach
from posttrain.rollouts import Prompt
from posttrain.sampling.rollout import OpenEnvironment
from posttrain.tokens.tokenizer import Encoder, SpecialTokens
from posttrain.training.preflight import Preflight, adapter_lines, check_stops, positions


def prompt_lengths(
    prompts: Sequence[Prompt], template: ChatTemplate, encoder: Encoder
) -> list[int]:
    """Tokens of every prompt as the policy is asked.

    Raises:
        DataError: a prompt that the template refuses, or whose id another one has; by name.
    """
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"two prompts are called {twice!r}; ids must differ")
    texts: list[str] = []
    for prompt in prompts:
        try:
            texts.append(
                render(
                    prompt.messages,
                    template,
                    tools=prompt.tools,
                    add_generation_prompt=True,
                    enable_thinking=prompt.thinking,
                )
            )
        except RenderError as error:
            raise DataError(f"prompt {prompt.id!r} cannot be rendered: {error}") from error
    return [len(encoded) for encoded in encoder.encode(texts)]


def check_room(prompts: Sequence[Prompt], lengths: Sequence[int], *, new: int, room: int) -> None:
    """Refuse prompts behind which a completion would not fit.

    Args:
        new: tokens that a completion may have.
        room: positions of the model.

    Raises:
        ConfigError: naming the longest prompt.
    """
    at = max(range(len(lengths)), key=lengths.__getitem__)
    if lengths[at] + new > room:
        raise ConfigError(
            f"prompt {prompts[at].id!r} has {lengths[at]:,} tokens; with sampling.max_tokens {new} "
            f"that is more than the model's {room:,} positions: leave such prompts out, or set "
            f"max_tokens to at most {max(room - lengths[at], 0)}"
        )


def check_enough_prompts(recipe: GroupTraining, *, prompts: int, max_steps: int) -> int:
    """How many prompts the run draws.

    Raises:
        ConfigError: more often than `max_epochs` allows; with the ways out.
    """
    batches = max_steps // recipe.loss.num_iterations
    total = batches * recipe.prompts_per_step
    if total > prompts * recipe.max_epochs:
        epochs = -(-total // max(prompts, 1))
        most = prompts * recipe.max_epochs // recipe.prompts_per_step * recipe.loss.num_iterations
        fewer = f", set trainer.max_steps: {most}" if most else ""
        raise ConfigError(
            f"{batches} batches × {recipe.prompts_per_step} prompts draw {total:,}; there are "
            f"{prompts:,} and max_epochs is {recipe.max_epochs}: give more prompts{fewer}, or set "
            f"max_epochs: {epochs} to repeat them"
        )
    return total


def run_preflight(
    recipe: GroupTraining,
    *,
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    lengths: Sequence[int],
    special: SpecialTokens,
    routers: int,
    reach: tuple[AdapterReach, ...],
) -> Preflight:
    """Lines and stats; `lengths` in tokens, `routers` those that the model has.

    Raises:
        ConfigError: from the first check that fails.
    """
    room, new = positions(model), recipe.sampling.max_tokens
    check_room(prompts, lengths, new=new, room=room)
    thinking = sum(prompt.thinking for prompt in prompts) / len(prompts)
    has = f"of {room:,} positions" if room < 1 << 60 else "tokens"
    lines = [
        (
            "prompts",
            f"{len(prompts):,}: {thinking:.0%} with reasoning; longest {max(lengths):,} tokens "
            f"+ {new:,} new {has}",
        ),
        ("stops", check_stops(model, special)),
    ]
    if routers:
        frozen = "frozen" if recipe.moe.freeze_router else "trained"
        lines.append(
            ("routers", f"{routers} {frozen}; bias moved by {recipe.moe.bias_update_rate:g} a step")
        )
    lines += adapter_lines(model, reach)
    stats: dict[str, Any] = {"routers": routers, "longest_prompt": max(lengths)}
    return Preflight(tuple(lines), stats)


def check_environments(prompts: Sequence[Prompt], opened: OpenEnvironment | None) -> None:
    """Refuse prompts whose tools nobody would run.

    Raises:
        ConfigError: naming the prompt.
    """
    if opened is not None:
        return
    for prompt in prompts:
        if prompt.environment is not None:
            raise ConfigError(
                f"prompt {prompt.id!r} names the environment {prompt.environment!r}, and this "
                "stage runs no tools"
            )
