"""Group-relative training with TRL's `GRPOTrainer`, which prepares model, reference, adapter,
optimiser and loop.

TRL distributes single completions over processes; here a batch is `prompts_per_step` whole groups,
sampled and rewarded before its first micro-batch, and the loss is a sum over the tokens of the
global batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import PeftModel
from torch.utils.data import DataLoader
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError, TrainingError
from posttrain.group_rewards import CheckpointedReward
from posttrain.tokens.encode import IGNORED
from posttrain.training.moe import ExpertBias
from posttrain.training.output import StepLines
from posttrain.training.rl.files import (
    StepClock,
    group_row,
    join_parts,
    rollout_file,
    write_part,
)
from posttrain.training.rl.full_objective import whole_head
from posttrain.training.rl.loss import TokenSums, importance, ratio_rows, token_loss
from posttrain.training.rl.metrics import (
    check_health,
    is_equal_to_teachers,
    step_line,
    why_untrained,
)
from posttrain.training.rl.policy import ENGINES
from posttrain.training.rl.step import Rollouts, RolloutStep, StepMaker
from posttrain.training.trainer import Resumable, disable_attention_dropout, score_labels


class WeightRounding(Protocol):
    """Rounded copies of a policy's weights."""

    @property
    def copied_bytes(self) -> int:
        """Bytes of all copies."""
        ...

    def rounded(self, step: int) -> AbstractContextManager[None]:
        """Block in which the policy has rounded weights.

        Args:
            step: number of optimiser steps so far.
        """
        ...


