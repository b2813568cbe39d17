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
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# before trl is imported, which sends telemetry by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from data_builders.graders import all_graders
from data_builders.prompts import PromptSet, build_prompts, prompt_inputs, refuse_changes
from data_builders.sft_inputs import Input, as_stats
from data_builders.toolkits import toolkits_for
from posttrain.artifacts import Parent, StageDir, parent_of, read_artifact
from posttrain.claim import exclusive, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.rlhf import RlhfConfig
from posttrain.environments.base import Environment, Toolkit
from posttrain.errors import PosttrainError
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Prompt
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.render import RenderedSampler
from posttrain.training.grpo import Prepared, open_stage, prepare, train_grpo
from posttrain.training.grpo_arguments import grpo_arguments
from posttrain.training.grpo_plan import make_plan, plan_lines
from posttrain.training.plan import check_disk
from posttrain.training.stage import RESUME, clean_up
from reward.genrm_judge import GenRmJudge, Seat, seat_for
from reward.rlhf import JudgedReward
from reward.verdict_cache import VerdictCache

BASE = Path(".")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run is made from, read once."""

    made: PromptSet
    files: Sequence[Input]
    parents: Sequence[Parent]
    toolkits: dict[str, Toolkit]

    def opened(self, prompt: Prompt) -> Environment | None:
        """What runs a prompt's calls."""
        name = prompt.environment
        return None if name is None else self.toolkits[name].open(prompt)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, resolve, then plan or train."""
    recipe, given = parse_recipe(recipe_parser("Train a policy by RLHF."), RlhfConfig, argv)
    inputs = read_inputs(recipe)
    # the judge's connections live in this loop from the first step to the last
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            if given.dry_run:
                dry_run(recipe, inputs, runner, stack)
            else:
                train(recipe, inputs, runner, stack)
        finally:
            runner.run(stack.aclose())


def read_inputs(recipe: RlhfConfig) -> Inputs:
    """Prompts, the files they come from, and what runs their tools."""
    files, parents = prompt_inputs(recipe.prompts, BASE, out=Path(recipe.out))
    toolkits = toolkits_for(recipe.prompts, recipe.settings)
    made = build_prompts(
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
            parents.append(
                parent_of(model.checkpoint, relative_to=Path(recipe.out), manifest=judge)
            )
    return Inputs(made, files, parents, dict(toolkits))


async def open_seats(recipe: RlhfConfig, stack: contextlib.AsyncExitStack) -> list[Seat]:
    """Every model that judges; the same one twice is opened once."""
    opened: dict[str, Seat] = {}
    for model in recipe.judge.models:
        key = model.model_dump_json()
        if key not in opened:
            backend = opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            sampler = await stack.enter_async_context(backend)
            template = sampler.template.source if isinstance(sampler, RenderedSampler) else None
            tokens = sampler.encoder.special_tokens if isinstance(sampler, RenderedSampler) else ()
            opened[key] = seat_for(model, sampler, template=template, tokens=tokens)
    return [opened[model.model_dump_json()] for model in recipe.judge.models]


def judged_reward(
    recipe: RlhfConfig, seats: Sequence[Seat], cache: VerdictCache | None
) -> JudgedReward:
    """The reward of the recipe."""
    return JudgedReward(
        GenRmJudge(seats, recipe.judge, cache=cache),
        config=recipe.judge,
        pairing=recipe.pairing,
        length=recipe.length,
        graders=all_graders(),
    )


def dry_run(
    recipe: RlhfConfig, inputs: Inputs, runner: asyncio.Runner, stack: contextlib.AsyncExitStack
) -> None:
    """Everything but the training, and nothing written."""
    prompts = inputs.made.prompts
    with tempfile.TemporaryDirectory() as work:
        args = grpo_arguments(recipe, out=Path(work))
        reward = judged_reward(recipe, runner.run(open_seats(recipe, stack)), None)
        if Path(recipe.out).exists():
            open_stage(recipe, prompts=prompts, reward=reward, claim=False)
        prepared = prepare(
            recipe, args, prompts=prompts, reward=reward, open_environment=inputs.opened
        )
        show_plan(prepared, measure=True)


def train(
    recipe: RlhfConfig, inputs: Inputs, runner: asyncio.Runner, stack: contextlib.AsyncExitStack
) -> None:
    """Claim the directory, check, print the plan, train, finish."""
    out, prompts = Path(recipe.out), inputs.made.prompts
    args = grpo_arguments(recipe, out=out / RESUME)
    seats = runner.run(open_seats(recipe, stack))
    with exclusive(out) if args.process_index == 0 else contextlib.nullcontext():
        # one process claims the directory, then the others find it claimed
        with args.main_process_first(local=False):
            reward = judged_reward(recipe, seats, None)
            stage = open_stage(recipe, prompts=prompts, reward=reward)
        if stage.complete:
            refuse_changes(read_artifact(out, verify=False), inputs.files, inputs.parents)
            print(f"{recipe.out} is finished; its files are as its manifest says")
            clean_up(out)
            if args.process_index == 0:
                ensure_report(out)
            return
        cache = stack.enter_context(open_cache(recipe, args.process_index))
        try:
            prepared = prepare(
                recipe,
                args,
                prompts=prompts,
                reward=judged_reward(recipe, seats, cache),
                open_environment=inputs.opened,
                runner=runner,
            )
            show_plan(prepared, measure=False)
            finish(prepared, stage, inputs)
        except PosttrainError:
            if args.process_index == 0:
                stage.give_back(scratch=RESUME)
            raise


def open_cache(recipe: RlhfConfig, process: int) -> VerdictCache:
    """Where votes are kept for a run that is started again, or for whoever asks the same."""
    if recipe.judge.cache is not None:
        return VerdictCache(Path(recipe.judge.cache), any_step=True)
    return VerdictCache(Path(recipe.out) / RESUME / "judgements" / f"process-{process}")


def finish(prepared: Prepared, stage: StageDir, inputs: Inputs) -> None:
    """Train, write the artifact, say what came of it."""
    manifest = train_grpo(
        prepared,
        stage,
        method="rlhf",
        parents=inputs.parents,
        stats={"inputs": as_stats(inputs.files), "books": books_of(inputs.made)},
    )
    if manifest is None:
        return
    first, last = manifest.stats["first"], manifest.stats["last"]
    print(
        f"{stage.path}: checkpoint {manifest.digest[:12]}, {manifest.stats['steps']} steps; means "
        f"of the first and last {manifest.stats['averaged']} batches:"
    )
    names = ("reward", "part/base", "part/accuracy", "answer_tokens", "reasoning_tokens")
    for name in (*names, "truncated"):
        if name in first and name in last:
            print(f"{name:<18} {first[name]:.3f} → {last[name]:.3f}")
    print(write_report(stage.path))


def books_of(made: PromptSet) -> dict[str, dict[str, object]]:
    """What became of the rows of each source."""
    return {
        name: {
            "rows_in": books.rows_in,
            "kept": books.kept,
            "dropped": dict(sorted(books.dropped.items())),
        }
        for name, books in made.books.items()
    }


def show_plan(prepared: Prepared, *, measure: bool) -> None:
    """Print plan and preflight on the main process; stop if the disk is too small."""
    plan = make_plan(prepared, measure=measure)
    if prepared.trainer.is_world_process_zero():
        for name, text in plan_lines(plan, prepared):
            print(f"{name:<12} {text}", flush=True)
    check_disk(plan.disk_bytes, Path(prepared.recipe.out))


if __name__ == "__main__":
    run_command(main)
