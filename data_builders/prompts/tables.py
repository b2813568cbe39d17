"""The plan of a run as text: sources, settings, and a prompt of each setting to read.

print_prompts(console, made, settings, samples=recipe.samples_of, …, render=renderer.text)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_builders.prompts.build import PromptSet
from posttrain.config.prompts import Setting
from posttrain.rollouts import Prompt


def print_prompts(
    console: Console,
    made: PromptSet,
    settings: Sequence[Setting],
    *,
    samples: Callable[[str], int],
    most_tokens: Callable[[str], int],
    render: Callable[[Prompt], str],
) -> None:
    """Counts of every source and setting, then the first prompt of each setting as it is asked."""
    table = Table("source", "rows", "asked", "dropped", title="sources", title_justify="left")
    for name, counts in made.row_counts.items():
        table.add_row(name, f"{counts.rows_in:,}", f"{counts.kept:,}", _reasons(counts.dropped))
    console.print(table)
    table = Table(
        "setting", "tools", "prompts", "thinking", "samples", "completions", "tokens at most",
        "not asked",
        title="settings", title_justify="left",
    )  # fmt: skip
    for setting in settings:
        prompts = [p for p in made.prompts if p.setting == setting.name]
        number = samples(setting.name)
        table.add_row(
            setting.name,
            setting.tools,
            f"{len(prompts):,}",
            f"{sum(p.thinking for p in prompts):,}",
            str(number),
            f"{len(prompts) * number:,}",
            f"{len(prompts) * number * most_tokens(setting.name):,}",
            _reasons(made.skipped[setting.name]),
        )
    console.print(table)
    for setting in settings:
        first = next(p for p in made.prompts if p.setting == setting.name)
        console.print(f"\nfirst prompt of {setting.name} ({first.id}):", highlight=False)
        console.print(escape(render(first)), highlight=False, soft_wrap=True)


def _reasons(counts: Counter[str]) -> str:
    return "\n".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
