"""What a reader has to know before any figure: too many completions that are no answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_UNUSABLE = 1 / 3
Row = Mapping[str, Any]


def alert(
    where: str, *, completions: int, truncated: int, unformatted: int
) -> dict[str, Any] | None:
    """A row, JSON-able, where more than a third of the completions are truncated, or lack the
    format that their prompts ask for; None where they are fewer.

    Args:
        where: the part of the run, such as a setting or a checkpoint's task.
        unformatted: of those that no limit ended.
    """
    if truncated + unformatted <= MOST_UNUSABLE * completions:
        return None
    return {
        "where": where,
        "completions": completions,
        "truncated": truncated,
        "unformatted": unformatted,
    }


def alert_text(row: Row) -> str:
    """One sentence, with what to do."""
    unusable = row["truncated"] + row["unformatted"]
    parts: list[str] = []
    if row["truncated"]:
        parts.append(f"{row['truncated']:,} truncated (raise sampling.max_tokens)")
    if row["unformatted"]:
        parts.append(f"{row['unformatted']:,} without an answer in the form that is asked for")
    share = f"{unusable / row['completions']:.1%} of {row['completions']:,}"
    return f"{row['where']}: {share} completions are no answers: {', '.join(parts)}"


def worst(rows: Sequence[Row]) -> Row:
    """The row with the largest share."""
    return max(rows, key=lambda row: (row["truncated"] + row["unformatted"]) / row["completions"])
