"""Evaluate checkpoints: accuracy, undeclared tool calls, adherence, lengths; with intervals.

    python scripts/eval.py --config recipes/tiny/eval.yaml
    python scripts/eval.py --config F out=runs/x --task maths --limit 20
    python scripts/eval.py --config F out=runs/x --dry-run
    python scripts/eval.py rescore RUN [out=DIR]              # grade the records again
    python scripts/eval.py compare RUN_A[:NAME] RUN_B[:NAME]  # paired, on the same prompts

Paths in a recipe are relative to the directory this is run in. Killed and started again, the same
command finishes the run and repeats nothing that was finished.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

# before transformers is imported, which may be by way of trl, whose telemetry is on by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from rich.console import Console
from rich.markup import escape

from data_builders.graders import all_graders
from data_builders.prompts import PromptSet, build_prompts, prompt_inputs
from data_builders.sft_inputs import Input, as_stats
from data_builders.toolkits import toolkits_for
from posttrain.artifacts import (
    MANIFEST,
    Counts,
    Parent,
    StageDir,
    atomic_write_json,
    parent_of,
    read_artifact,
)
from posttrain.claim import claimed, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.eval import EvalConfig
from posttrain.environments.base import Environment, Toolkit
from posttrain.errors import ConfigError, PosttrainError
from posttrain.evaluation.artifact import finish_run
from posttrain.evaluation.compare import compare_runs, side_of
from posttrain.evaluation.extra import require_inspect
from posttrain.evaluation.lock import (
    COMPARED,
    LOCK,
    bind_lock,
    make_lock,
    read_lock,
)
from posttrain.evaluation.record import read_records
from posttrain.evaluation.rescore import changes, keep_rescored, rescore, rescored_config
from posttrain.evaluation.run_files import (
    KIND,
    RECORDS,
    WORK,
    metrics_of,
    read_run,
    record_path,
)
from posttrain.evaluation.tables import print_cells, print_pairs
from posttrain.evaluation.unit import Grade, How, Unit, units_of
from posttrain.models.chat_template import PromptRenderer, renderer_of
from posttrain.records import json_text
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.progress import ProgressBar
from posttrain.tokens.tokenizer import encoder_of
from reward.grader import Attempt, Grader

BASE = Path(".")


def main(arguments: list[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    commands = {"rescore": rescore_run, "compare": compare}
    if arguments and arguments[0] in commands:
        commands[arguments[0]](arguments[1:], console)
    else:
        evaluate(arguments, console)


def evaluate(arguments: list[str], console: Console) -> None:
    """Make what is missing of a run, or show what it would be."""
    parser = recipe_parser("Evaluate checkpoints.")
    parser.add_argument("--limit", type=int, help="only so many prompts of each task and setting")
    parser.add_argument("--task", action="append", default=[], help="only this task; repeatable")
    recipe, options = parse_recipe(parser, EvalConfig, arguments)
    if options.limit is not None and options.limit < 1:
        raise ConfigError("--limit takes a number of prompts, 1 or more")
    recipe = recipe.part(tuple(options.task)) if options.task else recipe
    config = recipe.owner_config() | ({"limit": options.limit} if options.limit else {})
    out = Path(recipe.out)

    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            StageDir.open(out, kind=KIND, config=config, claim=False)
        show_plan(console, recipe, plan_of(recipe, options.limit))
        return
    require_inspect()
    with claimed(out, kind=KIND, config=config, scratch=WORK) as stage:
        plan = plan_of(recipe, options.limit)
        complete = stage.complete
        lock = make_lock(
            recipe,
            stage.config_digest,
            units=plan.units,
            rendering={name: digests(found) for name, found in plan.renderers.items()},
            files={found.path: found.sha256 for found in plan.inputs},
            parents=plan.parents,
        )
        bind_lock(out / LOCK, lock, finished=complete)
        if complete:
            shutil.rmtree(out / WORK, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do", highlight=False)
            return
        try:
            make(recipe, plan, console)
        except PosttrainError:
            if not any((out / folder).is_dir() for folder in (RECORDS, WORK)):
                (out / LOCK).unlink()  # nothing is bound yet: a corrected recipe may have the place
            raise
        finish(stage, recipe, plan, console)


class Plan(NamedTuple):
    """What a recipe comes to: prompts, what runs and grades them, and where all of it is from."""

    made: PromptSet
    units: list[Unit]  # of the first checkpoint; all are asked the same
    toolkits: Mapping[str, Toolkit]
    graders: Mapping[str, Grader]
    renderers: Mapping[str, PromptRenderer | None]
    inputs: Sequence[Input]
    parents: Sequence[Parent]

    def opened(self, prompt: Prompt) -> Environment | None:
        """What runs a prompt's calls."""
        name = prompt.environment
        return None if name is None else self.toolkits[name].open(prompt)


