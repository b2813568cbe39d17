"""Build SFT data: chat rows of any dialect → reasoning-controlled, masked, packed shards.

posttrain build_sft --config tiny/build_sft out=runs/tiny/sft_data
posttrain build_sft --config tiny/build_sft out=runs/x seed=2 --dry-run
"""

import os
from pathlib import Path

from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_template, refuse_out_of_reach
from posttrain.runs import Run


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Build SFT data from chat rows.")
    recipe, options = parse_recipe(parser, BuildSftConfig, argv)
    # a worker is one thread: what it computes with must not start more
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    from data_builders.rows.read import refuse_unreadable

    for source in recipe.sources:
        refuse_unreadable(source, Path())
    tokenizer, key = recipe.tokenizer, "tokenizer.chat_template"
    refuse_out_of_reach(tokenizer.path, key="tokenizer.path")
    refuse_missing_template(tokenizer.path, tokenizer.chat_template, key=key)

    from data_builders.sft.build import KIND, build, build_config, set_up, show_plan
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage

    console = open_console()
    setup = set_up(recipe, Path(), console, dry_run=options.dry_run)

    def make_or_check(run: Run) -> None:
        build(setup, run, console)

    run_data_stage(
        console,
        recipe.out,
        kind=KIND,
        config=build_config(recipe),
        recipe=recipe,
        dry_run=options.dry_run,
        plan=lambda: show_plan(setup, console),
        make=make_or_check,
        check=make_or_check,
        scratch="work",
    )


if __name__ == "__main__":
    run_command(main)
