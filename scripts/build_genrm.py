"""Build the prompts on which a judge is trained and measured, from preference data.

posttrain build_genrm --config tiny/build_genrm
posttrain build_genrm --config nemotron-3-nano/build_genrm --dry-run
"""

from pathlib import Path

from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.runs import Run

KIND = "genrm_data"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Build judging prompts from preference data.")
    recipe, options = parse_recipe(parser, BuildGenRmConfig, argv)

    from data_builders.judging.build import build, token_counter
    from data_builders.prompts.build import prompt_inputs, refuse_changes
    from posttrain.pages.judging import judging_prompts, pairs_by_source
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.runs import read_artifact

    console = open_console()
    out = Path(recipe.out)
    config = recipe.model_dump(mode="json", exclude={"out"})

    inputs, parents = prompt_inputs(recipe.sources, Path(), out=out)
    count = None if recipe.tokenizer is None else token_counter(recipe.tokenizer)

    def plan() -> None:
        stats = build(recipe, None, base_dir=Path(), count=count).stats(inputs)
        sections = [judging_prompts(stats), pairs_by_source(stats["sources"])]
        print_sections(console, sections, charts=False)

    def make(run: Run) -> None:
        with console.status("reading") as line:

            def show(name: str, n: int) -> None:
                line.update(f"{name}: {n:,} pairs")

            built = build(recipe, out, base_dir=Path(), count=count, on_progress=show)
        run.finish(
            counts=built.counts(),
            files=built.files(),
            parents=parents,
            seed=recipe.seed,
            stats=built.stats(inputs),
        )

    def check(_: Run) -> None:
        refuse_changes(read_artifact(out, verify=False), inputs, parents)

    run_data_stage(
        console,
        out,
        kind=KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
    )


if __name__ == "__main__":
    run_command(main)
