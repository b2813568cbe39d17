"""Evaluate checkpoints: accuracy, undeclared tool calls, adherence, lengths; with intervals.

posttrain eval --config tiny/eval [out=runs/x] [--task maths] [--limit 20] [--dry-run]
posttrain eval rescore RUN [out=DIR]  # grade the records again
posttrain eval compare RUN_A[:NAME] RUN_B[:NAME] [--gate G.yaml]  # exits with 1 where B is worse
posttrain eval leaderboard RUN[:NAME] …  # agentic tasks, several models
"""

import argparse
import sys
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import EvalConfig, GateConfig, with_choices
from posttrain.config.load import load_recipe
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.runs import Run, open_run


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in ("rescore", "compare", "leaderboard"):
        of_finished(given)
        return
    parser = recipe_parser("Evaluate checkpoints.")
    parser.add_argument("--limit", type=int, help="only so many prompts of each task and setting")
    parser.add_argument("--task", action="append", default=[], help="only this task; repeatable")
    recipe, options = parse_recipe(parser, EvalConfig, given)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit takes a number of prompts, 1 or more")
    recipe = recipe.part(tuple(options.task)) if options.task else recipe
    for name in recipe.checkpoints:
        refuse_missing_checkpoint(recipe.path_of(name), key=f"checkpoints.{name}")
    recipe, choices = with_choices(recipe)
    out, limit = Path(recipe.out), options.limit
    config = recipe.owner_config() | ({"limit": limit} if limit else {})
    from data_builders.prompts.evaluation import evaluation_plan, open_tasks

    rows = open_tasks(recipe)  # names of graders and tools, and files, before torch is loaded
    from posttrain.evaluation import run, stage
    from posttrain.report.console import open_console

    console = open_console()
    for line in choices:
        console.print(line)
    if options.dry_run:
        Run.open(out, kind=run.KIND, config=config, dry_run=True)
        stage.show_plan(console, recipe, evaluation_plan(recipe, rows, limit=limit))
        return
    with open_run(out, kind=run.KIND, config=config, scratch=run.WORK) as opened:
        plan = evaluation_plan(recipe, rows, limit=limit)
        stage.run_evaluation(opened, recipe, plan, console)


def of_finished(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="What is done with finished evaluations.")
    commands = parser.add_subparsers(dest="command")
    rescored = commands.add_parser("rescore", help="grade the records of a run again")
    rescored.add_argument("run", type=Path, help="a finished evaluation")
    rescored.add_argument("out", nargs="?", help="out=DIR keeps it as a run of its own")
    compared = commands.add_parser("compare", help="compare two runs on the same prompts")
    for side in ("a", "b"):
        compared.add_argument(side, help="RUN, or RUN:NAME of one of its checkpoints")
    parts, but = ("sampling", "rendering", "versions", "judge"), "compare although this differs"
    compared.add_argument("--despite", action="append", default=[], choices=parts, help=but)
    compared.add_argument("--json", type=Path, help="write the figures to this file as well")
    compared.add_argument("--gate", type=Path, help="rules; exit with 1 where one fails")
    ranked = commands.add_parser("leaderboard", help="rank models by their agentic runs")
    ranked.add_argument("runs", nargs="+", help="RUN:NAME, or RUN where it has one checkpoint")
    options = parser.parse_args(sorted(argv, key=lambda word: word.startswith("out=")))  # anywhere
    if (out := getattr(options, "out", None)) is not None and not out.startswith("out="):
        parser.error(f"rescore takes out=DIR, not {out!r}")
    gate = getattr(options, "gate", None) and load_recipe(options.gate, GateConfig)
    from posttrain.evaluation import finished

    if options.command == "rescore":
        from data_builders.prompts.evaluation import grade_of  # loads transformers

        finished.rescore(options.run, grade_of(options.run), out=out and Path(out[4:]))
    elif options.command == "leaderboard":
        finished.leaderboard(options.runs)
    elif not finished.compare(options.a, options.b, options.despite, gate, options.json):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
