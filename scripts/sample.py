"""Sample a model: prompts × settings × n completions, with tools run where they are declared.

    python scripts/sample.py --config recipes/tiny/sample.yaml
    python scripts/sample.py --config recipes/tiny/sample.yaml out=runs/x n=4 --dry-run

Paths in a recipe are relative to the directory this is run in. Killed and started again, the same
command ends with exactly every sample; in process, with the same bytes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.sample import SampleConfig
from posttrain.runs import open_run


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Sample completions of prompts."), SampleConfig, arguments
    )
    # imported here: `--help` and a mistake in the recipe are answered without them
    from rich.console import Console

    from data_builders.graders import all_graders
    from data_builders.prompts import (
        build_prompts,
        print_prompts,
        prompt_inputs,
        refuse_changes,
    )
    from data_builders.sft.inputs import as_stats
    from data_builders.toolkits import opener, toolkits_for
    from posttrain.models.chat_template import message_text, renderer_of
    from posttrain.report import ensure_report, write_report
    from posttrain.runs import Run, read_artifact
    from posttrain.sampling.sample import checkpoint_parents, finish, make_samples

    console = Console(width=None if sys.stdout.isatty() else 140)
    out, config = Path(recipe.out), recipe.owner_config()
    inputs, parents = prompt_inputs(recipe.prompts, Path(), out=out)
    parents += checkpoint_parents(recipe.checkpoint, out)
    renderer = renderer_of(recipe.backend, recipe.checkpoint)
    toolkits = toolkits_for(recipe.prompts, recipe.settings)

    def build():  # all prompts, their gold answers accepted by their graders
        return build_prompts(
            recipe.prompts,
            recipe.settings,
            seed=recipe.seed,
            graders=all_graders(),
            toolkits=toolkits,
            base_dir=Path(),
        )

    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            Run.open(out, kind="samples", config=config, dry_run=True)
        print_prompts(
            console,
            build(),
            recipe.settings,
            samples=recipe.n_of,
            most_tokens=recipe.most_tokens,
            render=message_text if renderer is None else renderer.text,
        )
        return

    with open_run(out, kind="samples", config=config) as stage:
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs, parents)
            shutil.rmtree(out / "work", ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return
        made = build()
        samples = asyncio.run(make_samples(recipe, made.prompts, opener(toolkits), console))
        manifest = finish(
            stage,
            recipe,
            samples,
            prompts=made.prompts,
            counts=made.counts(),
            parents=parents,
            renderer=renderer,
            prompt_stats={
                "sources": made.source_stats(),
                "not_asked": {n: dict(sorted(c.items())) for n, c in made.skipped.items()},
                "inputs": as_stats(inputs),
            },
        )
        for line in samples.lines():
            console.print(line, highlight=False)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
