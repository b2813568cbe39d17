"""The files of one evaluation, and what is computed from its records alone.

    out/lock.json  out/records/dpo/maths.no_tools.jsonl  out/metrics.json  out/examples.jsonl

A unit is done when its file is there: files appear whole. What is unfinished lies in out/work/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import Manifest, atomic_write_text, read_artifact
from posttrain.errors import DataError
from posttrain.evaluation.cells import cell_rows
from posttrain.evaluation.paired import paired_rows
from posttrain.evaluation.record import Record, read_records
from posttrain.evaluation.unit import Unit

RECORDS = "records"
WORK = "work"
METRICS = "metrics.json"
EXAMPLES = "examples.jsonl"
KIND = "evaluation"
Row = dict[str, Any]


def record_path(out: Path, checkpoint: str, unit: str) -> Path:
    """Where a unit's records are."""
    return out / RECORDS / checkpoint / f"{unit}.jsonl"


def part_path(out: Path, unit: Unit) -> Path:
    """Where the records of one part are until the unit has all of them."""
    return out / WORK / unit.checkpoint / f"{unit.name}.{unit.part:05}.jsonl"


def join_parts(out: Path, parts: Sequence[Unit]) -> bool:
    """Make the unit's file of its parts' if all are there; says whether it did."""
    paths = [part_path(out, part) for part in parts]
    if not all(path.is_file() for path in paths):
        return False
    target = record_path(out, parts[0].checkpoint, parts[0].name)
    atomic_write_text(target, "".join(path.read_text("utf-8") for path in paths))
    for path in paths:
        path.unlink()
    return True


def metrics_of(by_checkpoint: Mapping[str, Sequence[Record]], *, seed: int) -> Row:
    """All figures of a run; the first checkpoint is the one that others are compared with.

    Args:
        seed: of bootstrap draws and permutations.
    """
    names = list(by_checkpoint)
    return {
        "cells": [row for name in names for row in cell_rows(by_checkpoint[name], seed=seed)],
        "pairs": [
            row
            for name in names[1:]
            for row in paired_rows(by_checkpoint[names[0]], by_checkpoint[name], seed=seed)
        ],
    }


def refuse_failures(records: Sequence[Record], *, max_failure_rate: float) -> None:
    """Refuse figures of a backend that gave up too often.

    Raises:
        DataError: more than `max_failure_rate` of the completions failed.
    """
    errors = [record.completion.error or "?" for record in records if record.failed]
    if len(errors) > max_failure_rate * len(records):
        most = max(errors, key=errors.count)
        raise DataError(
            f"{len(errors):,} of {len(records):,} completions failed, max_failure_rate allows "
            f"{max_failure_rate:.2%}; most often: {most[:200]}. The same command asks again for "
            "those "
            "alone, or raise max_failure_rate"
        )


def read_run(out: Path) -> tuple[Manifest, dict[str, list[Record]]]:
    """A finished run: its manifest, and its records by checkpoint in the recipe's order.

    Raises:
        DataError: not a finished evaluation, or files that changed.
    """
    manifest = read_artifact(out, kind=KIND)
    names: Sequence[str] = manifest.stats["checkpoints"]
    units: Sequence[str] = manifest.stats["units"]
    return manifest, {
        name: [r for unit in units for r in read_records(record_path(out, name, unit))]
        for name in names
    }
