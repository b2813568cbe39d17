"""Train a policy on preference pairs: `python scripts/dpo.py --config recipes/tiny/dpo.yaml`.

Under several processes: `accelerate launch --config_file recipes/accelerate/ddp.yaml
scripts/dpo.py --config …`. Overrides follow as `key.path=value`; `--dry-run` checks everything,
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
from posttrain.config.dpo import DpoConfig
from posttrain.errors import PosttrainError
from posttrain.report import ensure_report, write_report
from posttrain.training.dpo.arguments import dpo_arguments
from posttrain.training.dpo.plan import make_plan, plan_lines
from posttrain.training.dpo.stage import Prepared, open_stage, prepare, train_dpo
from posttrain.training.plan import check_disk
from posttrain.training.stage import REFERENCE, RESUME, clean_up


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, resolve, then plan or train."""
    recipe, given = parse_recipe(
        recipe_parser("Train a policy on preference pairs."), DpoConfig, argv
    )
    if given.dry_run:
        dry_run(recipe)
    else:
        train(recipe)


def dry_run(recipe: DpoConfig) -> None:
    """Everything but the training, and nothing written."""
    with tempfile.TemporaryDirectory() as work:
        args = dpo_arguments(recipe, out=Path(work))
        if Path(recipe.out).exists():
            open_stage(recipe, claim=False)
        show_plan(prepare(recipe, args), measure=True)


def train(recipe: DpoConfig) -> None:
    """Claim the directory, check, print the plan, train, finish."""
    out = Path(recipe.out)
    args = dpo_arguments(recipe, out=out / RESUME)
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
            show_plan(prepared, measure=False)
            manifest = train_dpo(prepared, stage)
        except PosttrainError:
            if args.process_index == 0:
                # log-probabilities of the reference prove by their key what they belong to
                stage.give_back(scratch=REFERENCE)
            raise
        if manifest is not None:
            stats = manifest.stats
            print(f"{recipe.out}: checkpoint {manifest.digest[:12]}, {stats['steps']} steps")
            if stats["chosen_fell"]:
                print(fall_warning(stats["lowest_chosen_change_per_token"], recipe.chosen_floor))
            print(write_report(out))


def show_plan(prepared: Prepared, *, measure: bool) -> None:
    """Print preflight and plan on the main process; stop if the disk is too small."""
    trainer = prepared.trainer
    plan = make_plan(trainer, got=prepared.launched, measure=measure)
    if trainer.is_world_process_zero():
        lines = plan_lines(plan, trainer, prepared.launched, layout=prepared.layout)
        for name, text in [*lines, *prepared.preflight.lines]:
            print(f"{name:<12} {text}", flush=True)
    check_disk(plan.disk_bytes, Path(prepared.recipe.out))


def fall_warning(lowest: float, floor: float) -> str:
    """One line for a run whose chosen completions became less likely."""
    return (
        f"warning      chosen completions lost {-lowest:.4f} nats a token against the reference "
        f"(limit {-floor:g}): raise loss.sft_weight, lower the learning rate, or drop pairs that "
        "differ in a few tokens (minimum_distance in build_dpo)"
    )


if __name__ == "__main__":
    run_command(main)
