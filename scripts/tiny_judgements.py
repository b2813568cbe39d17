"""Generate the tiny world's judgements: pairs of answers with gold scores, to train a judge on.

posttrain tiny_judgements --config tiny/judgements [key=value …] [--dry-run]
"""

from functools import partial

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.tiny_world import TinyJudgementsConfig

KIND = "tiny_judgements"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Write the tiny judgements.")
    config, options = parse_recipe(parser, TinyJudgementsConfig, argv)

    from data_builders.tiny_world.judgements import write_judgements
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage

    print(f"judgements → {config.out} (seed {config.seed}, held-out seed {config.heldout_seed})")
    for name, rows in config.families.items():
        train = f"{rows.warm_up:,} to warm up on, {rows.train:,} to train on"
        print(f"  {name:<8} {train}, {rows.heldout:,} held out")
    run_data_stage(
        open_console(),
        config.out,
        kind=KIND,
        config=config.owner_config(),
        recipe=config,
        dry_run=options.dry_run,
        make=partial(write_judgements, config=config),
    )


if __name__ == "__main__":
    run_command(main)
