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

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.rlhf import RlhfConfig
from posttrain.runs import parent_of, read_artifact

if TYPE_CHECKING:
    from reward.judge.cache import VerdictCache
    from reward.judge.judge import JudgeSampler
    from reward.rlhf import JudgedReward

BASE = Path(".")


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
    from data_builders.graders import all_graders
    from data_builders.prompts import build_prompts, prompt_inputs, refuse_changes
    from data_builders.sft.inputs import as_stats
    from data_builders.toolkits import toolkits_for
    from posttrain.training.rl.stage import GroupStage, grpo_arguments
    from posttrain.training.stage import RESUME
    from reward.judge.cache import VerdictCache

    out = Path(recipe.out)
    files, parents = prompt_inputs(recipe.prompts, BASE, out=out)
    toolkits = toolkits_for(recipe.prompts, recipe.settings)
    prompt_set = build_prompts(
        recipe.prompts,
        recipe.settings,
        seed=recipe.seed,
        graders=all_graders(),
        toolkits=toolkits,
        base_dir=BASE,
    )
    for model in recipe.judge.models:
        if model.checkpoint is not None and (Path(model.checkpoint) / "manifest.json").is_file():
            judge = read_artifact(model.checkpoint, kind="checkpoint")
            parents.append(parent_of(model.checkpoint, relative_to=out, manifest=judge))
    # a mistake in trainer: shows before a judge is loaded
    grpo_arguments(recipe, out=out / RESUME)
    judges = runner.run(open_judges(recipe, stack))
    stage = GroupStage(
        recipe,
        prompts=prompt_set.prompts,
        reward=judged_reward(recipe, judges, None),
        open_environment=lambda prompt: (
            None if prompt.environment is None else toolkits[prompt.environment].open(prompt)
        ),
        runner=runner,
        method="rlhf",
        parents=parents,
        stats={
            "inputs": as_stats(files),
            "books": {
                name: {
                    "rows_in": counts.rows_in,
                    "kept": counts.kept,
                    "dropped": dict(sorted(counts.dropped.items())),
                }
                for name, counts in prompt_set.row_counts.items()
            },
        },
    )

    def keep_verdicts(process: int) -> None:
        # for a run that is started again, or for whoever asks the same
        own = out / RESUME / "judgements" / f"process-{process}"
        shared = recipe.judge.cache
        cache = VerdictCache(Path(shared or own), any_step=shared is not None)
        stage.reward = judged_reward(recipe, judges, stack.enter_context(cache))

    def check_inputs() -> None:
        refuse_changes(read_artifact(out, verify=False), files, parents)

    return stage.run(dry_run=dry_run, on_open=keep_verdicts, check_inputs=check_inputs)


async def open_judges(recipe: RlhfConfig, stack: contextlib.AsyncExitStack) -> list[JudgeSampler]:
    """Every model that judges; the same one twice is opened once."""
    from posttrain.sampling.open import opened_sampler
    from posttrain.sampling.render import RenderedSampler
    from reward.judge.judge import judge_sampler

    judges: dict[str, JudgeSampler] = {}
    for model in recipe.judge.models:
        key = model.model_dump_json()
        if key not in judges:
            backend = opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            sampler = await stack.enter_async_context(backend)
            template = sampler.template.source if isinstance(sampler, RenderedSampler) else None
            tokens = sampler.encoder.special_tokens if isinstance(sampler, RenderedSampler) else ()
            judges[key] = judge_sampler(model, sampler, template=template, tokens=tokens)
    return [judges[model.model_dump_json()] for model in recipe.judge.models]


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
