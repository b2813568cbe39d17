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
    from posttrain.pages.write import run_stage
    from posttrain.report.console import open_console, print_sections
    from posttrain.runs import parent_of, read_artifact

    console = open_console()
    out = Path(recipe.out)

    # -- the samples, and the tokenizer and template they were made with
    parents = [read_artifact(path, kind="samples") for path in recipe.samples]
    renderer = pairs.load_pair_renderer(recipe, parents)
    # what names this data set: the recipe with its samples by digest, without `out`
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

    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        print_sections(console, [planned_pairs(recipe, parents)])
        # all of it, elsewhere: what is dropped follows from every score and every length
        with tempfile.TemporaryDirectory() as folder:
            built = build(Path(folder))
        counts, stats = built.counts(), built.stats()
        print_sections(console, [pair_rows(counts), *pair_figures(stats)], charts=False)
        return

    def make(run: Run) -> None:
        built = build(out)
        run.finish(
            counts=built.counts(),
            files=pairs.write_beside_pairs(built, out, renderer),
            parents=[
                parent_of(path, relative_to=out, manifest=parent)
                for path, parent in zip(recipe.samples, parents, strict=True)
            ],
            template_digest=renderer.template.digest,
            seed=recipe.seed,
            stats=built.stats() | renderer.stats(),
        )

    run_stage(console, out, kind=KIND, config=config, make=make, scratch="work")


if __name__ == "__main__":
    run_command(main)
