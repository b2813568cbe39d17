"""A finished run graded again, by the graders and the detector of today; no model is asked.

after = rescore(records, grade)                    # {"sft": [Record, …], "dpo": [Record, …]}
keep_rescored(Path("runs/again"), Path("runs/eval"), manifest, after)   # a run of its own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import Manifest, StageDir, parent_of
from posttrain.evaluation.artifact import finish_run
from posttrain.evaluation.lock import LOCK, PACKAGES, bind_lock, read_lock
from posttrain.evaluation.record import Record, attempts_of, make_record, write_records
from posttrain.evaluation.run_files import record_path
from posttrain.evaluation.unit import Grade, grade_by_name, unit_name
from posttrain.versions import package_versions

Records = Mapping[str, Sequence[Record]]


def rescore(before: Records, grade: Grade) -> dict[str, list[Record]]:
    """The records with new scores and verdicts, in their order."""
    after: dict[str, list[Record]] = {}
    for name, records in before.items():
        scores = grade_by_name(grade, attempts_of(records))
        after[name] = [
            make_record(name, record.prompt, record.completion, score)
            for record, score in zip(records, scores, strict=True)
        ]
    return after


def changes(before: Sequence[Record], after: Sequence[Record]) -> tuple[int, int]:
    """How many scores and how many verdicts are not what they were."""
    pairs = list(zip(before, after, strict=True))
    scores = sum(a.score.value != b.score.value for a, b in pairs)
    return scores, sum(a.verdict.calls != b.verdict.calls for a, b in pairs)


def rescored_config(manifest: Manifest) -> dict[str, Any]:
    """What owns the directory of a rescored run."""
    return {**manifest.config, "rescored": manifest.digest}


def keep_rescored(stage: StageDir, run: Path, manifest: Manifest, records: Records) -> None:
    """Write records that were graded anew as a run whose parent is the first."""
    out = stage.path
    lock = read_lock(run / LOCK)
    bind_lock(out / LOCK, lock | {"versions": package_versions(PACKAGES)})
    for name, found in records.items():
        units: dict[str, list[Record]] = {}
        for record in found:
            units.setdefault(unit_name(record.prompt), []).append(record)
        for unit, own in units.items():
            write_records(record_path(out, name, unit), own)
    finish_run(
        stage,
        records,
        lock=lock,
        counts=manifest.counts,
        parents=[parent_of(run, relative_to=out, manifest=manifest)],
        seed=manifest.seed,
        stats={key: manifest.stats[key] for key in ("sources", "inputs")},
    )
