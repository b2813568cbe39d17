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
from posttrain.evaluation.agentic import agentic_figures
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
from posttrain.sampling.sampler import Sampler
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
        """Lines to print, a checkpoint each: counts of records, changed scores and verdicts."""
        for name, records in self.before.items():
            scores = 0
            verdicts = 0
            for before, after in zip(records, self.after[name], strict=True):
                scores += before.score.value != after.score.value
                verdicts += before.verdict.calls != after.verdict.calls
            changed = f"{scores:,} scores and {verdicts:,} verdicts changed"
            yield f"{name}: {len(records):,} records, {changed}"


def rescore(run: Path, grade: Grade) -> Rescored:
    """Grade the records of a finished run again; tasks of inspect are replayed from journals."""
    manifest, before = read_run(run)
    after = {name: _grade_again(name, records, grade) for name, records in before.items()}
    for unit, task_run in manifest.stats.get("inspect", {}).items():
        for name, records in after.items():
            after[name] = _replay_task(task_run, run, name, unit, records)
    return Rescored(manifest, before, after)


def keep_rescored(stage: Run, run: Path, rescored: Rescored) -> None:
    """Write records that were graded anew as a run of their own.

    Args:
        stage: run to write.
        run: finished run that the records come from.
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
    """Block `recovery` of an evaluation's recipe; None where it has none."""
    block = manifest.config.get("recovery")
    return None if block is None else RecoveryConfig.model_validate(block)


def _grade_again(name: str, records: Sequence[Record], grade: Grade) -> list[Record]:
    """Grade a checkpoint's records again; records of inspect's tasks stay as they are."""
    attempts = [(r.prompt, r.completion) for r in records if r.prompt.grader != INSPECT]
    graded = iter(grade_completions(name, attempts, grade))
    return [r if r.prompt.grader == INSPECT else next(graded) for r in records]


def _replay_task(
    task_run: Mapping[str, Any], run: Path, name: str, unit: str, records: Sequence[Record]
) -> list[Record]:
    """Run an inspect task of a finished run again on the answers of its journals.

    Args:
        task_run: of `inspect_run`.
        name: of the checkpoint.
        records: of all units; those of other units are returned as they are.
    """
    # imports inspect, which may be missing where no task needs it
    from posttrain.evaluation.inspect_adapter.tasks import run_task

    prompts = {r.prompt.id: r.prompt for r in records if unit_name(r.prompt) == unit}
    # no sampler for the checkpoint ("") nor for any role: journals alone answer
    samplers: dict[str, Sampler | None] = dict.fromkeys(("", *task_run["roles"]))
    with tempfile.TemporaryDirectory() as logs:
        replay = run_task(
            task_run,
            [*prompts.values()],
            samplers,
            checkpoint=name,
            journal=partial(journal_path, run, name, unit),
            logs=Path(logs),
        )
        replayed = asyncio.run(replay)
    replayed_records = {(r.prompt.id, r.completion.index): r for r in replayed}
    return [replayed_records.get((r.prompt.id, r.completion.index), r) for r in records]


def leaderboard_rows(names: Sequence[str]) -> dict[str, Any]:
    """Figures of checkpoints' agentic runs, the best checkpoint first.

    Args:
        names: `RUN`, or `RUN:NAME` for one of the run's checkpoints.

    Raises:
        ConfigError: a checkpoint is named twice, has other tasks, or none that is agentic.
    """
    if len(set(names)) < len(names):
        raise ConfigError("a leaderboard takes each model once")
    checkpoints = {name: read_checkpoint(name) for name in names}
    baseline = checkpoints[names[0]]
    records = {names[0]: baseline.records}
    for name in names[1:]:
        checkpoint = checkpoints[name]
        if checkpoint.lock["prompts"].keys() != baseline.lock["prompts"].keys():
            raise ConfigError(f"{name} has other tasks than {names[0]}")
        # models of several families differ in template and in the versions that they need
        _, records[name] = comparable(baseline, checkpoint, despite=("rendering", "versions"))
    figures = agentic_figures(records)
    if figures is None:
        raise ConfigError("these evaluations have no agentic tasks")
    return figures
