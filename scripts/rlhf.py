"""Train a policy by RLHF: rollouts judged in pairs, with length control.

posttrain rlhf --config tiny/rlhf
posttrain launch --config_file accelerate/ddp rlhf --config tiny/rlhf
"""

from pathlib import Path
from typing import Any

from posttrain.config.backend import Server
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.rlhf import RlhfConfig


def main(argv: list[str] | None = None) -> None:
    recipe, options = parse_recipe(recipe_parser("Train a policy by RLHF."), RlhfConfig, argv)

    from data_builders.prompts.build import PromptPlan

    out = Path(recipe.out)
    # the names of graders and tools, and the files, before torch is loaded
    plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)

    from posttrain.pages.write import TrainingPage
    from posttrain.sampling.engines.http import wait_for_servers
    from posttrain.training.output import RESUME
    from posttrain.training.rl.stage import GroupStage, grpo_arguments, reward_loop
    from reward.judge.judge import GenRmJudge, judge_parents, open_judges
    from reward.judge.votes import VerdictCache
    from reward.rlhf import JudgedReward

    parents = plan.parents + judge_parents(recipe.judge.models, out=out)
    prompts = plan.build()
    # a mistake in trainer: shows before a judge is loaded
    grpo_arguments(recipe, out=out / RESUME)
    # the judge's connections live in this loop from the first step to the last
    with reward_loop() as (runner, stack):
        judges = runner.run(open_judges(recipe.judge.models, stack))

        def judged_reward(cache: VerdictCache | None = None) -> JudgedReward:
            judge = GenRmJudge(judges, recipe.judge, cache=cache, rollout_urls=recipe.rollout_urls)
            blocks: Any = {"pairing": recipe.pairing, "length": recipe.length}
            return JudgedReward(judge, config=recipe.judge, graders=plan.graders, **blocks)

        stage = GroupStage(
            recipe,
            prompts=prompts.prompts,
            reward=judged_reward(),
            open_environment=plan.open_environment,
            runner=runner,
            method="rlhf",
            parents=parents,
            stats=plan.stats(prompts),
        )

        def keep_verdicts(process: int) -> None:
            for number, judge in enumerate(recipe.judge.models):
                if isinstance(judge.backend, Server):
                    key = f"judge.models.{number}.backend"
                    runner.run(wait_for_servers(key, judge.backend))
            # verdicts are kept for a resumed run, or shared with whoever asks the same
            shared = recipe.judge.cache
            folder = shared or out / RESUME / "judgements" / f"process-{process}"
            cache = VerdictCache(Path(folder), any_step=shared is not None)
            stage.reward = judged_reward(stack.enter_context(cache))

        stage.run(
            dry_run=options.dry_run,
            page=TrainingPage(out),
            on_open=keep_verdicts,
            check_inputs=lambda: plan.check_inputs(out, parents),
        )


if __name__ == "__main__":
    run_command(main)
