"""Alert that a reader needs before any figure: too many completions are no answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# share of truncated and unformatted completions above which there is an alert
MOST_UNUSABLE = 1 / 3
Row = Mapping[str, Any]


def alert(
    where: str, *, completions: int, truncated: int, unformatted: int
) -> dict[str, Any] | None:
    """JSON-able row if more than a third of the completions are no answers; None otherwise.

    Args:
        where: part of the run, such as a setting or a checkpoint's task.
        truncated: completions that a limit ended.
        unformatted: other completions without the format that their prompts ask for.
    """
    if truncated + unformatted <= MOST_UNUSABLE * completions:
        return None
    return {
        "where": where,
        "completions": completions,
        "truncated": truncated,
        "unformatted": unformatted,
    }


def alert_texts(rows: Sequence[Row]) -> list[str]:
    """Sentences about alerts, with a remedy; tasks of a checkpoint with equal figures share one."""
    # (checkpoint, sentence) → its tasks, or settings where the run has one checkpoint
    tasks_by_text: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        checkpoint, _, task = row["where"].rpartition(", ")
        tasks_by_text.setdefault((checkpoint, _alert_text(row)), []).append(task)
    texts: list[str] = []
    for (checkpoint, text), tasks in tasks_by_text.items():
        where = ", ".join([checkpoint, *tasks] if checkpoint else tasks)
        each = " each" if len(tasks) > 1 else ""
        texts.append(f"{where}: {text}{each}")
    return texts


def _alert_text(row: Row) -> str:
    unusable = row["truncated"] + row["unformatted"]
    parts: list[str] = []
    if row["truncated"]:
        parts.append(f"{row['truncated']:,} truncated (raise sampling.max_tokens)")
    if row["unformatted"]:
        parts.append(f"{row['unformatted']:,} without an answer in the form that is asked for")
    share = f"{unusable / row['completions']:.1%} of {row['completions']:,}"
    return f"{share} completions are no answers: {', '.join(parts)}"


def worst(rows: Sequence[Row]) -> Row:
    """Row with the largest share of completions that are no answers."""
    return max(rows, key=lambda row: (row["truncated"] + row["unformatted"]) / row["completions"])
