"""Make rows with models and keep those that a check accepts.

posttrain synthesize --config tiny/synthesize
posttrain synthesize --config tiny/synthesize out=runs/x limit=20 --dry-run
"""

import tempfile
from pathlib import Path

from posttrain.config.backend import is_served
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.jsontext import printable
from posttrain.runs import Run, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Make rows with models, and keep those that a check accepts.")
    recipe, options = parse_recipe(parser, SynthesizeConfig, argv)
    for role, models in recipe.models.items():
        for position, model in enumerate(models):
            alias = role if len(models) == 1 else f"{role}.{position}"
            refuse_missing_checkpoint(
                model.checkpoint,
                key=f"models.{alias}.checkpoint",
                is_served=is_served(model.backend),
            )
    recipe, choices = recipe.with_choices()

    from data_builders.prompts.build import refuse_changes
    from data_builders.synthesis import build as synthesis
    from data_builders.synthesis.kinds import open_kind
    from data_builders.synthesis.plan import first_asks, plan_rows, plan_times
    from posttrain.hashing import digest_of
    from posttrain.pages.synthesis import planned, planted_line
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.tokens.renderer import message_text

    console = open_console()
    for line in choices:
        console.print(line)
    out = Path(recipe.out)
    kind = open_kind(recipe)
    digests = {name: digest_of(text) for name, text in kind.setup.templates.items()}
    config = recipe.owner_config() | {"templates": digests}

    def plan() -> None:
        with tempfile.TemporaryDirectory() as grades:
            seed_set = synthesis.read_seeds(recipe, kind, work=Path(grades))
        for reason, count in seed_set.dropped.most_common():
            console.print(f"{count:,} rows are no seeds: {reason}")
        asks = first_asks(recipe, kind, seed_set.seeds)
        rows = plan_rows(recipe, kind, seed_set.seeds, asks)
        times = plan_times(recipe, rows, asks)
        print_sections(console, [planned(len(seed_set.seeds), rows, times)])
        first_of_role = {ask.role: ask for ask in reversed(asks)}
        for role, ask in first_of_role.items():
            console.print(f"\nfirst prompt, to {role} ({ask.prompt.id}):")
            console.print(printable(message_text(ask.prompt)), soft_wrap=True)

    def make(run: Run) -> None:
        seed_set = synthesis.read_seeds(recipe, kind, work=out / "work")
        result = synthesis.build(run, recipe, kind, seed_set, console=console)
        finished = {"rows": result.rows, "pairs": result.pairs, "tasks": result.tasks}
        numbers = ", ".join(f"{len(rows):,} {name}" for name, rows in finished.items() if rows)
        console.print(f"{result.kept:,} of {len(seed_set.seeds):,} seeds gave {numbers}")
        if result.planted.total:
            console.print(planted_line(result.planted.total, len(result.planted.kept)))

    def check(_: Run) -> None:
        manifest = read_artifact(out, verify=False)
        inputs, parents = synthesis.inputs_of(recipe, kind)
        refuse_changes(manifest, inputs, parents)

    run_data_stage(
        console,
        out,
        kind=synthesis.KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
        scratch="work",
    )


if __name__ == "__main__":
    run_command(main)
