"""Quantise a checkpoint to FP8 or NVFP4 for servers, and measure what that costs, part by part.

posttrain quantize --config tiny/quantize
"""

from importlib.util import find_spec
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.quantize import QuantizeConfig
from posttrain.errors import ConfigError
from posttrain.runs import MANIFEST, read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Quantise a checkpoint to FP8 or NVFP4.")
    recipe, options = parse_recipe(parser, QuantizeConfig, argv)
    if find_spec("modelopt") is None:
        raise ConfigError("quantize needs ModelOpt: pip install 'posttrain[quantize]'")
    refuse_missing_checkpoint(recipe.checkpoint, key="checkpoint")
    read_artifact(recipe.data, kind="sft_data", verify=False)
    from posttrain.pages.write import show_finished, show_up_to_date
    from posttrain.quantization.stage import plan, quantize
    from posttrain.report.console import open_console

    console = open_console()
    out = Path(recipe.out)
    if options.dry_run:
        console.print(f"{recipe.checkpoint} → {out}", soft_wrap=True)
        for line in plan(recipe):
            console.print(line, soft_wrap=True)
        return
    was_complete = (out / MANIFEST).is_file()
    quantize(recipe, show=console.print)
    if was_complete:
        show_up_to_date(console, out)
    else:
        show_finished(console, out)


if __name__ == "__main__":
    run_command(main)
