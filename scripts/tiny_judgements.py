"""Generate the tiny world's judgements: pairs of answers with gold scores, to train a judge on.

posttrain tiny_judgements --config tiny/judgements [key=value …] [--dry-run]
"""

from functools import partial
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.tiny_world import TinyJudgementsConfig

KIND = "tiny_judgements"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Write the tiny judgements.")
    config, options = parse_recipe(parser, TinyJudgementsConfig, argv)

    from data_builders.tiny_world.judgements import write_judgements
    from posttrain.pages.write import run_stage
    from posttrain.report.console import open_console
    from posttrain.runs import Run

    print(f"judgements → {config.out} (seed {config.seed}, held-out seed {config.heldout_seed})")
    for name, rows in config.families.items():
        train = f"{rows.warm_up:,} to warm up on, {rows.train:,} to train on"
        print(f"  {name:<8} {train}, {rows.heldout:,} held out")
    if options.dry_run:
        Run.open(config.out, kind=KIND, config=config.owner_config(), dry_run=True)
        return
    make = partial(write_judgements, config=config)
    run_stage(open_console(), Path(config.out), kind=KIND, config=config.owner_config(), make=make)


if __name__ == "__main__":
    run_command(main)
