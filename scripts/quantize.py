"""Quantise a checkpoint to FP8 or NVFP4 for servers, and measure what that costs, part by part.

posttrain quantize --config tiny/quantize
"""

from importlib.util import find_spec

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.quantize import QuantizeConfig
from posttrain.errors import ConfigError
from posttrain.runs import read_artifact


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Quantise a checkpoint to FP8 or NVFP4.")
    recipe, options = parse_recipe(parser, QuantizeConfig, argv)
    if find_spec("modelopt") is None:
        raise ConfigError("quantize needs ModelOpt: pip install 'posttrain[quantize]'")
    refuse_missing_checkpoint(recipe.checkpoint, key="checkpoint")
    read_artifact(recipe.data, kind="sft_data", verify=False)
    from posttrain.publish.derive import KIND
    from posttrain.quantization.stage import WORK, config_of, plan, quantize, sources_of
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage

    console = open_console()
    sources = sources_of(recipe)

    def show_plan() -> None:
        for line in plan(recipe):
            console.print(line, soft_wrap=True)

    run_data_stage(
        console,
        recipe.out,
        kind=KIND,
        config=config_of(recipe, sources),
        recipe=recipe,
        dry_run=options.dry_run,
        make=lambda run: quantize(run, recipe, sources, show=console.print),
        plan=show_plan,
        scratch=WORK,
    )


if __name__ == "__main__":
    run_command(main)
