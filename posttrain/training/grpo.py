"""Group-relative policy optimisation: prompts, a reward for groups, a policy → a checkpoint.

    stage = open_stage(recipe, prompts=prompts, reward=reward)
    prepared = prepare(recipe, grpo_arguments(recipe, out=…), prompts=prompts, reward=reward)
    train_grpo(prepared, stage)

Order: claim the output directory → tokenizer, template, policy → preflight → plan → for each batch:
roll out, reward, advantages, train → model, card and manifest. The reward is an argument: RLHF with
a judge and the training of that judge are this same stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig

from posttrain.artifacts import (
    Counts,
    Manifest,
    Parent,
    StageDir,
    atomic_write_text,
    parent_of,
)
from posttrain.config.backend import Rendering
from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError, DataError
from posttrain.group_rewards import GroupReward
from posttrain.models.adapters import adapter_reach, lora_config, quantization_config
from posttrain.models.inference import generation_stops
from posttrain.models.load import load_model
from posttrain.rollouts import Prompt
from posttrain.sampling.open import rendering_of
from posttrain.sampling.render import RenderedSampler
from posttrain.sampling.rollout import OpenEnvironment
from posttrain.sampling.sampler import Engine, Sampler
from posttrain.tokens.tokenizer import SpecialTokens, load_any_tokenizer, special_tokens
from posttrain.training.distributed import Launched, check_launch, launched
from posttrain.training.expert_bias import freeze_routers
from posttrain.training.finish import train_to_the_end
from posttrain.training.grpo_advantages import leave_one_out_advantages
from posttrain.training.grpo_card import grpo_card
from posttrain.training.grpo_files import FOLDER
from posttrain.training.grpo_make import Rollouts
from posttrain.training.grpo_preflight import (
    check_enough_prompts,
    check_environments,
    prompt_lengths,
    run_preflight,
)
from posttrain.training.grpo_stage import open_stage
from posttrain.training.grpo_stats import run_stats
from posttrain.training.grpo_trainer import GroupTrainer
from posttrain.training.log_rows import LOG, LogRows
from posttrain.training.preflight import Preflight
from posttrain.training.stage import artifact_files, clean_up, model_parent
from posttrain.versions import package_versions

__all__ = ["Prepared", "leave_one_out_advantages", "open_stage", "prepare", "train_grpo"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything resolved and checked, nothing trained. `drawn`: prompts that the run draws."""

    recipe: GroupTraining
    policy: Manifest | None
    special: SpecialTokens
    template_digest: str
    trainer: GroupTrainer
    launched: Launched
    preflight: Preflight
    drawn: int


def prepare(
    recipe: GroupTraining,
    args: GRPOConfig,
    *,
    prompts: Sequence[Prompt],
    reward: GroupReward,
    open_environment: OpenEnvironment | None = None,
    runner: asyncio.Runner | None = None,
) -> Prepared:
    """Load, check and build everything up to, but not including, the first step.

    Args:
        recipe: the resolved recipe.
        args: from `grpo_arguments`; its output directory holds the resume checkpoints.
        prompts: what is asked; each id once.
        reward: of whole groups; every process rewards the groups that it made.
        open_environment: runs the calls of prompts that declare tools; None: there are no such.
        runner: whose event loop the reward lives in, if it holds connections; None makes one.

    Raises:
        ConfigError, DataError: anything that would make the run wrong.
    """
    if not prompts:
        raise DataError("there are no prompts")
    check_environments(prompts, open_environment)
    drawn = check_enough_prompts(recipe, prompts=len(prompts), max_steps=args.max_steps)
    path = str(recipe.model.path)
    revision = recipe.model.revision
    tokenizer = load_any_tokenizer(path, revision=revision)
    rendering = Rendering(
        chat_template=recipe.chat_template, template_variables=recipe.template_variables
    )
    template, encoder, vocabulary = rendering_of(rendering, path, revision=revision)
    lengths = prompt_lengths(prompts, template, encoder)
    special = special_tokens(tokenizer, end_token=recipe.end_token, pad_token=recipe.pad_token)
    # the finished checkpoint carries the template that its rollouts were asked with
    tokenizer.chat_template = template.source
    model = load_model(
        recipe.model,
        special=special,
        vocabulary=vocabulary,
        seed=recipe.seed,
        quantization=quantization_config(recipe.adapter),
    )
    routers = freeze_routers(model, freeze=recipe.moe.freeze_router)
    reach = adapter_reach(recipe.adapter, model) if recipe.adapter else ()
    stops = generation_stops(path, model)

    def sampler_of(engine: Engine) -> Sampler:
        return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)

    rollouts = Rollouts(
        prompts,
        reward,
        sampler_of,
        open_environment or (lambda _: None),
        runner or asyncio.Runner(),
    )
    trainer = _trainer(recipe, args, model, tokenizer, rollouts, special.pad_id)
    got = launched(trainer.accelerator)
    check_launch(recipe.launch, got)
    _check_layout(recipe, trainer, got)
    preflight = run_preflight(
        recipe,
        model=trainer.model,
        prompts=prompts,
        lengths=lengths,
        special=special,
        routers=routers,
        reach=reach,
    )
    policy = model_parent(recipe.model)
    return Prepared(recipe, policy, special, template.digest, trainer, got, preflight, drawn)


