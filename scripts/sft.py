"""Train a model on packed shards: `python scripts/sft.py --config recipes/tiny/sft.yaml`.

Under several processes: `accelerate launch --config_file recipes/accelerate/ddp.yaml
scripts/sft.py --config …`. Overrides follow as `key.path=value`; `--dry-run` checks everything,
prints the plan and trains nothing. Started again after a kill, the same command finishes the run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

# before trl is imported, which sends telemetry by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from posttrain.claim import exclusive, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.sft import SftConfig
from posttrain.errors import PosttrainError
from posttrain.report import ensure_report, write_report
from posttrain.training.arguments import sft_arguments
from posttrain.training.plan import check_disk, make_plan, plan_lines
from posttrain.training.sft.data import split_size
from posttrain.training.sft.stage import Prepared, open_stage, prepare, train_sft
from posttrain.training.stage import RESUME, clean_up


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, resolve, then plan or train."""
    recipe, given = parse_recipe(recipe_parser("Train a model on packed shards."), SftConfig, argv)
    if given.dry_run:
        dry_run(recipe)
    else:
        train(recipe)


def dry_run(recipe: SftConfig) -> None:
    """Everything but the training, and nothing written."""
    with tempfile.TemporaryDirectory() as work:
        args = sft_arguments(recipe, out=Path(work))
        if Path(recipe.out).exists():
            open_stage(recipe, claim=False)
        report(prepare(recipe, args), measure=True)


def train(recipe: SftConfig) -> None:
    """Claim the directory, check, print the plan, train, finish."""
    out = Path(recipe.out)
    args = sft_arguments(recipe, out=out / RESUME)
    with exclusive(out) if args.process_index == 0 else contextlib.nullcontext():
        # one process claims the directory, then the others find it claimed
        with args.main_process_first(local=False):
            stage = open_stage(recipe)
        if stage.complete:
            print(f"{recipe.out} is finished; its files are as its manifest says")
            clean_up(out)
            if args.process_index == 0:
                ensure_report(out)
            return
        try:
            prepared = prepare(recipe, args)
            report(prepared, measure=False)
        except PosttrainError:
            if args.process_index == 0:
                stage.give_back()
            raise
        manifest = train_sft(prepared, stage)
        if manifest is not None:
            print(
                f"{recipe.out}: checkpoint {manifest.digest[:12]}, {manifest.stats['steps']} steps"
            )
            print(write_report(out))


def report(prepared: Prepared, *, measure: bool) -> None:
    """Print preflight and plan on the main process; stop if the disk is too small."""
    recipe, trainer = prepared.recipe, prepared.trainer
    plan = make_plan(
        recipe,
        trainer,
        train=split_size(Path(recipe.data), "train"),
        evaluation=split_size(Path(recipe.data), "eval"),
        got=prepared.launched,
        measure=measure,
    )
    if trainer.is_world_process_zero():
        lines = plan_lines(plan, trainer.args, prepared.launched)
        for name, text in [*lines, *prepared.preflight.lines]:
            print(f"{name:<12} {text}", flush=True)
    check_disk(plan.disk_bytes, Path(recipe.out))


if __name__ == "__main__":
    run_command(main)
