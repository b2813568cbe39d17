"""Finished evaluations: grade their records again, rank checkpoints by their agentic runs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.config.eval import RecoveryConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.agentic import agentic_rows
from posttrain.evaluation.compare import comparable, read_checkpoint
from posttrain.evaluation.run import (
    INSPECT,
    JOURNALS,
    PACKAGES,
    Grade,
    Record,
    bind_lock,
    by_unit,
    grade_completions,
    journal_path,
    read_lock,
    read_run,
    record_path,
    unit_name,
    write_records,
)
from posttrain.runs import Manifest, Run, parent_of
from posttrain.versions import package_versions

_PROMPT_STATS = ("sources", "inputs", "inspect")  # stats that a run which is graded anew keeps


@dataclass(frozen=True, slots=True)
class Rescored:
    """A finished run graded anew.

    Attributes:
        manifest: manifest of the run.
        before: records of each checkpoint as the run has them.
        after: the same records with their new scores.
    """

    manifest: Manifest
    before: dict[str, list[Record]]
    after: dict[str, list[Record]]

    def changes(self) -> Iterator[str]:
        """A line for each checkpoint: records, and scores and verdicts that changed."""
        for name, records in self.before.items():
            pairs = list(zip(records, self.after[name], strict=True))
            scores = sum(old.score.value != new.score.value for old, new in pairs)
            verdicts = sum(old.verdict.calls != new.verdict.calls for old, new in pairs)
            changed = f"{scores:,} scores and {verdicts:,} verdicts changed"
            yield f"{name}: {len(records):,} records, {changed}"


def rescore(run: Path, grade: Grade) -> Rescored:
    """Grade a run's records again."""
    manifest, before = read_run(run)
    return Rescored(manifest, before, _rescored(run, manifest, before, grade))


def keep_rescored(stage: Run, run: Path, rescored: Rescored) -> None:
    """Write records that were graded anew as a run of their own.

    Args:
        run: the run that they were first graded in.
    """
    # loads transformers, which comparing does without
    from posttrain.evaluation.stage import finish_run, write_tables

    manifest = rescored.manifest
    out = stage.path
    bind_lock(out, read_lock(run) | {"versions": package_versions(PACKAGES)})
    for name, records in rescored.after.items():
        for unit, unit_records in by_unit(records).items():
            write_records(record_path(out, name, unit), unit_records)
    if (run / JOURNALS).is_dir():
        shutil.copytree(run / JOURNALS, out / JOURNALS, dirs_exist_ok=True)
    kept = finish_run(
        stage,
        rescored.after,
        counts=manifest.counts,
        parents=[parent_of(run, relative_to=out, manifest=manifest)],
        seed=manifest.seed,
        stats={key: manifest.stats[key] for key in _PROMPT_STATS if key in manifest.stats},
        recovery=recovery_of(manifest),
    )
    write_tables(out, kept, rescored.after, {})


def recovery_of(manifest: Manifest) -> RecoveryConfig | None:
    """Block `recovery` of the recipe that an evaluation was made by."""
    block = manifest.config.get("recovery")
    return None if block is None else RecoveryConfig.model_validate(block)


def _rescored(
    out: Path, manifest: Manifest, before: Mapping[str, Sequence[Record]], grade: Grade
) -> dict[str, list[Record]]:
    """The records graded anew; tasks of inspect are run again on the answers of their journals."""
    after: dict[str, list[Record]] = {}
    for name, records in before.items():
        ours = [(r.prompt, r.completion) for r in records if r.prompt.grader != INSPECT]
        graded = iter(grade_completions(name, ours, grade))
        after[name] = [r if r.prompt.grader == INSPECT else next(graded) for r in records]
    for unit, run in manifest.stats.get("inspect", {}).items():
        from posttrain.evaluation.inspect_adapter.tasks import run_task

        for name, records in after.items():
            own = {r.prompt.id: r.prompt for r in records if unit_name(r.prompt) == unit}
            with tempfile.TemporaryDirectory() as logs:
                replay = run_task(
                    run,
                    [*own.values()],
                    dict.fromkeys(("", *run["roles"])),
                    checkpoint=name,
                    journal=partial(journal_path, out, name, unit),
                    logs=Path(logs),
                )
                replayed = asyncio.run(replay)
            found = {(r.prompt.id, r.completion.index): r for r in replayed}
            after[name] = [found.get((r.prompt.id, r.completion.index), r) for r in records]
    return after


def leaderboard_rows(names: Sequence[str]) -> dict[str, Any]:
    """Figures of checkpoints' agentic runs, the best checkpoint first.

    Args:
        names: each `RUN`, or `RUN:NAME` of one of its checkpoints.

    Raises:
        ConfigError: a checkpoint is named twice, has other tasks, or none that is agentic.
    """
    if len(set(names)) < len(names):
        raise ConfigError("a leaderboard takes each model once")
    sides = {name: read_checkpoint(name) for name in names}
    first = sides[names[0]]
    records = {names[0]: first.records}
    for name in names[1:]:
        if sides[name].lock["prompts"].keys() != first.lock["prompts"].keys():
            raise ConfigError(f"{name} has other tasks than {names[0]}")
        records[name] = comparable(first, sides[name], despite=("rendering", "versions"))[1]
    rows = agentic_rows(records)
    if rows is None:
        raise ConfigError("these evaluations have no agentic tasks")
    return rows
