"""Train a judge on judging prompts: `python scripts/genrm.py --config recipes/tiny/genrm.yaml`.

Under several processes: `accelerate launch --config_file recipes/accelerate/ddp.yaml
scripts/genrm.py --config …`. Overrides follow as `key.path=value`; `--dry-run` checks everything,
prints the plan and trains nothing. Started again after a kill, the same command finishes the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

# before trl is imported, which sends telemetry by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from posttrain.artifacts import Manifest, parent_of, read_artifact
from posttrain.claim import exclusive, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.genrm import GenRmConfig
from posttrain.errors import PosttrainError
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Prompt, prompt_from_row
from posttrain.training.grpo import Prepared, open_stage, prepare, train_grpo
from posttrain.training.grpo_arguments import grpo_arguments
from posttrain.training.grpo_plan import make_plan, plan_lines
from posttrain.training.plan import check_disk
from posttrain.training.stage import RESUME, clean_up
from reward.judge.training import VerdictReward, gold_from


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, resolve, then plan or train."""
    recipe, given = parse_recipe(
        recipe_parser("Train a judge on judging prompts."), GenRmConfig, argv
    )
    data = read_artifact(recipe.data, kind="genrm_data")
    prompts = judging_prompts(recipe, data)
    if given.dry_run:
        dry_run(recipe, prompts)
    else:
        train(recipe, prompts, data)


def judging_prompts(recipe: GenRmConfig, data: Manifest) -> list[Prompt]:
    """What the judge is trained on; every prompt has a gold verdict."""
    path = Path(recipe.data) / data.stats["files"]["train"]
    with path.open(encoding="utf-8") as lines:
        prompts = [prompt_from_row(json.loads(line)) for line in lines]
    for prompt in prompts:
        gold_from(prompt)
    return prompts


def dry_run(recipe: GenRmConfig, prompts: Sequence[Prompt]) -> None:
    """Everything but the training, and nothing written."""
    reward = VerdictReward()
    with tempfile.TemporaryDirectory() as work:
        args = grpo_arguments(recipe, out=Path(work))
        if Path(recipe.out).exists():
            open_stage(recipe, prompts=prompts, reward=reward, claim=False)
        show_plan(prepare(recipe, args, prompts=prompts, reward=reward), measure=True)


def train(recipe: GenRmConfig, prompts: Sequence[Prompt], data: Manifest) -> None:
    """Claim the directory, check, print the plan, train, finish."""
    out, reward = Path(recipe.out), VerdictReward()
    args = grpo_arguments(recipe, out=out / RESUME)
    with exclusive(out) if args.process_index == 0 else contextlib.nullcontext():
        # one process claims the directory, then the others find it claimed
        with args.main_process_first(local=False):
            stage = open_stage(recipe, prompts=prompts, reward=reward)
        if stage.complete:
            print(f"{recipe.out} is finished; its files are as its manifest says")
            clean_up(out)
            if args.process_index == 0:
                ensure_report(out)
            return
        try:
            prepared = prepare(recipe, args, prompts=prompts, reward=reward)
            show_plan(prepared, measure=False)
            manifest = train_grpo(
                prepared,
                stage,
                method="genrm",
                parents=[parent_of(recipe.data, relative_to=out, manifest=data)],
                stats={"layout": data.stats["layout"], "principle": data.stats["principle"]},
            )
        except PosttrainError:
            if args.process_index == 0:
                stage.give_back(scratch=RESUME)
            raise
        if manifest is not None:
            stats = manifest.stats
            first, last = stats["first"], stats["last"]
            print(
                f"{recipe.out}: checkpoint {manifest.digest[:12]}, {stats['steps']} steps, "
                f"reward {first['reward']:.2f} → {last['reward']:.2f}, truncated "
                f"{first['truncated']:.1%} → {last['truncated']:.1%} (means of "
                f"{stats['averaged']} batches)"
            )
            print(write_report(out))


def show_plan(prepared: Prepared, *, measure: bool) -> None:
    """Print plan and preflight on the main process; stop if the disk is too small."""
    plan = make_plan(prepared, measure=measure)
    if prepared.trainer.is_world_process_zero():
        for name, text in plan_lines(plan, prepared):
            print(f"{name:<12} {text}", flush=True)
    check_disk(plan.disk_bytes, Path(prepared.recipe.out))


if __name__ == "__main__":
    run_command(main)
