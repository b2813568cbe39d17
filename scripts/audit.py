"""Audit what a data set's loss masks teach: figures of every source, limits, the worst to read.

    posttrain audit runs/tiny/sft_data
    posttrain audit data/packed tokenizer.path=Qwen/Qwen3-0.6B tokenizer.revision=c1899de…
    posttrain audit --config audit.yaml out=runs/audit limits.max_duplicated=0.1

Reads tokenised data: our artifacts, `datasets.save_to_disk`, Parquet and Arrow with `input_ids` and
`labels`, `completion_mask` or `assistant_masks`, packed or not. A crossed limit ends it with an
error, after everything is printed and, with `out`, written.
"""

import argparse

from posttrain.config.audit import AuditConfig
from posttrain.config.command import run_command
from posttrain.config.describe import describe
from posttrain.config.load import apply_overrides, validate
from posttrain.config.recipe_files import read_mapping, recipe_file
from posttrain.errors import DataError


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Audit the loss masks of tokenised data.",
        epilog=f"keys of the recipe:\n\n{describe(AuditConfig)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", help="a recipe, a YAML file; its keys may also be given here")
    parser.add_argument(
        "arguments", nargs="*", metavar="PATH | key.path=value", help="data, and keys of the recipe"
    )
    options = parser.parse_intermixed_args(argv)
    raw = read_mapping(recipe_file(options.config)) if options.config else {}
    if given := [argument for argument in options.arguments if "=" not in argument]:
        raw["data"] = given
    raw = apply_overrides(raw, [argument for argument in options.arguments if "=" in argument])
    recipe = validate(raw, AuditConfig, where=options.config or "audit")

    from posttrain.audit.stage import KIND, audit_data, keep_audit, load_inputs
    from posttrain.pages.supervision import left_out_lines, supervision
    from posttrain.report.console import open_console, print_sections
    from posttrain.runner import run_data_stage
    from posttrain.runs import Run, read_artifact

    console = open_console()
    inputs = load_inputs(recipe)

    if recipe.out is None:
        stats = audit_data(inputs).stats
        print_sections(console, [supervision(stats["supervision"], stats["supervision_limits"])])
        for line in left_out_lines(stats["rows"]):
            console.print(line)
    else:

        def make(run: Run) -> None:
            keep_audit(run, inputs, audit_data(inputs))

        run_data_stage(
            console,
            recipe.out,
            kind=KIND,
            config=inputs.config,
            recipe=recipe,
            dry_run=False,
            make=make,
        )
        stats = read_artifact(recipe.out, verify=False).stats
    if crossed := stats["violations"]:
        raise DataError("\n  ".join(["limits were crossed:", *crossed]))


if __name__ == "__main__":
    run_command(main)
