"""Group-relative policy optimisation: prompts, a reward for groups, a policy → a checkpoint.

    GroupStage(recipe, prompts=prompts, reward=reward, method="rlhf").run(dry_run=False)

The reward is an argument: RLHF with a judge and the training of that judge are this same stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig

from posttrain.chat import ChatTemplate
from posttrain.config.backend import Rendering, Server
from posttrain.config.distill import refuse_full_sharding
from posttrain.config.grpo import (
    ENGINE_REACHING,
    ColocatedVllm,
    GroupTraining,
    InProcessRollouts,
    refuse_lora_server,
    refuse_simulated_sharding,
)
from posttrain.errors import ConfigError, DataError
from posttrain.group_rewards import GroupReward
from posttrain.hashing import digest_of
from posttrain.models.inference import generation_stops
from posttrain.models.room import check_room, positions, prompt_lengths
from posttrain.rollouts import Prompt
from posttrain.runs import Manifest, Parent, Run
from posttrain.sampling.generate import prompt_lines
from posttrain.sampling.open import refuse_beyond_context, rendering_of
from posttrain.sampling.render import RenderedSampler
from posttrain.sampling.rollout import OpenEnvironment
from posttrain.sampling.sampler import Engine, Sampler
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.renderer import prompt_text
from posttrain.tokens.tokenizer import Encoder, SpecialTokens, load_any_tokenizer
from posttrain.training.activations import RolloutShape
from posttrain.training.arguments import LEARNING_RATE, batch_layout, make_arguments
from posttrain.training.launch import Launched
from posttrain.training.moe import freeze_routers
from posttrain.training.output import RESUME, RunOutcome
from posttrain.training.plan import FrozenModels, Line, ModelSize, check_batch, check_enough
from posttrain.training.rl.draws import DomainShares, PromptDraws
from posttrain.training.rl.full_objective import FullObjective
from posttrain.training.rl.metrics import domain_stats, domain_table, run_stats
from posttrain.training.rl.plan import describe_loss, make_plan
from posttrain.training.rl.step import Rollouts, accumulation
from posttrain.training.rl.trainer import GroupTrainer, WeightRounding
from posttrain.training.stage import Preflight, PreparedRun, TrainingStage

WARMUP_STEPS = 10  # as in the reference code's RLVR recipe
# Seconds that a process may wait at a gather until the others have rolled out and judged; torch's
# half an hour is meant for steps without either
DDP_TIMEOUT = 4 * 3600
# Keys outside a run's identity: the guard's limits may change when a stopped run is resumed,
# prompts and reward are in it by digest, and servers move
_OUTSIDE_IDENTITY: Any = {
    "out": True,
    "guard": True,
    "data": True,
    "prompts": True,
    "settings": True,
    "judge": True,
    "pass_rates": True,
    "domains": True,
    "teachers": True,
    "teachers_in_memory": True,
    "simulate": True,
    "rollouts": {*ENGINE_REACHING},
}
_CLOSING_FIGURES = (
    "reward",
    "part/base",
    "part/accuracy",
    "part/pass",
    "answer_tokens",
    "reasoning_tokens",
    "truncated",
)


def grpo_arguments(
    recipe: GroupTraining, *, out: Path, env: Mapping[str, str] = os.environ
) -> GRPOConfig:
    """Arguments of the trainer.

    Args:
        out: folder of the resume checkpoints.
        env: environment variables of the launcher.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, groups that would be split.
    """
    micro, processes = batch_layout(recipe.trainer, GRPOConfig, env)
    revision = recipe.model.revision
    num_iterations = recipe.loss.num_iterations
    micro_batches = accumulation(recipe, micro=micro, processes=processes)
    num_generations = recipe.num_generations
    if num_generations == 1:
        # TRL refuses 1; its groups are not used here, so that any divisor of the batch will do
        num_generations = recipe.prompts_per_step // num_iterations
    args = make_arguments(
        GRPOConfig,
        recipe,
        out=out,
        env=env,
        counted_in_steps=True,
        defaults={
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": WARMUP_STEPS,
            "per_device_train_batch_size": micro,
            "save_strategy": "steps",
            "save_steps": 10 * num_iterations,
            "ddp_timeout": DDP_TIMEOUT,
        },
        decided={
            "gradient_accumulation_steps": micro_batches,
            "num_generations": num_generations,
            "max_completion_length": recipe.sampling.max_tokens,
            "temperature": recipe.sampling.temperature,
            "beta": recipe.loss.kl,
            # the reference is loaded from where the policy was
            "model_init_kwargs": {"revision": revision} if recipe.loss.kl and revision else None,
            "loss_type": "dapo",
            "epsilon": recipe.loss.clip_low,
            "epsilon_high": recipe.loss.clip_high,
            "disable_dropout": True,
            # TRL's term fails on sigmoid routers
            "router_aux_loss_coef": 0.0,
            "pad_to_multiple_of": None,
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
        },
    )
    batches = args.max_steps // num_iterations
    changes = recipe.sampling.max_completion or ()
    last_change = max((change.from_batch for change in changes), default=1)
    if last_change > batches:
        raise ConfigError(f"sampling.max_completion changes at batch {last_change} of {batches}")
    for name in ("max_steps", "save_steps"):
        value = getattr(args, name)
        if value % num_iterations:
            raise ConfigError(
                f"trainer.{name} {value:g} ends inside a batch of rollouts, which has "
                f"{num_iterations} updates: set it to a multiple of {num_iterations}"
            )
    return args


@contextlib.contextmanager
def reward_loop() -> Iterator[tuple[asyncio.Runner, contextlib.AsyncExitStack]]:
    """Event loop that a reward is awaited in, from the first step to the last.

    Yields:
        Runner of the loop, and a stack of its connections, which is closed at the end.
    """
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            yield runner, stack
        finally:
            runner.run(stack.aclose())


class Simulation(Protocol):
    """Quantised checkpoint that the policy rounds as, while its own weights train.

    Attributes:
        digest: Digest of its weights.
        text: Sentence for plan and card.
    """

    @property
    def digest(self) -> str: ...

    @property
    def text(self) -> str: ...

    def round(self, model: PreTrainedModel) -> WeightRounding:
        """Prepare a model to be rounded, and return its rounded weights."""
        ...


class GroupStage(TrainingStage[GroupTraining, GroupTrainer]):
    """One run of group-relative training.

    Args:
        prompts: all prompts, with unique ids.
        reward: reward of whole groups; every process rewards the groups that it rolled out.
        open_environment: opens the tools that a prompt declares; None: no prompt has tools.
        runner: runner of the event loop that the reward's connections belong to; None makes one.
        curriculum: prompts of every step; None: whole permutations one after the other.
        method: name of the method in manifest and card, such as `rlhf`.
        parents: artifacts that prompts and reward were made from; the policy is added.
        stats: further stats of the manifest.
        lines: further lines of the plan.
        shares: source → its share of every step's prompts; None: as the permutations have them.
        full: teachers whose whole distributions are trained on, in place of rewards.
        simulation: quantised checkpoint that the policy rounds as; None: it does not round.
        frozen: models of this process that the reward scores with, for the memory plan; None: none.
    """

    scratch = RESUME

    def __init__(
        self,
        recipe: GroupTraining,
        *,
        prompts: Sequence[Prompt],
        reward: GroupReward,
        open_environment: OpenEnvironment | None = None,
        runner: asyncio.Runner | None = None,
        curriculum: PromptDraws | None = None,
        method: str = "grpo",
        parents: Sequence[Parent] = (),
        stats: Mapping[str, Any] | None = None,
        lines: Sequence[Line] = (),
        shares: Mapping[str, float] | None = None,
        full: FullObjective | None = None,
        simulation: Simulation | None = None,
        frozen: FrozenModels | None = None,
    ) -> None:
        super().__init__(recipe)
        self.prompts = prompts
        self.reward = reward
        self.method = method
        self.open_environment = open_environment
        self.runner = runner or asyncio.Runner()
        self.parents = parents
        self.stats = stats or {}
        self.lines = lines
        self.curriculum = curriculum
        self.full = full
        self.simulation = simulation
        if frozen is not None:
            self.frozen = frozen
        self.shares: DomainShares | None = None
        if shares is not None:
            self.shares = DomainShares(
                prompts, shares, per_step=recipe.prompts_per_step, seed=recipe.seed
            )
        self._lengths: list[int] = []
        self._routers = 0

    def arguments(self, out: Path) -> GRPOConfig:
        return grpo_arguments(self.recipe, out=out)

    def identity(self) -> dict[str, Any]:
        """Recipe of the run, with prompts and policy by digest, and the identity of the reward."""
        config = self.recipe.model_dump(mode="json", exclude=_OUTSIDE_IDENTITY)
        if not self.recipe.rollouts.lag:
            # older runs have no such key
            del config["rollouts"]["lag"]
        config["prompts_digest"] = digest_of(prompt_lines(self.prompts))
        config["reward"] = dict(self.reward.identity)
        if self.curriculum is not None:
            config["curriculum_digest"] = self.curriculum.digest
        if self.simulation is not None:
            config["simulate"] = self.simulation.digest
        if self.policy is not None:
            config["model"]["path"] = self.policy.digest
        return config

    def data_parents(self) -> list[Parent]:
        return list(self.parents)

    @property
    def template_digest(self) -> str:
        return self._rendering[0].digest

    def load_tokenizer(self, args: GRPOConfig) -> Any:
        """Tokenizer of the policy, with the template that renders the prompts."""
        recipe = self.recipe
        num_iterations = recipe.loss.num_iterations
        if not self.prompts:
            raise DataError("there are no prompts")
        if self.open_environment is None:
            for prompt in self.prompts:
                if prompt.environment is not None:
                    raise ConfigError(
                        f"prompt {prompt.id!r} names the environment {prompt.environment!r}, and "
                        "this stage runs no tools"
                    )
        if self.shares is not None:
            steps = args.max_steps // num_iterations
            self.shares.check_enough(steps=steps, max_epochs=recipe.max_epochs)
        elif self.curriculum is None:
            check_enough(
                len(self.prompts),
                name="prompts",
                batch=recipe.prompts_per_step,
                batches=args.max_steps // num_iterations,
                max_epochs=recipe.max_epochs,
                updates=num_iterations,
            )
        tokenizer = load_any_tokenizer(str(recipe.model.path), revision=recipe.model.revision)
        tokenizer.chat_template = self._rendering[0].source
        return tokenizer

    @cached_property
    def _rendering(self) -> tuple[ChatTemplate, Encoder]:
        """Chat template of the prompts and encoder of the policy's tokenizer."""
        recipe = self.recipe
        rendering = Rendering(
            chat_template=recipe.chat_template, template_variables=recipe.template_variables
        )
        template, encoder, *_ = rendering_of(
            rendering,
            str(recipe.model.path),
            revision=recipe.model.revision,
            key="chat_template",
        )
        return template, encoder

    def data_contains(self, text: str, token: int) -> bool:
        """True if any prompt spells a special token in its text."""
        template, _ = self._rendering
        return any(text in prompt_text(prompt, template) for prompt in self.prompts)

    def load_data(self, args: GRPOConfig, special: SpecialTokens) -> Dataset:
        """Dataset of the prompts' ids, which TRL requires; `get_batch_samples` draws them."""
        template, encoder = self._rendering
        self._lengths = prompt_lengths(self.prompts, template, encoder)
        return Dataset.from_dict({"prompt": [prompt.id for prompt in self.prompts]})

    def make_trainer(self, data: Dataset, special: SpecialTokens, **parts: Any) -> GroupTrainer:
        """Make the trainer, with the sampler of the policy's rollouts."""
        recipe = self.recipe
        model = parts["model"]
        template, encoder = self._rendering
        self._routers = freeze_routers(model, freeze=recipe.moe.freeze_router)
        stop_ids = generation_stops(str(recipe.model.path), model)

        def make_sampler(engine: Engine) -> Sampler:
            return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stop_ids)

        open_environment = self.open_environment or (lambda _: None)
        rollouts = Rollouts(
            self.prompts,
            self.reward,
            make_sampler,
            open_environment,
            self.runner,
            curriculum=self.curriculum,
            shares=self.shares,
            full=self.full,
        )
        if self.simulation is not None:
            parts["rounding"] = self.simulation.round(model)
        return GroupTrainer(
            **parts, train_dataset=data, recipe=recipe, rollouts=rollouts, pad_id=special.pad_id
        )

    def check(self, trainer: GroupTrainer, special: SpecialTokens, launched: Launched) -> Preflight:
        """Check the launch, and that prompts and completions fit the model's positions.

        Raises:
            ConfigError: a kind of sharding that the engine cannot use, or too few positions.
        """
        recipe = self.recipe
        rollouts_per_step = recipe.prompts_per_step * recipe.num_generations
        per_update = rollouts_per_step // recipe.loss.num_iterations
        check_batch(trainer, per_update, name="rollouts")
        if launched.sharding == "fsdp1":
            raise ConfigError("rollouts cannot gather weights of FSDP 1: set fsdp_version: 2")
        if recipe.rollouts.engine == "lora_server":
            refuse_lora_server(launched.sharding)
        if self.simulation is not None:
            refuse_simulated_sharding(launched.sharding)
        if self.full is not None:
            refuse_full_sharding(launched.sharding)
        max_tokens = recipe.sampling.max_tokens
        prompt_line = check_room(
            self.prompts,
            self._lengths,
            template=self._rendering[0],
            max_tokens=max_tokens,
            room=positions(trainer.model.config),
        )
        if isinstance(recipe.rollouts, Server):
            refuse_beyond_context(
                recipe.rollouts, longest_prompt=max(self._lengths), max_tokens=max_tokens
            )
        lines = [("prompts", prompt_line), *self.lines]
        if self.simulation is not None:
            lines.append(("simulated", self.simulation.text))
        if self.shares is not None:
            counts = ", ".join(f"{name} {count}" for name, count in self.shares.counts.items())
            lines.append(("shares", f"prompts of a step: {counts}"))
        if self._routers:
            frozen = "frozen" if recipe.moe.freeze_router else "trained"
            bias = f"bias moved by {recipe.moe.bias_update_rate:g} a step"
            lines.append(("routers", f"{self._routers} {frozen}; {bias}"))
        if self.curriculum is not None:
            lines += self.curriculum.lines()
        stats = {"routers": self._routers, "longest_prompt": max(self._lengths)}
        return Preflight(lines, stats)

    def largest_batch(self, trainer: GroupTrainer) -> Mapping[str, torch.Tensor]:
        """Micro-batch of completions of the greatest length behind the longest prompt."""
        max_tokens = self.recipe.sampling.max_tokens
        rows = trainer.args.per_device_train_batch_size
        columns = max(self._lengths) + max_tokens
        ids = torch.zeros(rows, columns, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        labels[:, -max_tokens:] = 0
        return {"input_ids": ids, "labels": labels}

    def rollouts(self, trainer: GroupTrainer) -> RolloutShape | ColocatedVllm | None:
        """Shape of the largest concurrent rollout batch, for the memory estimate."""
        recipe = self.recipe
        engine = recipe.rollouts
        if isinstance(engine, ColocatedVllm):
            return engine
        if not isinstance(engine, InProcessRollouts):
            return None
        rollouts_per_step = recipe.prompts_per_step * recipe.num_generations
        local_rollouts = rollouts_per_step // trainer.args.world_size
        columns = max(self._lengths) + recipe.sampling.max_tokens
        return RolloutShape(rows=min(local_rollouts, engine.batch_size), columns=columns)

    def plan(
        self, prepared: PreparedRun[GroupTrainer], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        return make_plan(prepared, size, measure=measure)

    def train(self, prepared: PreparedRun[GroupTrainer], directory: Run) -> Manifest | None:
        """Train, after the curriculum's plan, which is part of the artifact, has been written."""
        if self.curriculum is not None and prepared.trainer.is_world_process_zero():
            self.curriculum.write_plan()
        return super().train(prepared, directory)

    def outcome(self, prepared: PreparedRun[GroupTrainer], base: str | None) -> RunOutcome:
        """Stats and card of a finished run."""
        recipe = self.recipe
        trainer = prepared.trainer
        batches = trainer.args.max_steps // recipe.loss.num_iterations
        prompts_drawn = batches * recipe.prompts_per_step
        rows = len(self.prompts)
        stats = {
            "method": self.method,
            "batches": batches,
            "prompts_per_step": recipe.prompts_per_step,
            "num_generations": recipe.num_generations,
            "rollouts": prompts_drawn * recipe.num_generations,
            "epochs": prompts_drawn / rows,
            **run_stats(trainer.step_rows()),
            **self.stats,
        }
        reached = min(rows, prompts_drawn)
        domains = domain_stats(trainer.step_rows(), averaged=stats["averaged"])
        if domains:
            stats["domains"] = domains
        if self.curriculum is not None:
            stats["curriculum"] = self.curriculum.stats()
            reached = stats["curriculum"]["different"]
        start_means = stats["first"]
        end_means = stats["last"]
        figure_rows: list[str] = []
        for name in start_means:
            if name in end_means:
                label = name.replace("_", " ")
                figure_rows.append(f"| {label} | {start_means[name]:.4f} | {end_means[name]:.4f} |")
        summary = [
            f"Policy: {base}. {batches:,} batches of {recipe.prompts_per_step} prompts × "
            f"{recipe.num_generations} rollouts, {stats['epochs']:.2f} epochs, "
            f"{trainer.state.global_step:,} optimiser steps, {trainer.trained_seen:,} tokens in "
            "the loss.",
            "",
            f"Loss: {describe_loss(recipe.loss)}. "
            f"Sampled at temperature {recipe.sampling.temperature:g}, "
            f"at most {recipe.sampling.max_tokens} tokens.",
            "",
            f"| mean of {stats['averaged']} batches | first | last |",
            "|---|---|---|",
            *figure_rows,
        ]
        if self.simulation is not None:
            stats["simulated"] = self.simulation.digest
            summary += ["", f"In training {self.simulation.text}"]
        if domains:
            summary += domain_table(domains)
        return RunOutcome(rows=rows, reached=reached, stats=stats, summary=summary)

    def closing_lines(self, manifest: Manifest) -> list[str]:
        """Lines that compare reward and lengths of the first and the last batches."""
        start_means = manifest.stats["first"]
        end_means = manifest.stats["last"]
        lines = [f"means of the first and last {manifest.stats['averaged']} batches:"]
        for name in _CLOSING_FIGURES:
            if name in start_means and name in end_means:
                lines.append(f"{name:<18} {start_means[name]:.3f} → {end_means[name]:.3f}")
        return lines
