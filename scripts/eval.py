"""Evaluate checkpoints: accuracy, undeclared tool calls, adherence, lengths; with intervals.

posttrain eval --config tiny/eval
posttrain eval --config F out=runs/x --task maths --limit 20 --dry-run
posttrain eval rescore RUN [out=DIR]              # grade the records again
posttrain eval compare RUN_A[:NAME] RUN_B[:NAME]  # paired, on the same prompts
posttrain eval compare RUN_A RUN_B --gate G.yaml  # exits with 1 where B is worse
posttrain eval leaderboard RUN[:NAME] …           # agentic tasks, several models
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import EvalConfig, GateConfig
from posttrain.config.load import load_recipe
from posttrain.errors import ConfigError
from posttrain.evaluation.inspect_adapter import require_inspect
from posttrain.runs import Run, atomic_write_json, open_run

KIND, WORK = "evaluation", "work"


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    console = Console(width=None if sys.stdout.isatty() else 160)
    commands = {"rescore": rescore, "compare": compare, "leaderboard": leaderboard}
    if given and given[0] in commands:
        commands[given[0]](given[1:], console)
    else:
        evaluate(given, console)


def evaluate(argv: list[str], console: Console) -> None:
    """Make what is missing of a run, or show what it would be."""
    parser = recipe_parser("Evaluate checkpoints.")
    parser.add_argument("--limit", type=int, help="only so many prompts of each task and setting")
    parser.add_argument("--task", action="append", default=[], help="only this task; repeatable")
    recipe, options = parse_recipe(parser, EvalConfig, argv)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit takes a number of prompts, 1 or more")
    recipe = recipe.part(tuple(options.task)) if options.task else recipe
    if recipe.inspect_logs:
        require_inspect("inspect_logs", extra="inspect")
    config = recipe.owner_config() | ({"limit": options.limit} if options.limit else {})
    out = Path(recipe.out)

    from data_builders.prompts.evaluation import evaluation_plan, open_tasks

    # the names of graders and tools, and the files, before torch is loaded
    rows = open_tasks(recipe)

    from posttrain.evaluation.stage import run_evaluation, show_plan

    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        show_plan(console, recipe, evaluation_plan(recipe, rows, limit=options.limit))
        return
    with open_run(out, kind=KIND, config=config, scratch=WORK) as stage:
        run_evaluation(stage, recipe, evaluation_plan(recipe, rows, limit=options.limit), console)


def rescore(argv: list[str], console: Console) -> None:
    """Grade a run's records again; `out=DIR` keeps the result as a run of its own."""
    parser = argparse.ArgumentParser(description="Grade the records of a run again.")
    parser.add_argument("run", type=Path, help="a finished evaluation")
    parser.add_argument("out", nargs="?", help="out=DIR; without it nothing is written")
    options = parser.parse_intermixed_args(argv)
    if options.out is not None and not options.out.startswith("out="):
        raise ConfigError(f"rescore takes out=DIR, not {options.out!r}")

    from data_builders.prompts.evaluation import grade_by_name
    from data_builders.registry import all_graders
    from posttrain.evaluation.run import JOURNALS, LABELS, changed_grades, read_run
    from posttrain.evaluation.stage import keep_rescored, metrics_of, rescored_records
    from posttrain.report import write_report
    from posttrain.report.console import print_sections
    from posttrain.report.pages.evaluation import figures

    manifest, before = read_run(options.run)
    labels = options.run / JOURNALS / LABELS
    grade = grade_by_name(all_graders(labels=labels if labels.is_file() else None))
    after = rescored_records(options.run, manifest, before, grade)
    for name, records in before.items():
        scores, calls = changed_grades(records, after[name])
        changed = f"{scores:,} scores and {calls:,} verdicts changed"
        console.print(f"{name}: {len(records):,} records, {changed}", highlight=False)
    print_sections(console, figures(metrics_of(after, seed=manifest.seed)), charts=False)
    if options.out is not None:
        out = Path(options.out.removeprefix("out="))
        config = {**manifest.config, "rescored": manifest.digest}
        with open_run(out, kind=KIND, config=config) as stage:
            if not stage.complete:
                keep_rescored(stage, options.run, manifest, after)
            console.print(f"{write_report(out)}", highlight=False)


def compare(argv: list[str], console: Console) -> None:
    """Two checkpoints of two runs (or of one), question by question."""
    parts = ("sampling", "rendering", "versions", "judge")
    parser = argparse.ArgumentParser(description="Compare two runs on the same prompts.")
    parser.add_argument("a", help="RUN, or RUN:NAME of one of its checkpoints")
    parser.add_argument("b", help="RUN, or RUN:NAME")
    parser.add_argument("--despite", action="append", default=[], choices=parts,
                        help="compare although this part of the locks differs")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--gate", type=Path, help="a file of rules; exit with 1 where one fails")
    options = parser.parse_intermixed_args(argv)
    gate = None if options.gate is None else load_recipe(options.gate, GateConfig)

    from posttrain.evaluation.compare import comparable, compare_runs, gate_rows, passes, side_of
    from posttrain.report.console import print_sections
    from posttrain.report.pages.evaluation import differences, gated

    a, b = side_of(options.a), side_of(options.b)
    rows = compare_runs(a, b, despite=options.despite)
    console.print(f"a: {a.run} {a.checkpoint}\nb: {b.run} {b.checkpoint}", highlight=False)
    print_sections(console, [differences(rows)])
    if options.json is not None:
        atomic_write_json(options.json, {"a": options.a, "b": options.b, "pairs": rows})
    if gate is not None:
        verdicts = gate_rows(gate, *comparable(a, b, despite=options.despite))
        print_sections(console, [gated(verdicts)])
        if not passes(gate, verdicts):
            sys.exit(1)


def leaderboard(argv: list[str], console: Console) -> None:
    """The agentic runs of several models side by side, of one or several evaluations."""
    parser = argparse.ArgumentParser(description="Rank models by their agentic runs.")
    parser.add_argument("runs", nargs="+", help="RUN:NAME, or RUN where it has one checkpoint")
    given = parser.parse_args(argv).runs

    from posttrain.evaluation.agentic import agentic_rows
    from posttrain.evaluation.compare import comparable, side_of
    from posttrain.report.console import print_sections
    from posttrain.report.pages.agentic import figures

    if len(set(given)) < len(given):
        raise ConfigError("a leaderboard takes each model once")
    sides = {name: side_of(name) for name in given}
    first = sides[given[0]]
    records = {given[0]: first.records}
    for name in given[1:]:
        if sides[name].lock["prompts"].keys() != first.lock["prompts"].keys():
            raise ConfigError(f"{name} has other tasks than {given[0]}")
        records[name] = comparable(first, sides[name], despite=("rendering", "versions"))[1]
    rows = agentic_rows(records, seed=0)
    if rows is None:
        raise ConfigError("these evaluations have no agentic tasks")
    print_sections(console, figures(rows, {}, ()), charts=False)


if __name__ == "__main__":
    run_command(main)
