"""Which held-out prompts a checkpoint should be asked: those like what it was taught.

taught(Path("runs/tiny/sft"), world)             → {"maths": (Where("metadata.difficulty <= 2"),)}
held_out_items(Path("runs/tiny/world"), …, 600)  → [{"messages": …, "metadata": …}, …]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.rows.where import Where, parse_where
from posttrain.artifacts import Manifest, read_artifact
from posttrain.errors import DataError

# family → the conditions of which its rows meet at least one; () takes every row
Taught = dict[str, tuple[Where, ...]]


def taught(checkpoint: Path, world: Manifest) -> Taught:
    """What the checkpoint's data was mixed from: each family, and which of its rows.

    A checkpoint without lineage: all families that have training rows, whole.
    """
    every: Taught = {name: () for name, rows in world.stats["train_rows"].items() if rows}
    try:
        manifest = read_artifact(checkpoint, kind="checkpoint", verify=False)
        data = [p for p in manifest.parents if p.kind == "sft_data"]
        found = read_artifact(checkpoint / data[0].path, kind="sft_data", verify=False)
    except (DataError, IndexError):
        return every
    wheres: dict[str, list[str | None]] = {}
    for source in found.config["sources"]:
        if isinstance(source["path"], str):
            wheres.setdefault(Path(source["path"]).stem, []).append(source["where"])
    return {name: _any_of(texts) for name, texts in wheres.items() if name in every} or every


def _any_of(texts: Sequence[str | None]) -> tuple[Where, ...]:
    """The conditions of several sources on one file; of one that takes all rows, none."""
    parsed = tuple(parse_where(text) for text in texts if text)
    return parsed if len(parsed) == len(texts) else ()


def held_out_items(
    world: Path, families: Mapping[str, Sequence[Where]], prompts: int
) -> list[dict[str, Any]]:
    """The first prompts of each family that one of its conditions admits, or all where it has none.

    The families have as many prompts each as `prompts` divides.

    Raises:
        DataError: a family has no held-out prompts, or too few.
    """
    items: list[dict[str, Any]] = []
    for position, (family, wheres) in enumerate(families.items()):
        wanted = prompts // len(families) + (position < prompts % len(families))
        file = world / "heldout" / f"{family}.jsonl"
        if not file.is_file():
            raise DataError(f"{world} has no held-out prompts of family {family!r}")
        rows = [json.loads(row) for row in file.read_text("utf-8").splitlines()]
        rows = [row for row in rows if not wheres or any(w.matches(row) is None for w in wheres)]
        if len(rows) < wanted:
            raise DataError(f"{file} has {len(rows)} such prompts, {wanted} are asked for")
        items += rows[:wanted]
    return items
