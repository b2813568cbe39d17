"""Profile prompts: n rollouts of each with a checkpoint, verified, and the share that passes.

posttrain profile_prompts --config tiny/profile
posttrain profile_prompts --config tiny/profile out=runs/x n=4 --dry-run
posttrain profile_prompts --config tiny/profile_second
"""

import asyncio
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.sample import ProfileConfig
from posttrain.runs import Run, atomic_write_text, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Profile the pass rates of prompts.")
    recipe, options = parse_recipe(parser, ProfileConfig, argv)
    refuse_missing_checkpoint(recipe.checkpoint, key="checkpoint")
    recipe, choice = recipe.with_choice()

    from data_builders.prompts.build import PromptPlan, refuse_changes

    out, config, n = Path(recipe.out), recipe.owner_config(), recipe.n
    plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)
    if recipe.previous is not None:
        config["previous"] = read_artifact(recipe.previous, kind="pass_rates", verify=False).digest

    from data_builders.pairs.grading import unformatted_by_setting
    from data_builders.prompts import profile
    from data_builders.sft.inputs import as_stats
    from posttrain.pages.samples import planned, prompts_by_source
    from posttrain.pages.write import run_stage
    from posttrain.report.console import open_console, print_sections
    from posttrain.sampling.generate import finish, time_line
    from posttrain.sampling.open import checkpoint_parents, refuse_prompts_beyond_context
    from posttrain.tokens.renderer import renderer_of

    console = open_console()
    console.print(choice)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)
    given = profile.prompts_to_profile(recipe, plan, renderer, base_dir=Path(), out=out)
    checkpoints = checkpoint_parents([recipe.checkpoint], out=out)
    parents = [*plan.parents, *checkpoints, *given.parents]

    if options.dry_run:
        Run.open(out, kind=profile.KIND, config=config, dry_run=True)
        most = recipe.sampling.max_tokens
        refuse_prompts_beyond_context(recipe.backend, given.prompts, renderer, max_tokens=most)
        shown = [prompts_by_source(given.stats)] if given.stats else []
        if recipe.decontamination is not None:
            console.print(f"{given.contaminated:,} prompts overlap evaluation items")
        if given.room is not None:
            console.print(f"prompts {given.room}")
        print_sections(console, [*shown, planned(given.prompts, recipe.n_of, recipe.most_tokens)])
        console.print(asyncio.run(time_line(recipe, given.prompts)), soft_wrap=True)
        return

    def make(run: Run) -> None:
        making = profile.sample_and_verify(recipe, given.prompts, given.before, console)
        samples, rates = asyncio.run(making)
        atomic_write_text(out / profile.FILE, profile.rate_lines(rates))
        alerts = samples.alerts(unformatted_by_setting(out))
        finish(
            run,
            recipe,
            samples,
            prompts=given.prompts,
            counts=given.counts(rates),
            parents=parents,
            renderer=renderer,
            prompt_stats=given.stats
            | {"inputs": as_stats(given.inputs), "n": n, "rates": profile.rate_stats(rates, n=n)},
            alerts=alerts,
            files={profile.FILE: len(rates)},
        )

    def check() -> None:
        refuse_changes(read_artifact(out, verify=False), given.inputs, parents)

    run_stage(console, out, kind=profile.KIND, config=config, make=make, check=check)


if __name__ == "__main__":
    run_command(main)
