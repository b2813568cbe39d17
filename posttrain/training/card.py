"""The README.md of a checkpoint: where it comes from, what it was trained on, under which licenses.

Written from the manifest's stats alone, so that the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import Parent
from posttrain.config.sft import AdapterConfig, SftConfig

Sums = Mapping[str, tuple[int, int, int]]


def model_card(
    recipe: SftConfig,
    *,
    parents: Sequence[Parent],
    base: str | None,
    stats: Mapping[str, Any],
    by_source: Sums,
    by_license: Sums,
    versions: Mapping[str, str],
) -> str:
    """Markdown with a YAML head, as model hubs read it.

    Args:
        base: what training started from; None for random weights.
        by_source, by_license: name → (sequences, tokens, trained tokens).
    """
    rows = [
        *front_matter("sft"),
        "# SFT checkpoint",
        "",
        f"Base: {base or 'random initialisation'}. Trained for {stats['steps']:,} steps of "
        f"{stats['global_batch']} packs, "
        f"{stats['tokens']:,} tokens of which {stats['trained']:,} trained.",
        "",
        *_loss_lines(stats),
        *lineage_lines(parents),
        "## Data",
        "",
        *_table("source", by_source),
        "",
        "## Licenses of the data",
        "",
        *_table("license", by_license),
        "",
        "## Training",
        "",
        f"Adapter: {adapter_line(recipe.adapter)}. Document masking: {stats['document_masking']}. "
        f"Expert balance coefficient: {recipe.balance.coefficient:g}. Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        *version_lines(versions),
    ]
    return "\n".join(rows)


def front_matter(tag: str) -> list[str]:
    """The YAML head."""
    return [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [{tag}]",
        "---",
        "",
    ]


def lineage_lines(parents: Sequence[Parent]) -> list[str]:
    """What the checkpoint was made from."""
    return [
        "## Lineage",
        "",
        "| kind | digest |",
        "|---|---|",
        *[f"| {parent.kind} | `{parent.digest}` |" for parent in parents],
        "",
    ]


def version_lines(versions: Mapping[str, str]) -> list[str]:
    """The packages that made it."""
    return [
        "## Versions",
        "",
        *[f"- {name} {version}" for name, version in sorted(versions.items())],
        "",
    ]


def adapter_line(spec: AdapterConfig | None) -> str:
    """What was trained."""
    if spec is None:
        return "none, all weights"
    return f"{spec.method} rank {spec.rank}, preset {spec.preset}, merged into these weights"


def _loss_lines(stats: Mapping[str, Any]) -> list[str]:
    lines = [f"Last logged training loss: {stats['train_loss']:.4f}."]
    if stats.get("eval_loss"):
        lines += ["", "| held-out group | loss per trained token |", "|---|---|"]
        lines += [f"| {name} | {loss:.4f} |" for name, loss in stats["eval_loss"].items()]
    return [*lines, ""]


def _table(name: str, sums: Sums) -> list[str]:
    total = sum(trained for _, _, trained in sums.values()) or 1
    return [
        f"| {name} | sequences | tokens | trained | share of trained |",
        "|---|---|---|---|---|",
        *[
            f"| {key} | {n:,} | {tokens:,} | {trained:,} | {trained / total:.1%} |"
            for key, (n, tokens, trained) in sums.items()
        ],
    ]
