"""Train a judge on judging prompts: `python scripts/genrm.py --config recipes/tiny/genrm.yaml`.

Under several processes: `accelerate launch --config_file recipes/accelerate/ddp.yaml
scripts/genrm.py --config …`. Overrides follow as `key.path=value`; `--dry-run` checks everything,
prints the plan and trains nothing. Started again after a kill, the same command finishes the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

# before trl is imported, which sends telemetry by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.genrm import GenRmConfig
from posttrain.rollouts import Prompt, prompt_from_row
from posttrain.runs import Manifest, parent_of, read_artifact


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the recipe, read the judging prompts, then plan or train."""
    parser = recipe_parser("Train a judge on judging prompts.")
    recipe, options = parse_recipe(parser, GenRmConfig, argv)
    data = read_artifact(recipe.data, kind="genrm_data")
    prompts = judging_prompts(recipe, data)

    from posttrain.report import ensure_report
    from posttrain.training.rl.stage import GroupStage
    from reward.judge.training import VerdictReward

    stage = GroupStage(
        recipe,
        prompts=prompts,
        reward=VerdictReward(),
        method="genrm",
        parents=[parent_of(recipe.data, relative_to=Path(recipe.out), manifest=data)],
        stats={"layout": data.stats["layout"], "principle": data.stats["principle"]},
    )
    finished = stage.run(dry_run=options.dry_run)
    if finished is not None:
        print(ensure_report(finished))


def judging_prompts(recipe: GenRmConfig, data: Manifest) -> list[Prompt]:
    """What the judge is trained on; every prompt has a gold verdict."""
    from reward.judge.training import gold_from

    path = Path(recipe.data) / data.stats["files"]["train"]
    with path.open(encoding="utf-8") as lines:
        prompts = [prompt_from_row(json.loads(line)) for line in lines]
    for prompt in prompts:
        gold_from(prompt)
    return prompts


if __name__ == "__main__":
    run_command(main)
