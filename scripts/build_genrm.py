"""Build the prompts on which a judge is trained and measured, from preference data.

    python scripts/build_genrm.py --config recipes/tiny/build_genrm.yaml
    python scripts/build_genrm.py --config recipes/nemotron-3-nano/build_genrm.yaml --dry-run

Killed and started again, the same command ends with the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.runs import open_run

BASE = Path(".")


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Build judging prompts from preference data."), BuildGenRmConfig, arguments
    )
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from data_builders.judging.build import build, print_built
    from data_builders.judging.prompts import token_counter
    from data_builders.prompts import prompt_inputs, refuse_changes
    from posttrain.report import ensure_report, write_report
    from posttrain.runs import Run, read_artifact

    console = Console(width=None if sys.stdout.isatty() else 140)
    out = Path(recipe.out)
    config = recipe.model_dump(mode="json", exclude={"out"})

    # -- what the prompts are made from
    inputs, parents = prompt_inputs(recipe.sources, BASE, out=out)
    count = None if recipe.tokenizer is None else token_counter(recipe.tokenizer)
    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            Run.open(out, kind="genrm_data", config=config, dry_run=True)
        print_built(console, build(recipe, None, base_dir=BASE, count=count))
        return

    with open_run(out, kind="genrm_data", config=config) as stage:
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs, parents)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return

        # -- rows → pairs → judging prompts in both orders, questions held out
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("reading")
            built = build(
                recipe,
                out,
                base_dir=BASE,
                count=count,
                on_progress=lambda name, n: bar.update(task, description=f"{name}: {n:,} pairs"),
            )

        # -- the manifest that makes it an artifact
        manifest = stage.finish(
            counts=built.counts(),
            files={**built.files},
            parents=parents,
            seed=recipe.seed,
            stats=built.stats(inputs),
        )
        print_built(console, built)
        console.print(f"{out}  digest {manifest.digest[:16]}", highlight=False)
        console.print(f"{write_report(out)}", highlight=False)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
