"""Run a few steps of every stage from nothing: of the tiny chain, or of your own recipes.

    posttrain smoke                            the tiny chain, in runs/smoke (2 minutes of a core)
    posttrain smoke recipes/ci                 the recipes of a folder, at a few steps each
    posttrain smoke recipes/ci sample.n=8      with a key of one stage set otherwise
    posttrain smoke recipes/ci --as-written    at the size and in the directories that they name

Recipes are named after their stages, such as sft.yaml or eval_after.yaml, and run behind those
whose output they read; a folder may have a chain.yaml instead, with a size `smoke`. What was in
runs/smoke is removed first. Building data is not cut: name a small file there. Where a stage stops,
its last lines are shown, what does not need it goes on, and the exit code is 1. At the end stands
the page of the whole chain, as of quickstart.
"""

import argparse
import os
import shutil
from functools import partial
from pathlib import Path

from posttrain.chain import read_chain, resolve_chain, run_chain
from posttrain.config.command import run_command
from posttrain.config.load import validate
from posttrain.config.stages import StagesConfig, StageStep
from posttrain.errors import ConfigError
from posttrain.few_steps import write_few_steps

HERE = Path(__file__).resolve().parent
RUNS = Path("runs/smoke")
SIZE = "smoke"
TINY = "tiny"
# the tiny chain's own targets leave out verified rewards
TINY_TARGETS = ("win_rate", "eval_genrm", "eval", "eval_rlvr")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Run a few steps of every stage, from nothing.", allow_abbrev=False
    )
    parser.add_argument("recipes", nargs="?", metavar="DIR", help="default: the tiny chain's")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time (default 2)")
    parser.add_argument("--seed", type=int, help="of what trains and samples in a chain.yaml")
    parser.add_argument(
        "--as-written", action="store_true", help="run a folder's recipes as they are, for good"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="STAGE.key=value", help="keys of one of the recipes"
    )
    options = parser.parse_args(argv)
    folder = options.recipes
    overrides = options.overrides
    if folder is not None and "=" in folder:
        overrides = [folder, *overrides]
        folder = None
    show = partial(print, flush=True)
    raw = read_chain(folder or TINY, HERE, show=show)
    raw |= {"jobs": options.jobs, "seed": options.seed, "logs": "logs"}
    if folder is None:
        raw["targets"] = [*TINY_TARGETS]
    config = validate(raw, StagesConfig, where=folder or TINY)
    sized = SIZE in config.sizes and not options.as_written
    logs = "runs/logs" if options.as_written else config.logs
    config = config.model_copy(update={"size": SIZE if sized else None, "logs": logs})
    config = _with_overrides(config, overrides)
    stages = resolve_chain(config, HERE)
    root = Path()
    if not options.as_written:
        shutil.rmtree(RUNS, ignore_errors=True)
        if sized:
            root = RUNS
        else:
            steps = write_few_steps(stages, RUNS)
            few = {"stages": tuple(steps), "targets": None, "logs": f"{RUNS}/logs"}
            config = _with_overrides(config.model_copy(update=few), overrides)
            stages = resolve_chain(config, HERE)
    root.mkdir(parents=True, exist_ok=True)
    show(f"{len(stages)} stages, {config.jobs} at a time; each prints to {root / str(config.logs)}")
    aim = "resume" if options.as_written else "begin anew"
    advice = f"Rerun the same command to {aim}."
    run_chain(stages, config, scripts=HERE, root=root, show=show, advice=advice)
    show(f"{len(stages)} stages ran: {', '.join(stage.step.title for stage in stages)}")
    outs = [root / stage.out for stage in stages]
    together = Path(os.path.commonpath(outs))
    # the page of a single stage is enough
    if together not in outs:
        from posttrain.pages.chain import show_chain
        from posttrain.report.console import open_console

        show_chain(open_console(), outs, out=together / "report.html")


def _with_overrides(config: StagesConfig, overrides: list[str]) -> StagesConfig:
    """The chain with `STAGE.key=value` as overrides of its steps.

    Raises:
        ConfigError: the first word is no stage of the chain.
    """
    names = [step.title for step in config.stages]
    by_stage: dict[str, list[str]] = {name: [] for name in names}
    for override in overrides:
        name, _, assignment = override.partition(".")
        if name not in by_stage or "=" not in assignment:
            raise ConfigError(
                f"{override!r} is not STAGE.key=value with a stage of {', '.join(names)}"
            )
        by_stage[name].append(assignment)
    steps: list[StageStep] = []
    for step in config.stages:
        combined = (*step.overrides, *by_stage[step.title])
        steps.append(step.model_copy(update={"overrides": combined}))
    return config.model_copy(update={"stages": tuple(steps)})


if __name__ == "__main__":
    run_command(main)