def plan_of(recipe: EvalConfig, limit: int | None) -> Plan:
    """All that can be said before a model is loaded."""
    out, names = Path(recipe.out), list(recipe.checkpoints)
    inputs, parents = prompt_inputs(recipe.prompts, BASE, out=out)
    for path in filter(None, map(recipe.path_of, names)):
        if (Path(path) / MANIFEST).is_file():
            manifest = read_artifact(path, kind="checkpoint")
            parents.append(parent_of(path, relative_to=out, manifest=manifest))
    graders, toolkits = all_graders(), toolkits_for(recipe.prompts, recipe.settings)
    made = build_prompts(
        recipe.prompts,
        recipe.settings,
        seed=recipe.seed,
        graders=graders,
        toolkits=toolkits,
        base_dir=BASE,
    )
    units = units_of(names[0], made.prompts, recipe.n_of)
    if limit is not None:
        units = [replace(unit, prompts=unit.prompts[:limit]) for unit in units]
    renderers = {name: renderer_of(recipe.backend_of(name), recipe.path_of(name)) for name in names}
    return Plan(made, units, toolkits, graders, renderers, inputs, parents)


def show_plan(console: Console, recipe: EvalConfig, plan: Plan) -> None:
    """Counts, and the first prompt of each task and setting as each checkpoint is asked it."""
    for books_of, books in plan.made.books.items():
        dropped = ", ".join(f"{reason} {n:,}" for reason, n in sorted(books.dropped.items()))
        console.print(f"{books_of}: {books.rows_in:,} rows, {books.kept:,} asked; {dropped}")
    names = ", ".join(recipe.checkpoints)
    for unit in plan.units:
        console.print(f"{unit.name}: {len(unit.prompts):,} prompts × {unit.samples} × ({names})")
    shown: dict[str, str] = {}
    for unit in plan.units:
        first = unit.prompts[0]
        for name, renderer in plan.renderers.items():
            row = {k: prompt_to_row(first)[k] for k in ("messages", "tools", "thinking")}
            text = json_text(row) if renderer is None else renderer.text(first)
            if shown.get(unit.name) == text:
                continue  # asked as another checkpoint is
            shown[unit.name] = text
            console.print(f"\nfirst prompt of {unit.name} for {name}:", highlight=False)
            console.print(escape(text), highlight=False, soft_wrap=True)


def digests(renderer: PromptRenderer | None) -> dict[str, str] | None:
    """What a checkpoint's prompts look like to it; None where a server renders them."""
    if renderer is None:
        return None
    return {
        "template": renderer.template.digest,
        "tokenizer": encoder_of(renderer.tokenizer).digest,
    }


