"""Resume checkpoints that are whole or ignored: `complete.json`, written last, lists the files'
sizes. The rotation never leaves none."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from posttrain.errors import ConfigError
from posttrain.runs import atomic_write_json

COMPLETE = "complete.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Running counts, which the trainer does not store, and the layout that wrote them."""

    step: int
    tokens: int
    trained: int
    world_size: int


def mark_complete(checkpoint: Path, progress: Progress) -> None:
    """Declare a checkpoint whole; call it once every process has written its part."""
    files = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != COMPLETE
    }
    atomic_write_json(checkpoint / COMPLETE, {**asdict(progress), "files": files})


def complete_checkpoints(folder: Path) -> list[tuple[Path, Progress]]:
    """The whole checkpoints of a folder by rising step; half-written ones are left out."""
    whole: list[tuple[Path, Progress]] = []
    for marker in folder.glob(f"checkpoint-*/{COMPLETE}"):
        body, path = json.loads(marker.read_text("utf-8")), marker.parent
        sizes = {path / name: size for name, size in body.pop("files").items()}
        if all(file.is_file() and file.stat().st_size == sizes[file] for file in sizes):
            whole.append((path, Progress(**body)))
    return sorted(whole, key=lambda pair: pair[1].step)


def latest_complete(folder: Path, *, world_size: int) -> tuple[Path, Progress] | None:
    """The checkpoint to resume from, if any.

    Raises:
        ConfigError: it was written by another number of processes, whose random states it holds.
    """
    whole = complete_checkpoints(folder)
    if not whole:
        return None
    path, progress = whole[-1]
    if progress.world_size != world_size:
        raise ConfigError(
            f"{path} was written by {progress.world_size} processes and this run has {world_size}; "
            f"start that many, or delete {folder} to train from the beginning"
        )
    return path, progress


def remove_broken(folder: Path) -> None:
    """Delete half-written checkpoints, so that nothing picks them up later."""
    whole = {path for path, _ in complete_checkpoints(folder)}
    for path in folder.glob("checkpoint-*"):
        if path not in whole:
            shutil.rmtree(path)


def rotate(folder: Path, *, keep: int | None) -> None:
    """Keep the `keep` newest whole checkpoints; None keeps all."""
    if keep is None:
        return
    for path, _ in complete_checkpoints(folder)[: -max(keep, 1)]:
        shutil.rmtree(path)
