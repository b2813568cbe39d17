"""Generate the tiny world: training rows, held-out prompts and a tokenizer.

posttrain tiny_world --config tiny/world [key=value …] [--dry-run]
"""

from functools import partial

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.tiny_world import TinyWorldConfig

KIND = "tiny_world"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Write the tiny world.")
    config, options = parse_recipe(parser, TinyWorldConfig, argv)

    from data_builders.tiny_world.write import check_families, write_world
    from posttrain.chat.template import nemotron_3_nano_template
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage

    check_families(config)
    print(f"tiny world → {config.out} (seed {config.seed}, held-out seed {config.heldout_seed})")
    for name, rows in config.families.items():
        held = "held out of training" if rows.train == 0 else f"{rows.train:,} training rows"
        print(f"  {name:<10} {held}, {rows.heldout:,} held-out prompts")
    run_data_stage(
        open_console(),
        config.out,
        kind=KIND,
        config=config.owner_config(),
        recipe=config,
        dry_run=options.dry_run,
        make=partial(write_world, config=config, template=nemotron_3_nano_template()),
    )


if __name__ == "__main__":
    run_command(main)
