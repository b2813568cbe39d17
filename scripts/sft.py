"""Train a model on packed shards (SFT).

posttrain sft --config tiny/sft
posttrain sft --model HuggingFaceTB/SmolLM2-135M-Instruct --data rows.jsonl --output runs/mine
posttrain launch --config_file accelerate/ddp sft --config tiny/sft

With `--model` and `--data` the recipes of build_sft and sft are written into the output directory
and run: those for a CPU, or for one GPU where there is one. They are yours to keep and to edit.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command, unknown_option
from posttrain.config.paths import refuse_partial_checkpoint
from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError
from posttrain.runs import read_artifact

HERE = Path(__file__).resolve().parent


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Train a model on packed shards, or on rows by name.")
    names = parser.add_argument_group("without a recipe")
    names.add_argument("--model", metavar="M", help="a directory or hub id to train")
    names.add_argument("--data", metavar="D", help="rows: a file, directory, glob or hub id")
    names.add_argument("--output", metavar="DIR", help="default: runs/M-D")
    arguments = sys.argv[1:] if argv is None else argv
    if _is_by_name(arguments):
        _train_by_name(parser, arguments)
        return
    recipe, options = parse_recipe(parser, SftConfig, argv)
    read_artifact(recipe.data, kind="sft_data", verify=False)  # before anything heavy is loaded
    refuse_partial_checkpoint(recipe.model.path, key="model.path")

    from posttrain.pages.write import TrainingPage
    from posttrain.training.sft.stage import SftStage

    stage = SftStage(recipe)
    stage.run(dry_run=options.dry_run, page=TrainingPage(stage.out))


def _is_by_name(arguments: list[str]) -> bool:
    if {"-h", "--help"} & {*arguments}:
        return False
    return any(word.partition("=")[0] in ("--model", "--data", "--output") for word in arguments)


def _train_by_name(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Raises ConfigError: half of the names, a recipe beside them, or several processes."""
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise unknown_option(parser, SftConfig, unknown[0], arguments)
    if options.config is not None or options.model is None or options.data is None:
        raise ConfigError("give --model and --data together, or a recipe with --config")
    if options.print_config:
        raise ConfigError("--print-config needs --config: with --dry-run the recipes are printed")
    if "LOCAL_RANK" in os.environ:
        raise ConfigError(
            "--model and --data take one process: let them write the recipes, then use posttrain "
            "launch … sft --config DIR/sft.yaml"
        )

    from posttrain.one_line import OneLine, default_output

    out = options.output or default_output(options.model, options.data)
    OneLine(
        model=options.model,
        data=options.data,
        out=Path(out),
        overrides=options.overrides,
        scripts=HERE,
        show=partial(print, flush=True),
    ).run(dry_run=options.dry_run)


if __name__ == "__main__":
    run_command(main)
