"""The README.md of a checkpoint of group-relative training, from the manifest's stats alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import Parent
from posttrain.config.grpo import GroupTraining
from posttrain.training.card import adapter_line, front_matter, lineage_lines, version_lines


def grpo_card(
    recipe: GroupTraining,
    *,
    parents: Sequence[Parent],
    base: str,
    stats: Mapping[str, Any],
    versions: Mapping[str, str],
) -> str:
    """Markdown with a YAML head, as model hubs read it.

    Args:
        base: the policy that training started from.
    """
    first, last, loss = stats["first"], stats["last"], recipe.loss
    name = str(stats["method"])
    rows = [
        *front_matter(name),
        f"# {name.upper()} checkpoint",
        "",
        f"Policy: {base}. {stats['batches']:,} batches of {stats['prompts_per_step']} prompts × "
        f"{stats['num_generations']} rollouts, {stats['epochs']:.2f} epochs, {stats['steps']:,} "
        f"optimiser steps, {stats['trained']:,} tokens in the loss.",
        "",
        f"Loss: per token over the batch, clip −{loss.clip_low:g}/+{loss.clip_high:g}, KL "
        f"{loss.kl:g}, truncated completions {loss.overlong}ed, temperature "
        f"{recipe.sampling.temperature:g}, at most {recipe.sampling.max_tokens} tokens.",
        "",
        f"| mean of {stats['averaged']} batches | first | last |",
        "|---|---|---|",
        *[
            f"| {key.replace('_', ' ')} | {first[key]:.4f} | {last[key]:.4f} |"
            for key in first
            if key in last
        ],
        "",
        *lineage_lines(parents),
        "## Training",
        "",
        f"Adapter: {adapter_line(recipe.adapter)}. Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        *version_lines(versions),
    ]
    return "\n".join(rows)
