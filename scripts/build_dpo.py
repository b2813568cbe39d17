"""Build preference pairs from graded samples: the three categories of the paper's Appendix C.

posttrain build_dpo --config tiny/build_dpo
posttrain build_dpo --config tiny/build_dpo out=runs/x total=400 --dry-run
"""

import tempfile
from pathlib import Path

from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.runs import Run

KIND = "dpo_data"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Build preference pairs from graded samples.")
    recipe, options = parse_recipe(parser, BuildDpoConfig, argv)

    from data_builders.pairs import build as pairs
    from data_builders.registry import all_graders
    from posttrain.pages.samples import pair_figures, pair_rows, planned_pairs
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.runs import parent_of, read_artifact

    console = open_console()
    out = Path(recipe.out)

    # -- the samples, and the tokenizer and template they were made with
    parents = [read_artifact(path, kind="samples") for path in recipe.samples]
    renderer = pairs.load_pair_renderer(recipe, parents)
    # the samples by digest, wherever they lie
    config = recipe.model_dump(mode="json", exclude={"out", "samples"})
    config["samples_digests"] = [parent.digest for parent in parents]

    def build(folder: Path) -> pairs.BuiltPairs:
        with console.status("grading") as line:
            return pairs.build_pairs(
                recipe,
                all_graders(),
                renderer,
                out=folder,
                base_dir=Path(),
                on_progress=lambda what, n: line.update(f"{what}: {n:,}"),
            )

    def plan() -> None:
        print_sections(console, [planned_pairs(recipe, parents)])
        # the whole build, elsewhere: what is dropped follows from every score and every length
        with tempfile.TemporaryDirectory() as folder:
            built = build(Path(folder))
        sections = [pair_rows(built.counts()), *pair_figures(built.stats())]
        print_sections(console, sections, charts=False)

    def make(run: Run) -> None:
        built = build(out)
        run.finish(
            counts=built.counts(),
            files=pairs.write_side_files(built, out, renderer),
            parents=[
                parent_of(path, relative_to=out, manifest=parent)
                for path, parent in zip(recipe.samples, parents, strict=True)
            ],
            template_digest=renderer.template.digest,
            seed=recipe.seed,
            stats=built.stats() | renderer.stats(),
        )

    run_data_stage(
        console,
        out,
        kind=KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        scratch="work",
    )


if __name__ == "__main__":
    run_command(main)
