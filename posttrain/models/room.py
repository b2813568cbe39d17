"""Whether prompts and what follows them fit the positions of a model."""

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

NO_LIMIT = 1 << 60


def positions(config: Any) -> int:
    """The longest sequence that a model with this config of transformers has positions for."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or NO_LIMIT)


def positions_of(checkpoint: str) -> int:
    """Read `positions` of a directory or a hub id.

    Raises:
        ConfigError: it has no config.
    """
    try:
        local = Path(checkpoint).is_dir()
        # by its module: the name alone would import torch
        config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=local)
        return positions(config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"checkpoint {checkpoint}: its config cannot be read: {error}") from error


def room_text(positions: int) -> str:
    """Behind a length: what of, or the unit of a model without such a limit."""
    return f"of {positions:,} positions" if positions < NO_LIMIT else "tokens"


def prompt_lengths(
    prompts: Sequence[Prompt], template: ChatTemplate, encoder: Encoder
) -> list[int]:
    """Tokens of every prompt as the policy reads it.

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
            texts.append(prompt_text(prompt, template))
        except RenderError as error:
            raise DataError(f"prompt {prompt.id!r} cannot be rendered: {error}") from error
    return [len(encoded) for encoded in encoder.encode(texts)]


def check_room(
    prompts: Sequence[Prompt],
    lengths: Sequence[int],
    *,
    template: ChatTemplate,
    new: int,
    room: int,
) -> str:
    """One line on the prompts; refuse those behind which a completion would not fit.

    Args:
        template: what the prompts are rendered with.
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
    reasoning = ""
    if writes_reasoning(template):
        thinking = sum(prompt.thinking for prompt in prompts) / len(prompts)
        reasoning = f"{thinking:.0%} with reasoning; "
    return (
        f"{len(prompts):,}: {reasoning}longest {lengths[at]:,} tokens + {new:,} new "
        f"{room_text(room)}"
    )
