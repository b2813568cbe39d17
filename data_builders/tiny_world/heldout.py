"""Which held-out prompts a checkpoint should be asked: those like what it was taught.

taught(Path("runs/tiny/sft"), world)             → {"maths": Where("metadata.difficulty <= 2")}
held_out_items(Path("runs/tiny/world"), …, 600)  → [{"messages": …, "metadata": …}, …]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_builders.where import Where, parse_where
from posttrain.artifacts import Manifest, read_artifact
from posttrain.errors import DataError


def taught(checkpoint: Path, world: Manifest) -> dict[str, Where | None]:
    """What the checkpoint's data was mixed from: each family, and which of its rows (`where`).

    A checkpoint without lineage: all families that have training rows, whole.
    """
    every: dict[str, Where | None] = {
        name: None for name, rows in world.facts["train_rows"].items() if rows
    }
    try:
        manifest = read_artifact(checkpoint, kind="checkpoint", verify=False)
        data = [p for p in manifest.parents if p.kind == "sft_data"]
        found = read_artifact(checkpoint / data[0].path, kind="sft_data", verify=False)
    except (DataError, IndexError):
        return every
    chosen = {
        Path(source["path"]).stem: parse_where(source["where"]) if source["where"] else None
        for source in found.config["sources"]
        if isinstance(source["path"], str)
    }
    return {name: where for name, where in chosen.items() if name in every} or every


def held_out_items(
    world: Path, families: Mapping[str, Where | None], prompts: int
) -> list[dict[str, Any]]:
    """The first prompts of each family that its `where` admits, as evenly as `prompts` divides.

    Raises:
        DataError: a family has no held-out prompts, or too few.
    """
    items: list[dict[str, Any]] = []
    for position, (family, where) in enumerate(families.items()):
        wanted = prompts // len(families) + (position < prompts % len(families))
        file = world / "heldout" / f"{family}.jsonl"
        if not file.is_file():
            raise DataError(f"{world} has no held-out prompts of family {family!r}")
        rows = [json.loads(row) for row in file.read_text("utf-8").splitlines()]
        rows = [row for row in rows if where is None or where.matches(row) is None]
        if len(rows) < wanted:
            raise DataError(f"{file} has {len(rows)} such prompts, {wanted} are asked for")
        items += rows[:wanted]
    return items
