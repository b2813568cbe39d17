"""What a preference build prints: its plan, and at its end the figures to look at.

category               asked     pairs    on   off   chosen  rejected  longer  apart < 0.1
hallucination_penalty   40 %     2,560  1290  1270     41.2      33.0    61 %         0 %
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from data_builders.preferences.books import completions_line
from posttrain.artifacts import Manifest
from posttrain.config.build_dpo import BuildDpoConfig


def print_dry_run(console: Console, recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> None:
    """What would be built, and of what; nothing is graded."""
    for path, parent in zip(recipe.samples, parents, strict=True):
        rows = sum(f.rows or 0 for f in parent.files if f.path == "samples.jsonl")
        asked = sum(f.rows or 0 for f in parent.files if f.path == "prompts.jsonl")
        console.print(
            f"samples  {path}: {rows:,} completions of {asked:,} prompts", highlight=False
        )
    for source in recipe.offline:
        console.print(f"offline  {source.name}: {', '.join(source.paths) or source.hub}")
    total = f"{recipe.total:,} pairs at most" if recipe.total else "as many as shares allow"
    console.print(f"total    {total}, {recipe.pairs_per_prompt} of a prompt, rule {recipe.rule}")
    for category, share in recipe.categories.items():
        console.print(f"share    {share:.1%} {category}", highlight=False)


def print_summary(console: Console, stats: Mapping[str, Any], manifest: Manifest) -> None:
    """The categories, what was dropped, and what needs a second look."""
    table = Table(box=None, pad_edge=False)
    table.add_column("category")
    columns = ("asked", "pairs", "on", "off", "chosen", "rejected", "chosen longer", "apart < 0.1")
    for name in columns:
        table.add_column(name, justify="right")
    pairs, modes = stats["pairs"]["by_category"], stats["pairs"]["by_mode"]
    for category, count in pairs.items():
        length, apart = stats["lengths"][category], stats["distances"][category]
        table.add_row(
            category,
            f"{stats['shares_asked'][category]:.1%}",
            f"{count:,}",
            f"{modes.get(f'{category}/on', 0):,}",
            f"{modes.get(f'{category}/off', 0):,}",
            f"{length['chosen_mean']:.1f}",
            f"{length['rejected_mean']:.1f}",
            f"{length['chosen_longer']:.0%}",
            f"{apart['below_a_tenth']:.0%}",
        )
    console.print(table)
    if sampled := completions_line(stats["samples"]):
        console.print(f"sampled: {sampled}", highlight=False)
    counts = manifest.counts
    lost = ", ".join(f"{reason} {n:,}" for reason, n in counts.dropped.items())
    console.print(
        f"completions and rows: {counts.rows_in:,} in = {counts.kept:,} kept + "
        f"{counts.rows_in - counts.kept:,} not ({lost or 'none'})",
        highlight=False,
    )
    if stats["limited_by"]:
        console.print(
            f"the total is limited by {stats['limited_by']}: there are no more such pairs",
            style="yellow",
            highlight=False,
        )
