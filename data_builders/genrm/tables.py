"""What a build of judging prompts made, as tables on the console.

print_built(console, built)
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from data_builders.genrm.build import Built


def print_built(console: Console, built: Built) -> None:
    """A line a source with its books, and what each side of the split holds."""
    table = Table("source", "rows", "pairs", "held out", "dialects", "dropped")
    for name, books in built.books.items():
        table.add_row(
            name,
            f"{books.rows_in:,}",
            f"{books.kept:,}",
            f"{books.held_out:,}",
            ", ".join(f"{dialect} {n:,}" for dialect, n in sorted(books.dialects.items())),
            ", ".join(f"{reason} {n:,}" for reason, n in sorted(books.dropped.items())),
        )
    console.print(table)
    for title, side in (("train", built.train), ("held out", built.held_out)):
        stats = side.stats()
        rankings = ", ".join(f"{r}: {n:,}" for r, n in stats["rankings"].items())
        console.print(
            f"{title}: {stats['prompts']:,} prompts of {stats['pairs']:,} pairs "
            f"({stats['with_scores']:,} with scores); rankings {rankings or 'none'}; "
            f"longest prompt {stats['characters']['longest']:,} characters",
            highlight=False,
        )
        if stats["scores_and_ranking_at_odds"]:
            console.print(
                f"  {stats['scores_and_ranking_at_odds']:,} pairs whose scores prefer one response "
                "and whose ranking the other",
                highlight=False,
            )
