"""What is done with finished evaluations: graded again, compared pairwise, ranked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from posttrain.config.eval import GateConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.agentic import agentic_rows
from posttrain.evaluation.compare import comparable, compare_runs, gate_rows, passes, side_of
from posttrain.evaluation.run import KIND, Grade, changed_grades, read_run
from posttrain.evaluation.stage import keep_rescored, metrics_of, rescored_records
from posttrain.report.console import open_console, print_sections
from posttrain.report.pages import agentic, evaluation
from posttrain.report.write import write_report
from posttrain.runs import atomic_write_json, open_run


def rescore(run: Path, grade: Grade, *, out: str) -> None:
    """Grade a run's records again and print their figures; `out`, unless it is "", keeps them as a
    run of its own."""
    console = open_console()
    manifest, before = read_run(run)
    after = rescored_records(run, manifest, before, grade)
    for name, records in before.items():
        scores, calls = changed_grades(records, after[name])
        changed = f"{scores:,} scores and {calls:,} verdicts changed"
        console.print(f"{name}: {len(records):,} records, {changed}", highlight=False)
    figures = evaluation.figures(metrics_of(after, seed=manifest.seed))
    print_sections(console, figures, charts=False)
    if out:
        config = {**manifest.config, "rescored": manifest.digest}
        with open_run(Path(out), kind=KIND, config=config) as stage:
            if not stage.complete:
                keep_rescored(stage, run, manifest, after)
            console.print(f"{write_report(out)}", highlight=False)


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
        console.print(f"{name}: {side.run} {side.checkpoint}", highlight=False)
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
    rows = agentic_rows(records, seed=0)
    if rows is None:
        raise ConfigError("these evaluations have no agentic tasks")
    print_sections(open_console(), agentic.figures(rows, {}, ()), charts=False)