class GroupTrainer(Resumable, GRPOTrainer):
    """Trains on `prompts_per_step` × `num_generations` rollouts a step, in any layout."""

    def __init__(
        self,
        *args: Any,
        recipe: GroupTraining,
        rollouts: Rollouts,
        pad_id: int,
        rounding: WeightRounding | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare the policy and its engine; refuse router biases that an adapter would not save.

        Args:
            rounding: rounded weights, which the policy samples and is scored with; None: its own.
        """
        super().__init__(*args, reward_funcs=[_unused_reward], **kwargs)
        self._rounding = rounding
        self.recipe = recipe
        self.rollouts = rollouts
        self.pad_id = pad_id
        self.clock = StepClock(Path(recipe.out))
        self.print_steps(StepLines(step_line, timing=self.clock.text))
        disable_attention_dropout(self.model)
        plain_model = self.base_model
        self.use_cpu_heads(plain_model, self.ref_model, temperature=recipe.sampling.temperature)
        if rollouts.full is not None:
            rollouts.full.use_head(plain_model)
        self.expert_bias = ExpertBias(plain_model, rate=recipe.moe.bias_update_rate)
        if isinstance(self.model, PeftModel) and self.expert_bias.routers:
            raise ConfigError(
                "moe.bias_update_rate moves biases of the base model, and an adapter's checkpoints "
                "do not hold those: set moe.bias_update_rate=0, or train without an adapter"
            )
        self.engine = ENGINES[recipe.rollouts.engine](self)
        self.steps = StepMaker(self)
        self._sums = TokenSums()
        self._current: RolloutStep | None = None
        self._violation: dict[str, float] = {}

    def sampled_weights(self) -> AbstractContextManager[None]:
        """Block in which the policy has the weights that it samples and is scored with."""
        if self._rounding is None:
            return nullcontext()
        return self._rounding.rounded(self.state.global_step)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the rounded copies of weights that this process holds, for the memory plan."""
        return 0 if self._rounding is None else self._rounding.copied_bytes

    # ---- batches: TRL's data loader only gives the loop its length ----

    def get_train_dataloader(self) -> DataLoader[int]:
        """Data loader of numbers, one for each micro-batch of the run."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return DataLoader(range(count), batch_size=1)  # pyright: ignore[reportArgumentType]  # a range has items and a length

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # TRL would generate here; our batches have their rollouts and only move to the device
        return super(GRPOTrainer, self)._prepare_inputs(*args, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Micro-batches of the next update and None for TRL's count; a first update rolls out."""
        number, update = divmod(self.state.global_step, self.recipe.loss.num_iterations)
        if update == 0:
            step = self.steps.make(number)
            self._current = step
            self.tokens_seen += step.tokens_seen
            self.trained_seen += sum(step.tokens)
            if len(step.batches) > 1 and not self.recipe.loss.force_on_policy_ratio:
                self._score_before_updates(step)
        assert self._current is not None, "checkpoints are written between batches of rollouts"
        batches = self._current.batches[update]
        assert len(batches) == num_batches
        return batches, None

    def _score_before_updates(self, step: RolloutStep) -> None:
        """Add the log-probabilities under the policy that sampled to each micro-batch.

        Called before the updates of the step change the policy.
        """
        with torch.no_grad(), self.compute_loss_context_manager(), self.sampled_weights():
            for batches in step.batches:
                for batch in batches:
                    batch["previous"] = self.score(self.model, self._prepare_inputs(batch))[0].cpu()

    def why_untrained(self) -> str:
        """Reasons why no rollout was in the loss, from the log's rows of batches."""
        return why_untrained(self.step_rows(), overlong=self.recipe.loss.overlong)

    def step_rows(self) -> list[dict[str, Any]]:
        """Rows of the log that have the metrics of a batch of rollouts."""
        return [row for row in self.state.log_history if "rollouts" in row]

    def save_parts(self, checkpoint: Path) -> None:
        """Write the rollouts of the next step, where the run samples ahead."""
        if self.recipe.rollouts.lag:
            self.steps.ahead.save(self._sampled_file(checkpoint))
        # nothing is scored any more beside the training
        if isinstance(self.rollouts.reward, CheckpointedReward):
            self.rollouts.reward.on_checkpoint()

    def restore_parts(self, checkpoint: Path, *, step: int) -> None:
        """Load the rollouts of the next step, where the run samples ahead."""
        if self.recipe.rollouts.lag:
            number = step // self.recipe.loss.num_iterations
            file = self._sampled_file(checkpoint)
            self.steps.ahead.load(file, step=number, prompts=self.steps.prompts)

    def _sampled_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"rollouts-{self.accelerator.process_index}.jsonl"

    def close(self) -> None:
        """Stop sampling ahead and close the engine's connections; no step can follow."""
        self.steps.ahead.close()
        self.rollouts.runner.run(self.steps.close())

    # ---- loss ----

    def score(
        self, model: Any, inputs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probability, entropy and mask of the sampled tokens, `[rows, columns - 1]`.

        Nothing predicts the first token of a row.
        """
        log_probs, entropy = score_labels(model, inputs, "log_probs", "entropy")
        return log_probs, entropy, inputs["labels"][:, 1:] != IGNORED

    def _score_reference(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        """Log-probabilities `[rows, columns - 1]` under the initial policy; None without a KL."""
        if not self.recipe.loss.kl:
            return None
        with torch.no_grad():
            if self.ref_model is not None:
                return score_labels(self.ref_model, inputs, "log_probs")[0]
            with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
                return score_labels(self.model, inputs, "log_probs")[0]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Share of a micro-batch in its update's loss. Refuses non-finite log-probabilities.

        The terms are those of `rl/loss.py`.
        """
        assert self._current is not None
        config = self.recipe.loss
        reverse_kl: torch.Tensor | None = None
        with self.expert_bias.counting(inputs["attention_mask"]):
            if self.rollouts.full is None:
                current, entropy, mask = self.score(model, inputs)
            else:
                fields = ("log_probs", "entropy", "reverse_kl")
                groups = self._current.groups
                source_of = {group.position: group.group.prompt.source for group in groups}
                sources = [source_of[position] for position, _ in inputs["keys"]]
                current, entropy, reverse_kl = score_labels(model, inputs, *fields, sources=sources)
                mask = inputs["labels"][:, 1:] != IGNORED
        # checked here, since importance sampling would mask such a token as stale
        if not torch.isfinite(current.detach()[mask]).all():
            raise TrainingError(
                f"step {self.state.global_step + 1}: the policy's log-probabilities are not "
                "finite; lower the learning rate, or train in float32"
            )
        # a step with one update is scored by the policy that sampled it
        previous = inputs.get("previous", current.detach())
        sampled = inputs["sampled"][:, 1:]
        weights = importance(previous, sampled, mask, config.importance)
        reference = self._score_reference(inputs)
        advantages = inputs["advantages"][:, 1:]
        if reverse_kl is not None:
            # the exact KL stands in place of the advantages
            advantages = torch.zeros_like(advantages)
        terms = token_loss(current, previous, advantages, weights.weight, config, reference)
        if reverse_kl is not None:
            terms = replace(terms, loss=terms.loss + reverse_kl * weights.weight)
        # written beside each rollout at the end of the step
        for key, row in zip(inputs["keys"], ratio_rows(mask, weights), strict=True):
            if row is not None:
                self._current.ratios[key] = row
        self._sums.add(mask, entropy, weights, terms, reverse_kl)
        in_loss = mask & weights.trusted[:, None]
        # DDP averages gradients over processes, and the sum is over the global batch
        tokens = self._current.tokens[self.state.global_step % config.num_iterations]
        scale = self.accelerator.num_processes / max(tokens, 1)
        return self.checked_scale(torch.where(in_loss, terms.loss, 0.0).sum() * scale)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a micro-batch; an update's last moves router biases, a step's writes a file."""
        head = nullcontext() if self.rollouts.full is None else whole_head(self.base_model)
        with self.clock.part("train"), self.sampled_weights(), head:
            loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            self._violation = self.expert_bias.move(self.accelerator)
            if (self.state.global_step + 1) % self.recipe.loss.num_iterations == 0:
                self._write_rollouts()
        return loss

    def _write_rollouts(self) -> None:
        """Write the rollouts of the step that has just ended. All processes must call it."""
        assert self._current is not None
        step = self._current
        # the step is named after its first update, from 1; `global_step` still lacks the last one
        first_update = self.state.global_step + 2 - self.recipe.loss.num_iterations
        file = rollout_file(Path(self.recipe.out), first_update)
        rows = [
            group_row(group, step=first_update, ratios=step.ratios, version=step.version)
            for group in step.groups
        ]
        write_part(file, rows, process=self.accelerator.process_index)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            join_parts(file, processes=self.accelerator.num_processes)
        self.accelerator.wait_for_everyone()

    # ---- log ----

    def step_figures(self) -> dict[str, float]:
        """Drain an update's figures, at a step's end its rollouts' too. All processes call it."""
        assert self._current is not None
        figures = self._sums.drain(self.accelerator) | self._violation
        if self.state.global_step % self.recipe.loss.num_iterations == 0:
            figures |= self._current.metrics
        return figures

    def epochs_drawn(self) -> float:
        """Number of prompts drawn so far, in multiples of the data set."""
        # the batch of rollouts in training counts whole, hence the ceiling
        batches = -(-self.state.global_step // self.recipe.loss.num_iterations)
        return batches * self.recipe.prompts_per_step / len(self.rollouts.prompts)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a row; after a whole step also check the signs of an unhealthy run.

        Raises:
            TrainingError: a sign has reached its `stop` in the recipe's `guard`.
        """
        # TRL's figures would be seconds, and means of the means of micro-batches
        self._metrics["train"].clear()
        super().log(logs, start_time)
        if "rollouts" not in logs:
            return
        main = self.is_world_process_zero()
        self.clock.write(main=main)
        lines: list[str] = []
        if len(self.step_rows()) == 1:
            is_half = self.args.bf16 or self.args.fp16 or self.recipe.model.dtype == "bfloat16"
            precision = "bfloat16" if is_half else "float32"
            lines += compared_engines(logs, self.recipe.rollouts.engine, precision=precision)
        if is_equal_to_teachers(logs):
            lines.append(
                f"note         step {self.state.global_step}: every advantage is 0, for the "
                "student equals its teachers: nothing is trained"
            )
        if main:
            # before the check, which may end the run
            for line in lines:
                print(line, flush=True)
        at_end = self.state.global_step >= self.state.max_steps
        for warning in check_health(self.step_rows(), self.recipe.guard, at_end=at_end):
            if main:
                print(f"warning      {warning}", flush=True)


# Bounds of the mean |difference| of a token's log-probability, between the values measured with
# vLLM on a CPU and training of a model of 135 M: 7e-6 where both are float32, 0.03 to 0.04 where
# vLLM is in bfloat16 (9e-4 for a model of 0.6 M), 0.04 to 0.05 where both are.
ENGINE_DIFFERENCE = {"float32": 5e-4, "bfloat16": 0.1}


def compared_engines(logs: Mapping[str, float], engine: str, *, precision: str) -> list[str]:
    """Lines that compare the log-probabilities of a sampling engine with the trainer's.

    Args:
        precision: precision of the training, `float32` or `bfloat16`.
    """
    difference = logs.get("logp_difference")
    if engine == "in_process" or difference is None:
        return []
    lines = [
        f"engine       {engine}: log-probabilities differ from the trainer's by {difference:.2g}"
    ]
    bound = ENGINE_DIFFERENCE[precision]
    if difference > bound:
        lines.append(
            f"warning      that is above {bound:g} a token: serve in the precision that is trained "
            f"(--dtype {precision}; vLLM serves float32 in bfloat16 unless told), with "
            "--logprobs-mode processed_logprobs and the same checkpoint"
        )
    return lines


def _unused_reward(*_args: Any, **_kwargs: Any) -> list[float]:
    # TRL wants a reward function; ours rewards groups in `StepMaker`
    raise AssertionError("groups are rewarded, not single completions")
