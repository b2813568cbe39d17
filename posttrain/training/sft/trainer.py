"""TRL's `SFTTrainer` on packed shards, with what it lacks and nothing else: the order of packs, an
evaluation loss by trained tokens, the expert balance term, exact counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers.trainer_utils import EvalLoopOutput
from trl.trainer.sft_trainer import SFTTrainer

from posttrain.errors import ConfigError
from posttrain.tokens.encode import IGNORED
from posttrain.training.document_masking import sequence_ids
from posttrain.training.moe import ExpertBalance
from posttrain.training.order import EpochOrder
from posttrain.training.output import StepLines
from posttrain.training.trainer import Resumable


def describe_step(row: dict[str, Any]) -> str | None:
    """The figures of a row to print: of a step, or of the held-out packs of all or one group."""
    if "loss" in row:
        figures = [f"loss {row['loss']:.4f}"]
        if "mean_token_accuracy" in row:  # not of every kernel
            figures.append(f"token accuracy {row['mean_token_accuracy']:.2f}")
        if "grad_norm" in row:
            figures.append(f"gradient {row['grad_norm']:.2f}")
        figures += [f"learning rate {row['learning_rate']:.2e}", f"{row['tokens']:,} tokens"]
        return "  ".join(figures)
    held_out = [key for key in row if key.startswith("eval_") and key.endswith("loss")]
    if not held_out:
        return None
    [key] = held_out
    group = key.removeprefix("eval_").removesuffix("loss").removesuffix("_") or "all"
    return f"held-out loss {row[key]:.4f} ({group})"


class PackedSFTTrainer(Resumable, SFTTrainer):
    """One optimiser step = `global_batch` packs, whatever the layout of processes.

    Args:
        balance_coefficient: weight of the expert balance term; 0 leaves the routers unhooked.
        keep_epochs: epochs after which `keep_model(epoch)` is called, on every process, before any
            later checkpoint.
    """

    train_dataset: Any
    eval_dataset: Any
    data_collator: Any

    def __init__(
        self,
        *args: Any,
        document_masking: str,
        balance_coefficient: float = 0.0,
        keep_epochs: Sequence[int] = (),
        keep_model: Callable[[PackedSFTTrainer, int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        reentrant = (self.args.gradient_checkpointing_kwargs or {}).get("use_reentrant")
        if balance_coefficient and self.args.gradient_checkpointing and reentrant:
            raise ConfigError(
                "balance.coefficient cannot be used here: TRL forces reentrant gradient "
                "checkpointing (PEFT with ZeRO-3), under which the routers have no graph"
            )
        self.print_steps(StepLines(describe_step))
        self.use_cpu_heads(self.base_model)
        self.document_masking = document_masking
        self.balance_coefficient = balance_coefficient
        self.balance = ExpertBalance(self.model) if balance_coefficient else None
        self.keep_epochs = tuple(keep_epochs)
        self.keep_model = keep_model
        self._kept: set[int] = set()
        self._step_sequences = 0
        self._eval_sums: list[tuple[float, int]] = []
        self._order: EpochOrder | None = None

    # ---- which packs a step sees ----

    @property
    def packs(self) -> int:
        """Training packs, the filler row left out."""
        return len(self.train_dataset) - 1

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        self._order = EpochOrder(
            packs=self.packs, global_batch=self.global_batch, seed=self.args.data_seed
        )
        return self._order

    def get_train_dataloader(self) -> Any:
        """As the parent; every batch of an epoch is whole."""
        loader = super().get_train_dataloader()
        # by the rows alone, filler included, accelerate would cut the last batch's metrics
        assert self._order is not None, "made with the sampler"
        data: Any = loader.dataset
        data.total_dataset_length = self._order.filled
        return loader

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        batch = self.args.eval_batch_size * self.args.world_size
        return EpochOrder(packs=len(eval_dataset) - 1, global_batch=batch, seed=None)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # accelerate loses the epoch on the way to a sampler inside a resumed, sharded loader
        if self._order is not None:
            self._order.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """As the parent; also counts tokens and sequences of the global batch."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.zeros(3, dtype=torch.long)
        for batch in batches:
            ids, sequences = sequence_ids(batch)
            trained = batch["labels"] != IGNORED
            counts += torch.tensor([int((ids >= 0).sum()), int(trained.sum()), sequences])
        tokens, trained, sequences = self.accelerator.reduce(counts.to(device), "sum").tolist()
        self.tokens_seen += tokens
        self.trained_seen += trained
        self._step_sequences = sequences
        return batches, items

    # ---- losses ----

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The parent's loss per trained token, plus the balance term while training."""
        if not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.balance is None:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return self.checked_scale(loss)
        assert not return_outputs
        ids, count = sequence_ids(inputs)
        with self.balance.collect():
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
        total, violation = self.balance.take(ids, count)
        # DDP averages gradients over processes: scale so that the mean is over the global batch
        share = self.accelerator.num_processes / max(self._step_sequences, 1)
        balance = total * share
        parts = self.current_gradient_accumulation_steps
        for name, value, times in (
            ("balance", balance.detach(), parts),
            ("max_violation", torch.tensor(violation, device=loss.device), 1),
        ):
            mean = self.accelerator.reduce(value, "mean").item()
            self._metrics["train"][name].append(mean * times)
        return self.checked_scale(loss + self.balance_coefficient * balance)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss per trained token of the whole split (the parent averages batch means)."""
        model = self._wrap_model(self.model, training=False)  # prepared, for training goes on
        model.eval()
        total, count = torch.zeros((), device=self.args.device), 0
        for inputs in dataloader:
            inputs = self._prepare_inputs(inputs)
            trained = int((inputs["labels"] != IGNORED).sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs)
            # the parent's loss is a mean over the batch: undo it, token by token
            total += loss.detach() * trained
            count += trained
        sums = torch.tensor([float(total), float(count)], dtype=torch.float64)
        loss_sum, trained = self.accelerator.reduce(sums.to(self.args.device), "sum").tolist()
        self._eval_sums.append((loss_sum, int(trained)))
        # TRL adds its own means of batch means on log; only exact ones are wanted here
        self._metrics["eval"].clear()
        metrics = {
            f"{metric_key_prefix}_loss": loss_sum / max(trained, 1),
            f"{metric_key_prefix}_trained": int(trained),
        }
        return EvalLoopOutput(
            predictions=np.empty(0),
            label_ids=None,
            metrics=metrics,
            num_samples=len(dataloader.dataset) - 1,
        )

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """As the parent, by group; adds `eval_loss` over all groups, weighted by trained tokens."""
        by_group = isinstance(self.eval_dataset if eval_dataset is None else eval_dataset, dict)
        if not by_group:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._eval_sums.clear()
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        total = sum(loss for loss, _ in self._eval_sums)
        trained = sum(count for _, count in self._eval_sums)
        overall = {f"{metric_key_prefix}_loss": total / max(trained, 1)}
        self.log(dict(overall))
        return metrics | overall

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # the parent's own count restarts at 0 on resume and counts padding
        self._metrics["train"].pop("num_tokens", None)
        super().log(logs, start_time)

    # ---- checkpoints ----

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # kept epochs come first: a resume checkpoint then implies that they exist
        if self.keep_model is not None and (epoch := self._epoch_to_keep()) is not None:
            self.keep_model(self, epoch)
            self._kept.add(epoch)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _epoch_to_keep(self) -> int | None:
        epoch = float(self.state.epoch or 0.0)
        due = epoch.is_integer() and int(epoch) in self.keep_epochs and int(epoch) not in self._kept
        return int(epoch) if due else None
