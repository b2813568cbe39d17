"""Sample a model: prompts × settings × n completions, with tools run where they are declared.

posttrain sample --config tiny/sample
posttrain sample --config tiny/sample out=runs/x n=4 --dry-run
"""

import asyncio
import shutil
from pathlib import Path

from posttrain.config.backend import is_served
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.sample import SampleConfig
from posttrain.jsontext import printable
from posttrain.runs import Run, read_artifact

KIND = "samples"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Sample completions of prompts.")
    recipe, options = parse_recipe(parser, SampleConfig, argv)
    served = is_served(recipe.backend)
    refuse_missing_checkpoint(recipe.checkpoint, key="checkpoint", is_served=served)
    recipe, choice = recipe.with_choice()

    from data_builders.prompts.build import PromptPlan, refuse_changes

    out = Path(recipe.out)
    # the names of graders and tools, and the files, before torch is loaded
    prompt_plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)

    from data_builders.pairs.grading import unformatted_by_setting
    from data_builders.rows.inputs import as_stats
    from posttrain.pages.samples import planned, prompts_by_source
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.sampling.alerts import alert_texts
    from posttrain.sampling.generate import finish, make_samples, time_line
    from posttrain.sampling.open import check_context, checkpoint_parents
    from posttrain.tokens.renderer import message_text, renderer_of

    console = open_console()
    console.print(choice)
    parents = prompt_plan.parents + checkpoint_parents([recipe.checkpoint], out=out)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)

    def plan() -> None:
        built = prompt_plan.build()
        cut_line = check_context(
            recipe.backend,
            recipe.checkpoint,
            built.prompts,
            renderer,
            max_tokens=recipe.sampling.max_tokens,
        )
        by_setting = planned(built.prompts, recipe.n_of, recipe.most_tokens)
        print_sections(console, [prompts_by_source(built.stats()), by_setting])
        if built.prompts:
            console.print(asyncio.run(time_line(recipe, built.prompts)), soft_wrap=True)
        if cut_line is not None:
            console.print(cut_line, soft_wrap=True)
        first_prompts = {prompt.setting: prompt for prompt in reversed(built.prompts)}
        for name, prompt in reversed(first_prompts.items()):
            text = message_text(prompt) if renderer is None else renderer.text(prompt)
            console.print(f"\nfirst prompt of {name} ({prompt.id}):")
            console.print(printable(text), soft_wrap=True)

    def make(run: Run) -> None:
        built = prompt_plan.build()
        sampling = make_samples(recipe, built.prompts, prompt_plan.open_environment, console)
        samples = asyncio.run(sampling)
        alerts = samples.alerts(unformatted_by_setting(out))
        finish(
            run,
            recipe,
            samples,
            prompts=built.prompts,
            counts=built.counts(),
            parents=parents,
            renderer=renderer,
            prompt_stats={**built.stats(), "inputs": as_stats(prompt_plan.inputs)},
            alerts=alerts,
        )
        for line in [*alert_texts(alerts), *samples.lines()]:
            console.print(line)

    def check(_: Run) -> None:
        refuse_changes(read_artifact(out, verify=False), prompt_plan.inputs, parents)
        shutil.rmtree(out / "work", ignore_errors=True)

    run_data_stage(
        console,
        out,
        kind=KIND,
        config=recipe.owner_config(),
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
    )


if __name__ == "__main__":
    run_command(main)
