"""TRL's `GRPOTrainer`, which prepares model, reference, adapter, optimiser and loop. TRL deals out
single completions; here one batch is `prompts_per_step` whole groups, made and rewarded before its
first micro-batch, and the loss is a sum over the tokens of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch.utils.data import DataLoader
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError, TrainingError
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


class GroupTrainer(Resumable, GRPOTrainer):
    """Trains on `prompts_per_step` × `num_generations` rollouts a step, in any layout."""

    def __init__(
        self, *args: Any, recipe: GroupTraining, rollouts: Rollouts, pad_id: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, reward_funcs=[_never], **kwargs)
        self.clock = StepClock(Path(recipe.out))
        self.print_steps(StepLines(step_line, timing=self.clock.text))
        disable_attention_dropout(self.model)
        plain = self.base_model
        self.use_cpu_heads(plain, self.ref_model, temperature=recipe.sampling.temperature)
        if rollouts.full is not None:
            rollouts.full.use_head(plain)
        self.recipe, self.rollouts, self.pad_id = recipe, rollouts, pad_id
        self.expert_bias = ExpertBias(plain, rate=recipe.moe.bias_update_rate)
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

    # ---- the loop's shape: TRL's data loader is not asked for anything ----

    def get_train_dataloader(self) -> DataLoader[int]:
        """As many items as there are micro-batches, so that the loop has its length."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return DataLoader(range(count), batch_size=1)  # pyright: ignore[reportArgumentType]  # a range has items and a length

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # TRL would generate here; the batches are made, and only placed on the device
        return super(GRPOTrainer, self)._prepare_inputs(*args, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of the next update; rolls out a step when it is due."""
        number, update = divmod(self.state.global_step, self.recipe.loss.num_iterations)
        if update == 0:
            self._current = step = self.steps.make(number)
            self.tokens_seen += step.tokens_seen
            self.trained_seen += sum(step.tokens)
            if len(step.batches) > 1 and not self.recipe.loss.force_on_policy_ratio:
                self._score_before_updates(step)
        assert self._current is not None, "checkpoints are written between batches of rollouts"
        batches = self._current.batches[update]
        assert len(batches) == num_batches
        return batches, None

    def _score_before_updates(self, step: RolloutStep) -> None:
        """Keep the policy's own view of its rollouts, which updates will change."""
        with torch.no_grad(), self.compute_loss_context_manager():
            for batches in step.batches:
                for batch in batches:
                    batch["previous"] = self.score(self.model, self._prepare_inputs(batch))[0].cpu()

    def why_untrained(self) -> str:
        """From the shares that the log's rows give."""
        return why_untrained(self.step_rows(), overlong=self.recipe.loss.overlong)

    def step_rows(self) -> list[dict[str, Any]]:
        """The log's rows of whole batches of rollouts so far."""
        return [row for row in self.state.log_history if "rollouts" in row]

    def save_parts(self, checkpoint: Path) -> None:
        """Write the rollouts of the next step, where the run samples ahead."""
        if self.recipe.rollouts.lag:
            self.steps.ahead.save(self._sampled_file(checkpoint))

    def restore_parts(self, checkpoint: Path, *, step: int) -> None:
        """Take up the rollouts of the next step."""
        if self.recipe.rollouts.lag:
            number = step // self.recipe.loss.num_iterations
            file = self._sampled_file(checkpoint)
            self.steps.ahead.load(file, step=number, prompts=self.steps.prompts)

    def _sampled_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"rollouts-{self.accelerator.process_index}.jsonl"

    def close(self) -> None:
        """Give connections back; the trainer is then of no more use."""
        self.steps.ahead.close()
        self.rollouts.runner.run(self.engine.close())

    # ---- loss ----

    def score(
        self, model: Any, inputs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probability, entropy and whether it was sampled, of each token behind the first."""
        log_probs, entropy = score_labels(model, inputs, "log_probs", "entropy")
        return log_probs, entropy, inputs["labels"][:, 1:] != IGNORED

    def _score_reference(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        if not self.recipe.loss.kl:
            return None
        with torch.no_grad():
            if self.ref_model is not None:
                return score_labels(self.ref_model, inputs, "log_probs")[0]
            with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
                return score_labels(self.model, inputs, "log_probs")[0]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """The micro-batch's part of the update's loss; see `rl/loss.py`."""
        assert self._current is not None
        config = self.recipe.loss
        reverse_kl: torch.Tensor | None = None
        with self.expert_bias.counting(inputs["attention_mask"]):
            if self.rollouts.full is None:
                current, entropy, mask = self.score(model, inputs)
            else:
                fields = ("log_probs", "entropy", "reverse_kl")
                sources = self._sources(inputs["places"])
                current, entropy, reverse_kl = score_labels(model, inputs, *fields, sources=sources)
                mask = inputs["labels"][:, 1:] != IGNORED
        # looked for here: importance sampling would take it for a token that strays
        if not torch.isfinite(current.detach()[mask]).all():
            raise TrainingError(
                f"step {self.state.global_step + 1}: the policy's log-probabilities are not "
                "finite; lower the learning rate, or train in float32"
            )
        previous = inputs.get("previous", current.detach())
        sampled = inputs["sampled"][:, 1:]
        weights = importance(previous, sampled, mask, config.importance)
        reference = self._score_reference(inputs)
        advantages = inputs["advantages"][:, 1:]
        if reverse_kl is not None:
            advantages = torch.zeros_like(advantages)
        terms = token_loss(current, previous, advantages, weights.weight, config, reference)
        if reverse_kl is not None:
            # in the place of advantages, which are 0 here, the exact KL itself
            terms = replace(terms, loss=terms.loss + reverse_kl * weights.weight)
        # each rollout's ratios are written beside it
        for place, row in zip(inputs["places"], ratio_rows(mask, weights), strict=True):
            if row is not None:
                self._current.ratios[place] = row
        self._sums.add(mask, entropy, weights, terms, reverse_kl)
        counted = mask & weights.kept[:, None]
        # DDP averages gradients over processes, the sum is over the global batch
        tokens = self._current.tokens[self.state.global_step % config.num_iterations]
        scale = self.accelerator.num_processes / max(tokens, 1)
        return self.checked_scale(torch.where(counted, terms.loss, 0.0).sum() * scale)

    def _sources(self, places: Sequence[tuple[int, int]]) -> list[str]:
        """Source of the prompt of each row of a micro-batch."""
        assert self._current is not None
        source_of = {group.position: group.group.prompt.source for group in self._current.groups}
        return [source_of[position] for position, _ in places]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the parent; the last micro-batch of a batch of rollouts puts it on disk."""
        with self.clock.part("train"):
            loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            self._violation = self.expert_bias.move(self.accelerator)
            if (self.state.global_step + 1) % self.recipe.loss.num_iterations == 0:
                self._write()
        return loss

    def _write(self) -> None:
        assert self._current is not None
        step, number = self._current, self.state.global_step + 2 - self.recipe.loss.num_iterations
        file = rollout_file(Path(self.recipe.out), number)
        rows = [
            group_row(group, step=number, stats=step.ratios, version=step.version)
            for group in step.groups
        ]
        write_part(file, rows, process=self.accelerator.process_index)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            join_parts(file, processes=self.accelerator.num_processes)
        self.accelerator.wait_for_everyone()

    # ---- log ----

    def step_figures(self) -> dict[str, float]:
        """Of the tokens of an update; behind the last update of a batch also of its rollouts."""
        assert self._current is not None
        whole = self.state.global_step % self.recipe.loss.num_iterations == 0
        figures = self._sums.drain(self.accelerator) | self._violation
        return figures | (self._current.metrics if whole else {})

    def epochs_drawn(self) -> float:
        """Prompts drawn, in data sets."""
        batches = -(-self.state.global_step // self.recipe.loss.num_iterations)
        return batches * self.recipe.prompts_per_step / len(self.rollouts.prompts)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the parent; then the guard looks at the figures of a whole batch of rollouts."""
        # the parent's own would be seconds, and means of micro-batch means
        self._metrics["train"].clear()
        super().log(logs, start_time)
        if "rollouts" in logs:
            self.clock.write(main=self.is_world_process_zero())
            if len(self.step_rows()) == 1 and self.is_world_process_zero():
                half = self.args.bf16 or self.args.fp16 or self.recipe.model.dtype == "bfloat16"
                precision = "bfloat16" if half else "float32"
                engine = self.recipe.rollouts.engine
                for line in compared_engines(logs, engine, precision=precision):
                    print(line, flush=True)
            if is_equal_to_teachers(logs) and self.is_world_process_zero():
                print(
                    f"note         step {self.state.global_step}: every advantage is 0, for the "
                    "student equals its teachers: nothing is trained",
                    flush=True,
                )
            last = self.state.global_step >= self.state.max_steps
            for warning in check_health(self.step_rows(), self.recipe.guard, last=last):
                if self.is_world_process_zero():
                    print(f"warning      {warning}", flush=True)


# mean |difference| of a token's log-probability, as measured between vLLM on a CPU and the training
# of a model of 135 M: 7e-6 where both are float32; 0.03 to 0.04 where vLLM is in bfloat16, whose
# 0.6 M model had 9e-4; 0.04 to 0.05 where both are. The bounds between them are ours
ENGINE_DIFFERENCE = {"float32": 5e-4, "bfloat16": 0.1}


def compared_engines(logs: Mapping[str, float], engine: str, *, precision: str) -> list[str]:
    """Lines on how far the log-probabilities of another engine are from the trainer's; `precision`
    is what the policy is trained in."""
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


def _never(*_args: Any, **_kwargs: Any) -> list[float]:
    raise AssertionError("groups are rewarded, not single completions")
