"""Train a judge (GenRM) on judging prompts.

posttrain genrm --config tiny/genrm
posttrain launch --config_file accelerate/ddp genrm --config tiny/genrm
"""

from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.rlhf import GenRmConfig
from posttrain.runs import parent_of, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Train a judge on judging prompts.")
    recipe, options = parse_recipe(parser, GenRmConfig, argv)
    data = read_artifact(recipe.data, kind="genrm_data")

    from posttrain.pages.write import TrainingPage
    from posttrain.sampling.generate import read_prompts
    from posttrain.training.rl.stage import GroupStage
    from reward.judge.verdict import VerdictReward, gold_from

    prompts = read_prompts(Path(recipe.data) / data.stats["files"]["train"])
    for prompt in prompts:
        gold_from(prompt)  # every prompt has a gold verdict
    stage = GroupStage(
        recipe,
        prompts=prompts,
        reward=VerdictReward(),
        method="genrm",
        parents=[parent_of(recipe.data, relative_to=Path(recipe.out), manifest=data)],
        stats={"layout": data.stats["layout"], "principle": data.stats["principle"]},
    )
    stage.run(dry_run=options.dry_run, page=TrainingPage(stage.out))


if __name__ == "__main__":
    run_command(main)
