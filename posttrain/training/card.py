"""The README.md of a checkpoint: where it comes from, what it was trained on, under which licenses.

Written from the manifest's stats alone, so that the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.config.sft import AdapterConfig, TrainingRecipe
from posttrain.runs import Parent
from posttrain.versions import package_versions


def model_card(
    method: str,
    recipe: TrainingRecipe,
    *,
    parents: Sequence[Parent],
    summary: Sequence[str],
    data: Sequence[str] = (),
    training: str = "",
) -> str:
    """Markdown with a YAML head, as model hubs read it.

    Args:
        method: such as `sft`; tag and title.
        recipe: the resolved recipe.
        summary: lines on what the run did.
        data: lines on what it was trained on.
        training: sentences on what else was set.
    """
    rows = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [{method}]",
        "---",
        "",
        f"# {method.upper()} checkpoint",
        "",
        *summary,
        "",
        "## Lineage",
        "",
        "| kind | digest |",
        "|---|---|",
        *[f"| {parent.kind} | `{parent.digest}` |" for parent in parents],
        "",
        *data,
        "## Training",
        "",
        f"Adapter: {_adapter(recipe.adapter)}. {training}Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        "## Versions",
        "",
        *[f"- {name} {version}" for name, version in sorted(package_versions().items())],
        "",
    ]
    return "\n".join(rows)


def _adapter(spec: AdapterConfig | None) -> str:
    if spec is None:
        return "none, all weights"
    return f"{spec.method} rank {spec.rank}, preset {spec.preset}, merged into these weights"
