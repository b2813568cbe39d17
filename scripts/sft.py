"""Train a model on packed shards (SFT).

posttrain sft --config tiny/sft
posttrain launch --config_file accelerate/ddp sft --config tiny/sft
"""

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.sft import SftConfig
from posttrain.runs import read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Train a model on packed shards.")
    recipe, options = parse_recipe(parser, SftConfig, argv)
    read_artifact(recipe.data, kind="sft_data", verify=False)  # before anything heavy is loaded
    refuse_missing_checkpoint(recipe.model.path, key="model.path")

    from posttrain.training.sft.stage import SftStage

    SftStage(recipe).run(dry_run=options.dry_run)


if __name__ == "__main__":
    run_command(main)
