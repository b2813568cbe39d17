"""Train a policy by RLHF: `python scripts/rlhf.py --config recipes/tiny/rlhf.yaml`.

Under several processes: `accelerate launch --config_file recipes/accelerate/ddp.yaml
scripts/rlhf.py --config …`. Overrides follow as `key.path=value`; `--dry-run` checks everything,
prints the plan and trains nothing. Started again after a kill, the same command finishes the run.
Paths in a recipe are relative to the directory this is run in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# before trl is imported, which sends telemetry by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from posttrain.artifacts import read_artifact
from posttrain.claim import run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.rlhf import RlhfConfig

if TYPE_CHECKING:
    from reward.judge.cache import VerdictCache
    from reward.judge.judge import JudgeSampler
    from reward.rlhf import JudgedReward


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the recipe, then plan or train."""
    recipe, options = parse_recipe(recipe_parser("Train a policy by RLHF."), RlhfConfig, argv)

    from posttrain.report import ensure_report

    # the judge's connections live in this loop from the first step to the last
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            finished = run(recipe, runner, stack, dry_run=options.dry_run)
        finally:
            runner.run(stack.aclose())
    if finished is not None:
        print(ensure_report(finished))


def run(
    recipe: RlhfConfig,
    runner: asyncio.Runner,
    stack: contextlib.AsyncExitStack,
    *,
    dry_run: bool,
) -> Path | None:
    """Read the prompts, open the judge, and hand both to the stage."""
    from data_builders.prompts import PromptPlan, refuse_changes
    from data_builders.sft.inputs import as_stats
    from posttrain.training.rl.stage import GroupStage, grpo_arguments
    from posttrain.training.stage import RESUME
    from reward.judge.cache import VerdictCache
    from reward.judge.judge import judge_parents, open_judges

    out = Path(recipe.out)
    plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)
    prompts = plan.build()
    parents = plan.parents + judge_parents(recipe.judge, out)
    # a mistake in trainer: shows before a judge is loaded
    grpo_arguments(recipe, out=out / RESUME)
    judges = runner.run(open_judges(recipe.judge, stack))
    stage = GroupStage(
        recipe,
        prompts=prompts.prompts,
        reward=judged_reward(recipe, judges, None),
        open_environment=plan.open_environment,
        runner=runner,
        method="rlhf",
        parents=parents,
        stats={"inputs": as_stats(plan.inputs), "sources": prompts.stats()["sources"]},
    )

    def keep_verdicts(process: int) -> None:
        # for a run that is started again, or for whoever asks the same
        own = out / RESUME / "judgements" / f"process-{process}"
        shared = recipe.judge.cache
        cache = VerdictCache(Path(shared or own), any_step=shared is not None)
        stage.reward = judged_reward(recipe, judges, stack.enter_context(cache))

    def check_inputs() -> None:
        refuse_changes(read_artifact(out, verify=False), plan.inputs, parents)

    return stage.run(dry_run=dry_run, on_open=keep_verdicts, check_inputs=check_inputs)


def judged_reward(
    recipe: RlhfConfig, judges: Sequence[JudgeSampler], cache: VerdictCache | None
) -> JudgedReward:
    """The reward of the recipe."""
    from data_builders.graders import all_graders
    from reward.judge.judge import GenRmJudge
    from reward.rlhf import JudgedReward

    return JudgedReward(
        GenRmJudge(judges, recipe.judge, cache=cache),
        config=recipe.judge,
        pairing=recipe.pairing,
        length=recipe.length,
        graders=all_graders(),
    )


if __name__ == "__main__":
    run_command(main)
