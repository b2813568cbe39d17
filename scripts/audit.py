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

    from posttrain.audit.stage import audit_data

    if crossed := audit_data(recipe):
        raise DataError("\n  ".join(["limits were crossed:", *crossed]))


if __name__ == "__main__":
    run_command(main)
