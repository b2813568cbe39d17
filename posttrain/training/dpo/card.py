"""The README.md of a DPO checkpoint, from the manifest's stats alone: same run, same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import Parent
from posttrain.config.dpo import DpoConfig
from posttrain.training.card import adapter_line, front_matter, lineage_lines, version_lines


def dpo_card(
    recipe: DpoConfig,
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
    loss, last = recipe.loss, stats["last"]
    rows = [
        *front_matter("dpo"),
        "# DPO checkpoint",
        "",
        f"Policy and reference: {base}. {stats['steps']:,} steps of {stats['global_batch']} pairs, "
        f"{stats['epochs']:.2f} epochs.",
        "",
        f"Loss: {loss.preference_weight:g} × sigmoid (β {loss.beta:g}) + {loss.sft_weight:g} × SFT "
        f"on chosen ({loss.sft_form}) + {loss.kl_weight:g} × KL.",
        "",
        "| last logged step | |",
        "|---|---|",
        *[f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in last.items()],
        "",
        *_fall_lines(stats),
        *lineage_lines(parents),
        "## Data",
        "",
        "| category | pairs |",
        "|---|---|",
        *[f"| {name} | {n:,} |" for name, n in stats["pairs_by_category"].items()],
        "",
        "## Training",
        "",
        f"Adapter: {adapter_line(recipe.adapter)}. Layout: {stats['layout']}. Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        *version_lines(versions),
    ]
    return "\n".join(rows)


def _fall_lines(stats: Mapping[str, Any]) -> list[str]:
    if not stats["chosen_fell"]:
        return []
    return [
        f"**The log-probability of chosen completions fell**, by up to "
        f"{-stats['lowest_chosen_change_per_token']:.4f} nats a token.",
        "",
    ]