def make(recipe: EvalConfig, plan: Plan, console: Console) -> None:
    """Every record that is not there yet."""
    # only here: the rest does without inspect, whose import takes seconds
    from posttrain.evaluation.make import make_records

    limits = recipe.sampling.limits()
    how = How(limits, recipe.seed, plan.opened, grade_with(plan.graders))
    total = len(recipe.checkpoints) * sum(unit.size for unit in plan.units)
    with ProgressBar(total=total, console=console) as meter:
        asyncio.run(
            make_records(
                recipe,
                plan.units,
                how,
                opened=lambda backend, path: opened_sampler(backend, checkpoint=path),
                meter=meter,
            )
        )


def finish(stage: StageDir, recipe: EvalConfig, plan: Plan, console: Console) -> None:
    """Figures from the records, the books, and the manifest that makes it an artifact."""
    names, out = list(recipe.checkpoints), stage.path
    records = {
        name: [r for unit in plan.units for r in read_records(record_path(out, name, unit.name))]
        for name in names
    }
    asked = sum(len(unit.prompts) for unit in plan.units)
    made = len(plan.made.prompts)
    metrics = finish_run(
        stage,
        records,
        lock=read_lock(out / LOCK),
        counts=Counts(made, asked, {"limit": made - asked} if made > asked else {}),
        parents=plan.parents,
        seed=recipe.seed,
        stats={
            "sources": {
                name: {
                    "rows_in": books.rows_in,
                    "kept": books.kept,
                    "dropped": dict(sorted(books.dropped.items())),
                }
                for name, books in plan.made.books.items()
            },
            "inputs": as_stats(plan.inputs),
        },
    )
    shutil.rmtree(out / WORK, ignore_errors=True)
    print_cells(console, metrics["cells"])
    print_pairs(console, metrics["pairs"])
    console.print(f"{write_report(out)}", highlight=False)


def rescore_run(arguments: list[str], console: Console) -> None:
    """Grade a run's records again; `out=DIR` keeps the result as a run of its own."""
    parser = argparse.ArgumentParser(description="Grade the records of a run again.")
    parser.add_argument("run", type=Path, help="a finished evaluation")
    parser.add_argument("out", nargs="?", help="out=DIR; without it nothing is written")
    options = parser.parse_intermixed_args(arguments)
    if options.out is not None and not options.out.startswith("out="):
        raise ConfigError(f"rescore takes out=DIR, found {options.out!r}")
    manifest, before = read_run(options.run)
    after = rescore(before, grade_with(all_graders()))
    for name, records in before.items():
        scores, calls = changes(records, after[name])
        console.print(
            f"{name}: {len(records):,} records, {scores:,} scores and {calls:,} verdicts changed",
            highlight=False,
        )
    print_cells(console, metrics_of(after, seed=manifest.seed)["cells"])
    if options.out is not None:
        out = Path(options.out.removeprefix("out="))
        with claimed(out, kind=KIND, config=rescored_config(manifest)) as stage:
            if not stage.complete:
                keep_rescored(stage, options.run, manifest, after)
            console.print(f"{write_report(out)}", highlight=False)


def compare(arguments: list[str], console: Console) -> None:
    """Two checkpoints of two runs (or of one), question by question."""
    parser = argparse.ArgumentParser(description="Compare two runs on the same prompts.")
    parser.add_argument("a", help="RUN, or RUN:NAME of one of its checkpoints")
    parser.add_argument("b", help="RUN, or RUN:NAME")
    parser.add_argument("--despite", action="append", default=[], choices=COMPARED,
                        help="compare although this part of the locks differs")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_intermixed_args(arguments)
    a, b = side_of(options.a), side_of(options.b)
    rows = compare_runs(a, b, despite=options.despite)
    console.print(f"a: {a.run} {a.checkpoint}\nb: {b.run} {b.checkpoint}", highlight=False)
    print_pairs(console, rows)
    if options.json is not None:
        atomic_write_json(options.json, {"a": options.a, "b": options.b, "pairs": rows})


def grade_with(graders: Mapping[str, Grader]) -> Grade:
    """Graders as evaluation takes them."""
    return lambda name, attempts: graders[name].grade([Attempt(*attempt) for attempt in attempts])


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
