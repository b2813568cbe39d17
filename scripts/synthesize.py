"""Make rows with models and keep those that a check accepts.

posttrain synthesize --config tiny/synthesize
posttrain synthesize --config tiny/synthesize out=runs/x limit=20 --dry-run
"""

import tempfile
from collections import Counter
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.jsontext import printable
from posttrain.runs import Run, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Make rows with models, and keep those that a check accepts.")
    recipe, options = parse_recipe(parser, SynthesizeConfig, argv)
    for role, models in recipe.models.items():
        for model in models:
            refuse_missing_checkpoint(model.checkpoint, key=f"models.{role}.checkpoint")
    recipe, choices = recipe.with_choices()

    from data_builders.prompts.build import refuse_changes
    from data_builders.synthesis import build as synthesis
    from posttrain.hashing import digest_of
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage
    from posttrain.tokens.renderer import message_text

    console = open_console()
    for line in choices:
        console.print(line)
    out = Path(recipe.out)
    templates = synthesis.load_templates(recipe)
    digests = {name: digest_of(text) for name, text in templates.items()}
    config = recipe.owner_config() | {"templates": digests}
    kind = synthesis.open_kind(recipe, templates)

    def plan() -> None:
        with tempfile.TemporaryDirectory() as grades:
            seed_set = synthesis.read_seeds(recipe, templates, out=out, work=Path(grades))
        for reason, count in seed_set.dropped.most_common():
            console.print(f"{count:,} rows are no seeds: {reason}")
        roles: Counter[str] = Counter()
        first = None
        for ask in synthesis.first_asks(kind, seed_set.seeds):
            roles[ask.role] += ask.count
            first = first or ask
        for role, count in roles.items():
            most = max(model.sampling.max_tokens for model in recipe.models[role])
            console.print(
                f"{len(seed_set.seeds):,} seeds; first round: {count:,} completions of {role}, "
                f"{count * most:,} tokens at most, tool loops not counted"
            )
        if first is not None:
            console.print(f"\nfirst prompt, to {first.role} ({first.prompt.id}):")
            console.print(printable(message_text(first.prompt)), soft_wrap=True)

    def make(run: Run) -> None:
        seed_set = synthesis.read_seeds(recipe, templates, out=out, work=out / "work")
        result = synthesis.build(run, recipe, kind, seed_set, console=console)
        seeds = f"{result.kept:,} of {len(seed_set.seeds):,} seeds"
        console.print(f"{seeds} gave {len(result.rows):,} rows")

    def check(_: Run) -> None:
        manifest = read_artifact(out, verify=False)
        inputs, parents = synthesis.inputs_of(recipe, out=out)
        refuse_changes(manifest, inputs, parents)

    run_data_stage(
        console,
        out,
        kind=synthesis.KIND,
        config=config,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        check=check,
        scratch="work",
    )


if __name__ == "__main__":
    run_command(main)
