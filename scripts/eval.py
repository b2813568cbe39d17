"""Evaluate checkpoints: accuracy, undeclared tool calls, adherence, lengths; with intervals.

posttrain eval --config tiny/eval [out=runs/x] [--task maths] [--limit 20] [--dry-run]
posttrain eval rescore RUN [out=DIR]  # grade the records again
posttrain eval compare RUN_A[:NAME] RUN_B[:NAME] [--gate G.yaml]  # exits with 1 where B is worse
posttrain eval leaderboard RUN[:NAME] …  # agentic tasks, several models
"""

import argparse
import sys
from pathlib import Path

from posttrain.config.backend import is_served
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import EvalConfig, GateConfig, with_choices
from posttrain.config.load import load_recipe
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.runs import Run, atomic_write_json, open_run


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in ("rescore", "compare", "leaderboard"):
        read_finished(arguments)
        return
    parser = recipe_parser("Evaluate checkpoints.")
    parser.add_argument("--limit", type=int, help="only so many prompts of each task and setting")
    parser.add_argument("--task", action="append", default=[], help="only this task; repeatable")
    recipe, options = parse_recipe(parser, EvalConfig, arguments)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit takes a number of prompts, 1 or more")
    recipe = recipe.part(tuple(options.task)) if options.task else recipe
    for name in recipe.checkpoints:
        refuse_missing_checkpoint(
            recipe.path_of(name),
            key=f"checkpoints.{name}",
            is_served=is_served(recipe.backend_of(name)),
        )
    recipe, choices = with_choices(recipe)
    limit = options.limit
    config = recipe.owner_config() | ({"limit": limit} if limit else {})
    from data_builders.prompts.evaluation import evaluation_plan, open_tasks

    rows = open_tasks(recipe)  # names of graders and tools, and files, before torch is loaded
    from posttrain.evaluation import run, stage
    from posttrain.pages.evaluation import estimated
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage

    console = open_console()
    for line in choices:
        console.print(line)

    def plan() -> None:
        evaluation = evaluation_plan(recipe, rows, limit=limit)
        stage.show_counts(console, recipe, evaluation)
        units = stage.units_as_sent(evaluation, console)
        estimate = stage.estimate(recipe, evaluation, units)
        print_sections(console, [estimated(estimate.rows, estimate.speeds)])
        stage.show_first_prompts(console, evaluation, units)

    def make(opened: Run) -> None:
        stage.make_evaluation(opened, recipe, evaluation_plan(recipe, rows, limit=limit), console)

    def check(opened: Run) -> None:
        stage.refresh_evaluation(opened, recipe, evaluation_plan(recipe, rows, limit=limit))

    run_data_stage(
        console,
        recipe.out,
        kind=run.KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
        scratch=run.WORK,
    )


def read_finished(argv: list[str]) -> None:
    """Grade a finished evaluation again, compare two, or rank several."""
    parser = argparse.ArgumentParser(description="What is done with finished evaluations.")
    commands = parser.add_subparsers(dest="command")
    rescored = commands.add_parser("rescore", help="grade the records of a run again")
    rescored.add_argument("run", type=Path, help="a finished evaluation")
    rescored.add_argument("out", nargs="?", help="out=DIR keeps it as a run of its own")
    compared = commands.add_parser("compare", help="compare two runs on the same prompts")
    for side in ("a", "b"):
        name = f"RUN_{side.upper()}"
        compared.add_argument(side, metavar=name, help="RUN, or RUN:NAME of one of its checkpoints")
    compared.add_argument(
        "--despite",
        action="append",
        default=[],
        choices=("sampling", "rendering", "versions", "judge"),
        help="compare although this differs",
    )
    compared.add_argument("--json", type=Path, help="write the figures to this file as well")
    compared.add_argument("--gate", type=Path, help="rules; exit with 1 where one fails")
    ranked = commands.add_parser("leaderboard", help="rank models by their agentic runs")
    ranked.add_argument("runs", nargs="+", help="RUN:NAME, or RUN where it has one checkpoint")
    options = parser.parse_args(sorted(argv, key=lambda word: word.startswith("out=")))  # anywhere
    if (out := getattr(options, "out", None)) is not None and not out.startswith("out="):
        parser.error(f"rescore takes out=DIR, not {out!r}")
    gate = getattr(options, "gate", None) and load_recipe(options.gate, GateConfig)
    if options.command == "rescore":
        rescore(options.run, out and Path(out[4:]))
    elif options.command == "leaderboard":
        rank(options.runs)
    elif not compare(options.a, options.b, options.despite, gate, options.json):
        sys.exit(1)


def rescore(finished_run: Path, out: Path | None) -> None:
    """Grade a run's records again and print their figures; `out` keeps them as a run."""
    from data_builders.prompts.evaluation import grade_of  # loads transformers
    from posttrain.evaluation.finished import keep_rescored, recovery_of
    from posttrain.evaluation.finished import rescore as grade_again
    from posttrain.evaluation.run import KIND
    from posttrain.evaluation.stage import metrics_of
    from posttrain.pages.evaluation import figures
    from posttrain.pages.write import write_report
    from posttrain.report.console import open_console, print_sections

    console = open_console()
    rescored = grade_again(finished_run, grade_of(finished_run))
    for line in rescored.changes():
        console.print(line)
    manifest = rescored.manifest
    metrics = metrics_of(rescored.after, seed=manifest.seed, recovery=recovery_of(manifest))
    print_sections(console, figures(metrics), charts=False)
    if out is None:
        return
    config = {**manifest.config, "rescored": manifest.digest}
    with open_run(out, kind=KIND, config=config) as run:
        if not run.complete:
            keep_rescored(run, finished_run, rescored)
        console.print(str(write_report(out)))


def compare(a: str, b: str, despite: list[str], gate: GateConfig | None, json: Path | None) -> bool:
    """Print the paired differences of two checkpoints, and write them to the file `json`.

    Returns:
        Whether b passes the gate, if there is one.
    """
    from posttrain.evaluation.compare import (
        comparable,
        compare_runs,
        gate_rows,
        passes,
        read_checkpoint,
    )
    from posttrain.pages.evaluation import differences, gated
    from posttrain.report.console import open_console, print_sections

    console = open_console()
    sides = (read_checkpoint(a), read_checkpoint(b))
    rows = compare_runs(*sides, despite=despite)
    for name, side in zip("ab", sides, strict=True):
        console.print(f"{name}: {side.run} {side.checkpoint}")
    print_sections(console, [differences(rows)])
    if json is not None:
        atomic_write_json(json, {"a": a, "b": b, "pairs": rows})
    if gate is None:
        return True
    verdicts = gate_rows(gate, *comparable(*sides, despite=despite))
    print_sections(console, [gated(verdicts)])
    return passes(gate, verdicts)


def rank(names: list[str]) -> None:
    """Print the leaderboard of checkpoints by their agentic runs."""
    from posttrain.evaluation.finished import leaderboard_rows
    from posttrain.pages import agentic
    from posttrain.report.console import open_console, print_sections

    print_sections(open_console(), agentic.figures(leaderboard_rows(names), {}, ()), charts=False)


if __name__ == "__main__":
    run_command(main)
