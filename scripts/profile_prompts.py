"""Profile prompts: n rollouts of each with a checkpoint, verified, and the share that passes.

posttrain profile_prompts --config tiny/profile
posttrain profile_prompts --config tiny/profile out=runs/x n=4 --dry-run
posttrain profile_prompts --config tiny/profile_second
"""

import asyncio
from pathlib import Path

from posttrain.config.backend import is_served
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.sample import ProfileConfig
from posttrain.runs import Run, atomic_write_text, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Profile the pass rates of prompts.")
    recipe, options = parse_recipe(parser, ProfileConfig, argv)
    served = is_served(recipe.backend)
    refuse_missing_checkpoint(recipe.checkpoint, key="checkpoint", is_served=served)
    recipe, choice = recipe.with_choice()

    from data_builders.prompts.build import PromptPlan, refuse_changes

    out = Path(recipe.out)
    config = recipe.owner_config()
    # the names of graders and tools, and the files, before torch is loaded
    prompt_plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)
    if recipe.previous is not None:
        config["previous"] = read_artifact(recipe.previous, kind="pass_rates", verify=False).digest

    from data_builders.pairs.grading import unformatted_by_setting
    from data_builders.prompts import profile
    from data_builders.rows.inputs import as_stats
    from posttrain.pages.samples import planned, prompts_by_source
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.sampling.generate import finish, time_line
    from posttrain.sampling.open import check_context, checkpoint_parents
    from posttrain.tokens.renderer import renderer_of

    console = open_console()
    console.print(choice)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)
    profiled = profile.prompts_to_profile(recipe, prompt_plan, renderer, base_dir=Path(), out=out)
    checkpoints = checkpoint_parents([recipe.checkpoint], out=out)
    parents = [*prompt_plan.parents, *checkpoints, *profiled.parents]

    def plan() -> None:
        cut_line = check_context(
            recipe.backend,
            recipe.checkpoint,
            profiled.prompts,
            renderer,
            max_tokens=recipe.sampling.max_tokens,
        )
        sections = [planned(profiled.prompts, recipe.n_of, recipe.most_tokens)]
        if profiled.stats:
            sections.insert(0, prompts_by_source(profiled.stats))
        if recipe.decontamination is not None:
            console.print(f"{profiled.contaminated:,} prompts overlap evaluation items")
        if profiled.room is not None:
            console.print(f"prompts {profiled.room}")
        print_sections(console, sections)
        console.print(asyncio.run(time_line(recipe, profiled.prompts)), soft_wrap=True)
        if cut_line is not None:
            console.print(cut_line, soft_wrap=True)

    def make(run: Run) -> None:
        making = profile.sample_and_verify(recipe, profiled.prompts, profiled.before, console)
        samples, rates = asyncio.run(making)
        atomic_write_text(out / profile.FILE, profile.rate_lines(rates))
        alerts = samples.alerts(unformatted_by_setting(out))
        finish(
            run,
            recipe,
            samples,
            prompts=profiled.prompts,
            counts=profiled.counts(rates),
            parents=parents,
            renderer=renderer,
            prompt_stats={
                **profiled.stats,
                "inputs": as_stats(profiled.inputs),
                "n": recipe.n,
                "rates": profile.rate_stats(rates, n=recipe.n),
            },
            alerts=alerts,
            files={profile.FILE: len(rates)},
        )

    def check(_: Run) -> None:
        refuse_changes(read_artifact(out, verify=False), profiled.inputs, parents)

    run_data_stage(
        console,
        out,
        kind=profile.KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
    )


if __name__ == "__main__":
    run_command(main)
