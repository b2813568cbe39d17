"""Profile prompts: n rollouts of each with a checkpoint, verified, and the share that passes.

    posttrain profile_prompts --config tiny/profile
    posttrain profile_prompts --config tiny/profile out=runs/x n=4 --dry-run
    posttrain profile_prompts --config tiny/profile_second

Killed and started again, the same command samples and verifies only what is missing. Paths in a
recipe are relative to the directory this is run in.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.profile import ProfileConfig
from posttrain.runs import Counts, Run, atomic_write_text, open_run, parent_of, read_artifact

BASE = Path()  # what paths in a recipe are relative to


def main(arguments: list[str]) -> None:
    parser = recipe_parser("Profile the pass rates of prompts.")
    recipe, options = parse_recipe(parser, ProfileConfig, arguments)
    # imported here: `--help` and a mistake in the recipe are answered without them
    from data_builders.prompts import PromptPlan, refuse_changes

    out, config = Path(recipe.out), recipe.owner_config()
    plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)
    if recipe.previous is not None:
        config["previous"] = read_artifact(recipe.previous, kind="pass_rates", verify=False).digest

    from rich.console import Console

    from data_builders.prompts.profile import (
        FILE,
        KIND,
        rate_lines,
        rate_stats,
        read_profile,
        sample_and_verify,
        uncontaminated,
    )
    from data_builders.sft.inputs import as_stats, evaluation_files, load_decontaminator
    from posttrain.models.chat_template import renderer_of
    from posttrain.report import show_finished, show_up_to_date
    from posttrain.report.console import print_sections
    from posttrain.report.pages.samples import planned, prompts_by_source
    from posttrain.sampling.open import checkpoint_parents
    from posttrain.sampling.sample import finish

    console = Console(width=None if sys.stdout.isatty() else 140)
    parents = plan.parents + checkpoint_parents([recipe.checkpoint], out=out)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)  # refuses a missing one
    before, prompt_stats = {}, {}
    if recipe.previous is not None:
        profile = read_profile(recipe.previous)
        parents.append(parent_of(recipe.previous, relative_to=out, manifest=profile.manifest))
        before = {rate.prompt_id: rate for rate in profile.rates}
        prompts = profile.kept()
    else:
        built = plan.build()
        prompts, prompt_stats = built.prompts, built.stats()
    evaluation = evaluation_files(recipe.decontamination, BASE)
    inputs, profiled = [*plan.inputs, *evaluation], len(prompts)
    prompts = uncontaminated(prompts, load_decontaminator(recipe.decontamination, BASE, evaluation))
    contaminated = profiled - len(prompts)

    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        shown = [prompts_by_source(prompt_stats)] if prompt_stats else []
        if recipe.decontamination is not None:
            console.print(f"{contaminated:,} prompts overlap evaluation items", highlight=False)
        print_sections(console, [*shown, planned(prompts, recipe.n_of, recipe.most_tokens)])
        return

    with open_run(out, kind=KIND, config=config) as stage:
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs, parents)
            show_up_to_date(console, out)
            return
        samples, rates = asyncio.run(sample_and_verify(recipe, prompts, before, console))
        atomic_write_text(out / FILE, rate_lines(rates))
        reasons = [rate.dropped for rate in rates if rate.dropped is not None]
        dropped = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
        if contaminated:
            dropped["contaminated"] = contaminated
        finish(
            stage,
            recipe,
            samples,
            prompts=prompts,
            counts=Counts(profiled, len(rates) - len(reasons), dropped),
            parents=parents,
            renderer=renderer,
            prompt_stats={
                **prompt_stats,
                "inputs": as_stats(inputs),
                "n": recipe.n,
                "rates": rate_stats(rates, n=recipe.n),
            },
            files={FILE: len(rates)},
        )
        show_finished(console, out)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
