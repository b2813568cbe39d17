"""The plan → packs → files: the last, quick part of a build, done anew after a kill.

write_splits(out, spools, plan, recipe, …)  →  Written(tallies={"train": {"": Tally}, …}, files=…)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.progress import Stages
from data_builders.sft.pack import PackedSplit, Tally, cut_shards, pack_split
from data_builders.sft.plan import BuildPlan
from data_builders.sft.prepared import Spool
from data_builders.sft.shards import ShardJob, Where
from data_builders.workers import Executor
from posttrain.config.build_sft import BuildSftConfig


@dataclass(frozen=True, slots=True)
class Written:
    """What the groups of each split add up to, and files with their rows.

    Training has one group without a name.
    """

    train: Tally
    evaluation: dict[str, Tally]
    files: dict[str, int | None]


def write_splits(
    out: Path,
    spools: Sequence[Spool],
    plan: BuildPlan,
    recipe: BuildSftConfig,
    *,
    scratch: Path,
    executor: Executor,
    stages: Stages,
) -> Written:
    """Pack and write both splits; what an earlier, killed run left of them is replaced.

    Args:
        scratch: for the plan, made anew.
    """
    out, scratch = out.resolve(), scratch.resolve()  # workers may have been started elsewhere
    for folder in (out / "packed", out / "index", scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    stages.start("packing")
    splits = [
        pack_split(scratch, "train", {"": plan.train}, recipe),
        pack_split(scratch, "eval", dict(sorted(plan.evaluation.items())), recipe),
    ]
    jobs: list[ShardJob] = []
    for split in splits:
        jobs += _shard_jobs(out, spools, split, recipe, scratch)
    total = sum(job.shard.entries[1] - job.shard.entries[0] for job in jobs)
    stages.start("writing shards", total=total, unit="sequences")
    for _ in executor.run(jobs, stages.advance):
        pass
    for left in (*out.glob("packed/.*"), *out.glob("index/.*")):
        left.unlink()  # of a worker that died, and whose job another one did
    files: dict[str, int | None] = {}
    for job in jobs:
        packed, index = job.names
        files[packed] = job.shard.packs[1] - job.shard.packs[0]
        files[index] = job.shard.entries[1] - job.shard.entries[0]
    return Written(splits[0].tallies[""], dict(splits[1].tallies), files)


def _shard_jobs(
    out: Path, spools: Sequence[Spool], split: PackedSplit, recipe: BuildSftConfig, scratch: Path
) -> list[ShardJob]:
    where = Where(
        entries=str(split.entries),
        packs=str(split.packs),
        folders=[str(folder) for spool in spools for folder in spool.folders],
        sources=[spool.name for spool in spools],
        groups=list(split.tallies) if split.split == "eval" else None,
    )
    path = scratch / f"{split.split}.json"
    where.save(path)
    shards = cut_shards(split, recipe.shards)
    return [ShardJob(shard, split.split, str(path), str(out)) for shard in shards]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write one JSON object a line; returns how many."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(rows)


def join_files(target: Path, parts: Sequence[Path], more: Iterable[str] = ()) -> int:
    """Concatenate files of lines, and then some more lines; returns how many."""
    lines = 0
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                for line in file:
                    whole.write(line)
                    lines += 1
        for line in more:
            whole.write(line.encode())
            lines += 1
    return lines
