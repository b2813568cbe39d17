"""Build the prompts on which a judge is trained and measured, from preference data.

    posttrain build_genrm --config tiny/build_genrm
    posttrain build_genrm --config nemotron-3-nano/build_genrm --dry-run

Killed and started again, the same command ends with the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.runs import Run

KIND, BASE = "genrm_data", Path(".")


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build judging prompts from preference data."), BuildGenRmConfig, arguments
    )
    from rich.console import Console

    from data_builders.judging.build import build
    from data_builders.judging.prompts import token_counter
    from data_builders.prompts.build import prompt_inputs, refuse_changes
    from posttrain.report import run_stage
    from posttrain.report.console import print_sections
    from posttrain.report.pages.judging import judging_prompts, pairs_by_source
    from posttrain.runs import read_artifact

    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)
    config = recipe.model_dump(mode="json", exclude={"out"})

    # -- what the prompts are made from
    inputs, parents = prompt_inputs(recipe.sources, BASE, out=out)
    count = None if recipe.tokenizer is None else token_counter(recipe.tokenizer)
    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        stats = build(recipe, None, base_dir=BASE, count=count).stats(inputs)
        sections = [judging_prompts(stats), pairs_by_source(stats["sources"])]
        print_sections(console, sections, charts=False)
        return

    def make(run: Run) -> None:
        # -- rows → pairs → judging prompts in both orders, questions held out
        with console.status("reading") as line:
            built = build(
                recipe,
                out,
                base_dir=BASE,
                count=count,
                on_progress=lambda name, n: line.update(f"{name}: {n:,} pairs"),
            )

        # -- the manifest that makes it an artifact
        run.finish(
            counts=built.counts(),
            files={**built.files},
            parents=parents,
            seed=recipe.seed,
            stats=built.stats(inputs),
        )

    def check() -> None:
        refuse_changes(read_artifact(out, verify=False), inputs, parents)

    run_stage(console, out, kind=KIND, config=config, make=make, check=check)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
