"""Records on disk → the `evaluation` artifact: figures, books, manifest.

finish_run(stage, records, lock=lock, counts=counts, …)  → metrics, and manifest.json is there
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import Counts, Parent, StageDir, atomic_write_json
from posttrain.evaluation.examples import examples
from posttrain.evaluation.lock import LOCK, Lock
from posttrain.evaluation.record import Record, write_records
from posttrain.evaluation.run_files import EXAMPLES, METRICS, metrics_of, record_path
from posttrain.evaluation.unit import unit_name


def finish_run(
    stage: StageDir,
    records: Mapping[str, Sequence[Record]],
    *,
    lock: Lock,
    counts: Counts,
    parents: Sequence[Parent],
    seed: int,
    stats: Mapping[str, Any],
) -> dict[str, Any]:
    """Write `metrics.json`, `examples.jsonl` and the manifest; the records and the lock are there.

    Args:
        records: all of every checkpoint, the first being the one others are compared with.
        counts: of prompts.

    Returns:
        The figures.
    """
    out = stage.path
    metrics = metrics_of(records, seed=seed)
    atomic_write_json(out / METRICS, metrics)
    shown = examples([record for found in records.values() for record in found])
    write_records(out / EXAMPLES, shown)
    files: dict[str, int | None] = {METRICS: None, LOCK: None, EXAMPLES: len(shown)}
    units: dict[str, None] = {}
    for name, found in records.items():
        sizes: dict[str, int] = {}
        for record in found:
            unit = unit_name(record.prompt)
            sizes[unit] = sizes.get(unit, 0) + 1
        units |= dict.fromkeys(sizes)
        for unit, size in sizes.items():
            files[record_path(out, name, unit).relative_to(out).as_posix()] = size
    rendering: Mapping[str, Any] = lock["rendering"]
    templates = {(found or {}).get("template") for found in rendering.values()}
    stage.finish(
        counts=counts,
        files=files,
        parents=parents,
        # one only where every checkpoint is asked through the same
        template_digest=templates.pop() if len(templates) == 1 else None,
        seed=seed,
        stats={
            "units": list(units),
            "checkpoints": list(records),
            "weights": lock["weights"],
            **stats,
        },
    )
    return metrics
