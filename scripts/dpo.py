"""Train a policy on preference pairs (DPO).

posttrain dpo --config tiny/dpo
posttrain launch --config_file accelerate/ddp dpo --config tiny/dpo
"""

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.dpo import DpoConfig
from posttrain.config.paths import refuse_partial_checkpoint
from posttrain.runs import read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Train a policy on preference pairs.")
    recipe, options = parse_recipe(parser, DpoConfig, argv)
    read_artifact(recipe.data, kind="dpo_data", verify=False)  # before anything heavy is loaded
    refuse_partial_checkpoint(recipe.model.path, key="model.path")

    from posttrain.pages.write import TrainingPage
    from posttrain.training.dpo.stage import DpoStage

    stage = DpoStage(recipe)
    stage.run(dry_run=options.dry_run, page=TrainingPage(stage.out))


if __name__ == "__main__":
    run_command(main)
