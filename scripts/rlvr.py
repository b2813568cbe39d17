"""Train a policy by RLVR: verified rollouts over many environments at once.

posttrain rlvr --config tiny/rlvr
posttrain launch --config_file accelerate/ddp rlvr --config tiny/rlvr
"""

from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.rlvr import RlvrConfig
from posttrain.runs import MANIFEST, parent_of, read_artifact


def main(argv: list[str] | None = None) -> None:
    recipe, options = parse_recipe(recipe_parser("Train a policy by RLVR."), RlvrConfig, argv)
    read_artifact(recipe.pass_rates, kind="pass_rates", verify=False)  # before anything is loaded

    from data_builders.prompts.profile import read_profile
    from data_builders.registry import Environments, open_label_judge
    from posttrain.pages.write import TrainingPage
    from posttrain.training.output import RESUME
    from posttrain.training.rl.draws import PromptDraws
    from posttrain.training.rl.stage import GroupStage, grpo_arguments, reward_loop
    from reward.rlvr import Domain, RoutedReward

    out = Path(recipe.out)
    sources_of = {name: recipe.sources_of(name) for name in recipe.domains}
    args = grpo_arguments(recipe, out=out / RESUME)
    profile = read_profile(recipe.pass_rates)
    profiled = [p.digest for p in profile.manifest.parents if p.kind == "checkpoint"]
    policy = Path(recipe.model.path or "")
    known = profiled and (policy / MANIFEST).is_file()
    if known and read_artifact(policy, verify=False).digest not in profiled:
        print(f"warning: {recipe.pass_rates} is the profile of another checkpoint than {policy}")
    pools = profile.pools(sources_of)
    steps = args.max_steps // recipe.loss.num_iterations
    curriculum = PromptDraws(recipe, pools, n=profile.n, steps=steps)
    used = {name for domain in pools.values() for name in domain}
    prompts = [prompt for prompt in profile.kept() if prompt.id in used]
    # the judge's connections live in this loop from the first step to the last
    with reward_loop() as (runner, stack):
        environments = Environments(runner.run(open_label_judge(recipe.judge, stack)))
        for prompt in prompts:
            environments.verifier(prompt)  # each names one
        reward = RoutedReward(
            environments.verifier,
            domains={
                name: Domain(sources_of[name], domain.max_failure_rate, domain.verifier_seconds)
                for name, domain in recipe.domains.items()
            },
            judge=recipe.judge and recipe.judge.identity(),
        )
        GroupStage(
            recipe,
            prompts=prompts,
            reward=reward,
            open_environment=environments.open,
            runner=runner,
            curriculum=curriculum,
            method="rlvr",
            parents=[parent_of(recipe.pass_rates, relative_to=out, manifest=profile.manifest)],
        ).run(dry_run=options.dry_run, page=TrainingPage(out))


if __name__ == "__main__":
    run_command(main)
