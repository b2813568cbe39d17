"""The plan → packs → files: the last, quick part of a build, done anew after a kill.

write_splits(out, spools, plan, recipe)  →  Written(train=Packs(…), evaluation={…}, …)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.keyed import key64
from data_builders.sft_plan import BuildPlan, Sequences
from data_builders.sft_spool import Spool
from data_builders.shards import ShardWriter
from posttrain.config.build_sft import BuildSftConfig
from posttrain.tokens import Packs, pack_lengths


@dataclass(frozen=True, slots=True)
class Written:
    """Packs of each split (positions in its planned sequences), and files with their rows."""

    train: Packs
    evaluation: dict[str, Packs]
    files: dict[str, int | None]


def write_splits(
    out: Path, spools: Sequence[Spool], plan: BuildPlan, recipe: BuildSftConfig
) -> Written:
    """Pack and write both splits; what an earlier, killed run left of them is replaced."""
    for folder in ("packed", "index"):
        shutil.rmtree(out / folder, ignore_errors=True)
    train = _pack(plan.train, recipe, "train")
    with ShardWriter(out, "train", spools, recipe.shards, grouped=False) as writer:
        for pack in train:
            writer.write(plan.train, pack)
    evaluation = {g: _pack(s, recipe, f"eval/{g}") for g, s in sorted(plan.evaluation.items())}
    with ShardWriter(out, "eval", spools, recipe.shards, grouped=True) as held_out:
        for group, packs in evaluation.items():
            for pack in packs:
                held_out.write(plan.evaluation[group], pack, group=group)
    return Written(train, evaluation, {**writer.files, **held_out.files})


def _pack(sequences: Sequences, recipe: BuildSftConfig, split: str) -> Packs:
    return pack_lengths(
        sequences.length,
        recipe.packing.capacity,
        seed=key64(recipe.seed, "pack", split),
        groups=sequences.group,
    )


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write one JSON object a line; returns how many."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(rows)


def join_files(target: Path, parts: Sequence[Path]) -> int:
    """Concatenate files of lines; returns how many lines."""
    lines = 0
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                for line in file:
                    whole.write(line)
                    lines += 1
    return lines
