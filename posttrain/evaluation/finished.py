"""What is done with finished evaluations: graded again, compared pairwise, ranked."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from posttrain.config.eval import GateConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.agentic import agentic_rows
from posttrain.evaluation.compare import comparable, compare_runs, gate_rows, passes, side_of
from posttrain.evaluation.run import (
    INSPECT,
    JOURNALS,
    KIND,
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
from posttrain.pages import agentic, evaluation
from posttrain.pages.write import write_report
from posttrain.report.console import open_console, print_sections
from posttrain.runs import Manifest, atomic_write_json, open_run, parent_of
from posttrain.versions import package_versions

_OF_PROMPTS = ("sources", "inputs", "inspect")  # stats that a run which is graded anew keeps


def rescore(run: Path, grade: Grade, *, out: Path | None) -> None:
    """Grade a run's records again and print their figures; `out` keeps them as a run of its own."""
    # loads transformers, which comparing does without
    from posttrain.evaluation.stage import finish_run, metrics_of, write_tables

    console = open_console()
    manifest, before = read_run(run)
    after = _rescored(run, manifest, before, grade)
    for name, records in before.items():
        pairs = list(zip(records, after[name], strict=True))
        scores = sum(a.score.value != b.score.value for a, b in pairs)
        calls = sum(a.verdict.calls != b.verdict.calls for a, b in pairs)
        changed = f"{scores:,} scores and {calls:,} verdicts changed"
        console.print(f"{name}: {len(records):,} records, {changed}")
    figures = evaluation.figures(metrics_of(after, seed=manifest.seed))
    print_sections(console, figures, charts=False)
    if out is None:
        return
    config = {**manifest.config, "rescored": manifest.digest}
    with open_run(out, kind=KIND, config=config) as stage:
        if not stage.complete:
            versions = {"versions": package_versions(PACKAGES)}
            bind_lock(stage.path, read_lock(run) | versions)
            for name, own in after.items():
                for unit, rows in by_unit(own).items():
                    write_records(record_path(stage.path, name, unit), rows)
            if (run / JOURNALS).is_dir():
                shutil.copytree(run / JOURNALS, stage.path / JOURNALS, dirs_exist_ok=True)
            kept = finish_run(
                stage,
                after,
                counts=manifest.counts,
                parents=[parent_of(run, relative_to=stage.path, manifest=manifest)],
                seed=manifest.seed,
                stats={key: manifest.stats[key] for key in _OF_PROMPTS if key in manifest.stats},
            )
            write_tables(stage.path, kept, after, {})
        console.print(str(write_report(out)))


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


def compare(
    a: str, b: str, despite: Collection[str], gate: GateConfig | None, json: Path | None
) -> bool:
    """Print the paired differences of two checkpoints, each `RUN` or `RUN:NAME`, and write them to
    `json`; `despite` is that of `comparable`. Returns whether b passes the gate, if there is one.
    """
    console = open_console()
    sides = side_of(a), side_of(b)
    rows = compare_runs(*sides, despite=despite)
    for name, side in zip("ab", sides, strict=True):
        console.print(f"{name}: {side.run} {side.checkpoint}")
    print_sections(console, [evaluation.differences(rows)])
    if json is not None:
        atomic_write_json(json, {"a": a, "b": b, "pairs": rows})
    if gate is None:
        return True
    verdicts = gate_rows(gate, *comparable(*sides, despite=despite))
    print_sections(console, [evaluation.gated(verdicts)])
    return passes(gate, verdicts)


def leaderboard(names: Sequence[str]) -> None:
    """Rank checkpoints, each `RUN` or `RUN:NAME`, by their agentic runs; raises ConfigError."""
    if len(set(names)) < len(names):
        raise ConfigError("a leaderboard takes each model once")
    sides = {name: side_of(name) for name in names}
    first, records = sides[names[0]], {names[0]: sides[names[0]].records}
    for name in names[1:]:
        if sides[name].lock["prompts"].keys() != first.lock["prompts"].keys():
            raise ConfigError(f"{name} has other tasks than {names[0]}")
        records[name] = comparable(first, sides[name], despite=("rendering", "versions"))[1]
    rows = agentic_rows(records)
    if rows is None:
        raise ConfigError("these evaluations have no agentic tasks")
    print_sections(open_console(), agentic.figures(rows, {}, ()), charts=False)
