"""Room of prompts and completions in the positions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from posttrain.chat import ChatTemplate, writes_reasoning
from posttrain.errors import ConfigError, DataError, RenderError
from posttrain.rollouts import Prompt
from posttrain.tokens.renderer import prompt_text
from posttrain.tokens.tokenizer import Encoder

# positions of a model whose config names no limit
NO_LIMIT = 1 << 60


def positions(config: Any) -> int:
    """Length of the longest sequence that a config has positions for; NO_LIMIT if it names none."""
    text_config = config.get_text_config()
    return int(getattr(text_config, "max_position_embeddings", None) or NO_LIMIT)


def positions_of(checkpoint: str) -> int:
    """Read the positions of a checkpoint, a directory or a hub id; ConfigError without a config.

    Raises:
        ConfigError: its config is missing or cannot be read.
    """
    try:
        local = Path(checkpoint).is_dir()
        # by its module: the name alone would import torch
        config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=local)
        return positions(config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"checkpoint {checkpoint}: its config cannot be read: {error}") from error


def room_text(positions: int) -> str:
    """Words that follow a length: "of 4,096 positions", or "tokens" without a limit."""
    return f"of {positions:,} positions" if positions < NO_LIMIT else "tokens"


def prompt_lengths(
    prompts: Sequence[Prompt], template: ChatTemplate, encoder: Encoder
) -> list[int]:
    """Number of tokens of every rendered prompt; refuses repeated ids and what cannot be rendered.

    Raises:
        DataError: a prompt that the template refuses, or whose id another prompt has; with its id.
    """
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        repeated_id = next(prompt_id for prompt_id in ids if ids.count(prompt_id) > 1)
        raise DataError(f"two prompts are called {repeated_id!r}; ids must differ")
    texts: list[str] = []
    for prompt in prompts:
        try:
            texts.append(prompt_text(prompt, template))
        except RenderError as error:
            raise DataError(f"prompt {prompt.id!r} cannot be rendered: {error}") from error
    return [len(prompt_ids) for prompt_ids in encoder.encode(texts)]


def check_room(
    prompts: Sequence[Prompt],
    lengths: Sequence[int],
    *,
    template: ChatTemplate,
    max_tokens: int,
    room: int,
) -> str:
    """Raise ConfigError if a completion may not fit behind a prompt. Returns a line for the plan.

    Args:
        lengths: number of tokens of each prompt.
        template: template that renders the prompts.
        max_tokens: greatest number of tokens of a completion.
        room: positions of the model.

    Raises:
        ConfigError: too long a prompt; with the id of the longest.
    """
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    if lengths[longest] + max_tokens > room:
        raise ConfigError(
            f"prompt {prompts[longest].id!r} has {lengths[longest]:,} tokens; with "
            f"sampling.max_tokens {max_tokens} that is more than the model's {room:,} positions: "
            "leave such prompts out, or set max_tokens to at most "
            f"{max(room - lengths[longest], 0)}"
        )
    reasoning = ""
    if writes_reasoning(template):
        thinking = sum(prompt.thinking for prompt in prompts) / len(prompts)
        reasoning = f"{thinking:.0%} with reasoning; "
    return (
        f"{len(prompts):,}: {reasoning}longest {lengths[longest]:,} tokens + {max_tokens:,} new "
        f"{room_text(room)}"
    )
