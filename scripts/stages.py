"""Run the stages that one recipe lists, one after the other.

    posttrain stages --config one-gpu/rlvr_stages
    posttrain stages --config one-gpu/rlvr_stages --dry-run

Every stage's recipe is checked before the first begins; a finished stage is skipped. `--dry-run`
makes the dry run of the first unfinished one: the inputs of later ones are not there yet.
"""

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import yaml

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.load import nearest
from posttrain.config.stages import StagesConfig, StageStep
from posttrain.errors import ConfigError, PosttrainError
from posttrain.runs import MANIFEST, STAGE

HERE = Path(__file__).resolve().parent
# the commands that take a recipe
NAMES = sorted(p.stem for p in HERE.glob("*.py") if "recipe_parser(" in p.read_text("utf-8"))
NAMES.remove(Path(__file__).stem)


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Run the stages of a recipe one after the other.")
    recipe, options = parse_recipe(parser, StagesConfig, argv)
    outs = [output_of(step) for step in recipe.stages]
    if twice := sorted({str(out) for out in outs if outs.count(out) > 1}):
        raise ConfigError(f"two stages write to {twice[0]}: give each an out= of its own")
    todo: list[tuple[str, StageStep]] = []
    for number, (step, out) in enumerate(zip(recipe.stages, outs, strict=True), 1):
        title, finished = f"{number}/{len(outs)} {step.stage} {step.recipe}", out / MANIFEST
        state = "goes on" if (out / STAGE).is_file() else "to do"
        state = "finished" if finished.is_file() else state
        print(f"{title} → {out}: {state}", flush=True)
        if not (options.dry_run and finished.is_file()):
            todo.append((title, step))
    for title, step in todo[:1] if options.dry_run else todo:
        print(f"\n{title}", flush=True)
        launch = [] if step.launch is None else ["launch", *step.launch]
        arguments = [*launch, step.stage, "--config", step.recipe, *step.overrides]
        arguments += ["--dry-run"] if options.dry_run else []
        # a finished one, too: it refuses another recipe and changed inputs
        done = subprocess.run([sys.executable, str(HERE), *arguments])  # noqa: S603 - ours; no shell
        if done.returncode:
            raise PosttrainError(
                f"stage {title} stopped with code {done.returncode}; the same command goes on there"
            )


def output_of(step: StageStep) -> Path:
    """The directory that a stage writes to, from its checked recipe; ConfigError as the stage's."""
    if step.stage not in NAMES:
        raise ConfigError(f"there is no stage {step.stage!r}{nearest(step.stage, NAMES)}")
    stage, printed = runpy.run_path(str(HERE / f"{step.stage}.py")), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            stage["main"](["--config", step.recipe, *step.overrides, "--print-config"])
    except ConfigError as error:
        raise ConfigError(f"{step.stage} {step.recipe}: {error}") from error
    except SystemExit as end:
        if end.code:  # argparse has said why
            given = " ".join(step.overrides)
            raise ConfigError(f"{step.stage} {step.recipe} does not take {given}") from None
    out = (yaml.safe_load(printed.getvalue()) or {}).get("out")
    if out is None:
        raise ConfigError(f"{step.stage} {step.recipe} names no out")
    return Path(out)


if __name__ == "__main__":
    run_command(main)
