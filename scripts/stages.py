"""Run the stages of a chain, each behind those whose output it reads.

    posttrain stages --config one-gpu/rlvr_stages
    posttrain stages --config my_recipes --dry-run
    posttrain stages --config tiny targets=[eval_rlvr] jobs=2 logs=runs/tiny/logs

`--config` is a recipe that lists stages, or a folder of recipes named after their stages. Every
stage's recipe is checked before the first begins; a finished stage is passed on. `--dry-run` makes
the dry run of the first one that is unfinished, or that another configuration finished: the
inputs of later ones are not there yet.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from posttrain.chain import missing_inputs, read_chain, resolve_chain, run_chain, state_of
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.stages import StagesConfig

HERE = Path(__file__).resolve().parent


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Run the stages of a chain, each behind those whose output it reads.")
    show = partial(print, flush=True)
    read = partial(read_chain, scripts=HERE, show=show)
    config, options = parse_recipe(parser, StagesConfig, argv, read=read)
    stages = resolve_chain(config, HERE)
    for number, stage in enumerate(stages, 1):
        state = state_of(stage, Path())
        show(f"{number}/{len(stages)} {stage.step.title} → {stage.out}: {state}")
    for sentence in missing_inputs(stages, Path()):
        show(sentence)
    if options.dry_run:
        unfinished = [stage for stage in stages if state_of(stage, Path()) != "finished"]
        stages = [replace(s, arguments=(*s.arguments, "--dry-run")) for s in unfinished[:1]]
    run_chain(stages, config, scripts=HERE, root=Path(), show=show)


if __name__ == "__main__":
    run_command(main)