def _trainer(
    recipe: GroupTraining,
    args: GRPOConfig,
    model: PreTrainedModel,
    tokenizer: Any,
    rollouts: Rollouts,
    pad_id: int,
) -> GroupTrainer:
    return GroupTrainer(
        model=model,
        args=args,
        # TRL wants a dataset; what is drawn from it is decided in get_batch_samples
        train_dataset=Dataset.from_dict({"prompt": [prompt.id for prompt in rollouts.prompts]}),
        processing_class=tokenizer,
        callbacks=[LogRows(Path(recipe.out))],
        peft_config=lora_config(recipe.adapter, model) if recipe.adapter else None,
        recipe=recipe,
        rollouts=rollouts,
        pad_id=pad_id,
    )


def _check_layout(recipe: GroupTraining, trainer: GroupTrainer, got: Launched) -> None:
    batch = trainer.get_total_train_batch_size(trainer.args) * recipe.loss.num_iterations
    if batch != recipe.prompts_per_step * recipe.num_generations:
        raise ConfigError(
            f"a step has {recipe.prompts_per_step} × {recipe.num_generations} rollouts, this "
            "launch "
            f"makes it {batch}: the launcher did not say in WORLD_SIZE how many processes it "
            "starts; use accelerate launch"
        )
    if got.sharding not in ("none", "zero1", "zero2"):
        raise ConfigError(
            f"this run has sharding {got.sharding}; rollouts are made in this process and need "
            "whole weights on each device: use recipes/accelerate/ddp.yaml or zero2.yaml"
        )


def train_grpo(
    prepared: Prepared,
    stage: StageDir,
    *,
    method: str = "grpo",
    parents: Sequence[Parent] = (),
    stats: Mapping[str, Any] | None = None,
) -> Manifest | None:
    """Train, resuming from a whole checkpoint if there is one, and finish the artifact.

    Args:
        method: of the manifest and the card, such as `rlhf`.
        parents: what prompts and reward were made from; the policy is added.
        stats: more for the manifest.

    Returns:
        The manifest, on the main process; None on the others.

    Raises:
        TrainingError: the health guard has stopped the run; it can be started again.
        JudgeError: from the reward.
    """
    trainer = prepared.trainer
    try:
        train_to_the_end(trainer, stage.path, base=prepared.recipe.model, special=prepared.special)
    finally:
        trainer.close()
    if not trainer.is_world_process_zero():
        return None
    return _finish(prepared, stage, method, list(parents), dict(stats or {}))


def _finish(
    prepared: Prepared, stage: StageDir, method: str, parents: list[Parent], more: dict[str, Any]
) -> Manifest:
    """Card and manifest; then the resume checkpoints have done their work."""
    recipe, policy = prepared.recipe, prepared.policy
    if policy is not None:
        parents.append(parent_of(str(recipe.model.path), relative_to=stage.path, manifest=policy))
    stats = run_stats(prepared.trainer, prepared.launched, prepared.preflight, method=method) | more
    card = grpo_card(
        recipe,
        parents=parents,
        base=f"checkpoint {policy.digest[:12]}" if policy else str(recipe.model.path),
        stats=stats,
        versions=package_versions(),
    )
    atomic_write_text(stage.path / "README.md", card)
    prompts = len(prepared.trainer.rollouts.prompts)
    reached = min(prompts, prepared.drawn)
    manifest = stage.finish(
        counts=Counts(
            rows_in=prompts,
            kept=reached,
            dropped={"not_reached": prompts - reached} if reached < prompts else {},
        ),
        files={name: _rows(stage.path / name) for name in artifact_files(stage.path)},
        parents=parents,
        template_digest=prepared.template_digest,
        seed=recipe.seed,
        stats=stats,
    )
    clean_up(stage.path)
    return manifest


def _rows(file: Path) -> int | None:
    if file.name != LOG and file.parent.name != FOLDER:
        return None
    with file.open("rb") as handle:
        return sum(1 for _ in handle)
