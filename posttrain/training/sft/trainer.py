"""TRL's `SFTTrainer` on packed shards. It adds the order of packs, an evaluation loss per trained
token, the expert balance term and exact token counts."""

from __future__ import annotations

import math
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

# of a held-out set, from which the normal distribution gives an interval; ours
_LEAST_BATCHES = 10


def describe_step(row: dict[str, Any]) -> str | None:
    """Text to print for a row of the log: a step, or a held-out loss; None for other rows."""
    if "loss" in row:
        parts = [f"loss {row['loss']:.4f}"]
        # not every kernel computes it
        if "mean_token_accuracy" in row:
            parts.append(f"token accuracy {row['mean_token_accuracy']:.2f}")
        if "grad_norm" in row:
            parts.append(f"gradient {row['grad_norm']:.2f}")
        parts += [f"learning rate {row['learning_rate']:.2e}", f"{row['tokens']:,} tokens"]
        return "  ".join(parts)
    for key, value in row.items():
        group = held_out_group(key)
        if group is not None:
            return f"held-out loss {value:.4f} ({group})"
    return None


def held_out_group(key: str) -> str | None:
    """Group of the held-out loss that a log names by `key`; "all" for that over all groups.

    None where the key is not that of a held-out loss.
    """
    if not key.startswith("eval_") or not key.endswith("_loss"):
        return None
    return key.removeprefix("eval_").removesuffix("loss").removesuffix("_") or "all"


def standard_error(sums: torch.Tensor) -> float | None:
    """Standard error of a held-out loss per trained token, over the batches it was measured on.

    None for few batches.

    Args:
        sums: over the batches, of losses, of trained tokens, of 1, of squared losses, of losses
            times tokens, and of squared tokens.
    """
    losses, tokens, batches, squared_losses, products, squared_tokens = sums.tolist()
    if batches < _LEAST_BATCHES:
        return None
    # a batch's loss less what its tokens let expect: the ratio of two sums (Cochran 1977, 6.4)
    ratio = losses / tokens
    residuals = squared_losses - 2 * ratio * products + ratio**2 * squared_tokens
    return math.sqrt(max(residuals, 0.0) * batches / (batches - 1)) / tokens


class PackedSFTTrainer(Resumable, SFTTrainer):
    """Trainer whose optimiser step is `global_batch` packs, whatever the layout of processes.

    Args:
        document_masking: resolved layout of the collator: "varlen", "block_diagonal" or "unpacked".
        balance_coefficient: weight of the expert balance term; 0 adds no hooks to the routers.
        keep_epochs: epochs after which `keep_model` is called with the trainer and the epoch, on
            every process, before any later checkpoint.
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
        """Prepare the model; refuse a balance term under reentrant gradient checkpointing."""
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
        self._kept_epochs: set[int] = set()
        # sequences of the current step, over all processes
        self._step_sequences = 0
        # of each held-out group, as `standard_error` takes them
        self._eval_sums: list[torch.Tensor] = []
        self._order: EpochOrder | None = None

    # ---- packs of a step ----

    @property
    def packs(self) -> int:
        """Number of training packs, without the filler row."""
        return len(self.train_dataset) - 1

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        self._order = EpochOrder(
            packs=self.packs, global_batch=self.global_batch, seed=self.args.data_seed
        )
        return self._order

    def get_train_dataloader(self) -> Any:
        """Build the parent's loader, in which every batch of an epoch is full."""
        loader = super().get_train_dataloader()
        assert self._order is not None, "made with the sampler"
        # accelerate cuts the metrics of the last batch to the rows left in the data set, of which
        # the filler, drawn several times, is only one
        dataset: Any = loader.dataset
        dataset.total_dataset_length = self._order.filled
        return loader

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        batch = self.args.eval_batch_size * self.args.world_size
        return EpochOrder(packs=len(eval_dataset) - 1, global_batch=batch, seed=None)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # a sampler inside a resumed, sharded loader does not get the epoch from accelerate
        if self._order is not None:
            self._order.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Draw the micro-batches of a step, and count tokens and sequences over all processes."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.zeros(3, dtype=torch.long)
        for batch in batches:
            ids, sequences = sequence_ids(batch)
            tokens = int((ids >= 0).sum())
            trained = int((batch["labels"] != IGNORED).sum())
            counts += torch.tensor([tokens, trained, sequences])
        counts = self.accelerator.reduce(counts.to(device), "sum")
        # processes that share a sequence have each counted the whole of it
        tokens, trained, sequences = (counts // self.get_cp_size()).tolist()
        self.tokens_seen += tokens
        self.trained_seen += trained
        self._step_sequences = sequences
        return batches, items

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Prepare inputs as the parent does; where processes share sequences, mask no padding.

        Padding stands behind its sequence, where causal attention leaves it out. With a mask of
        padding the model would build one of all pairs of positions, which is dropped then.
        """
        inputs = super()._prepare_inputs(inputs)
        if self.get_cp_size() > 1:
            inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        return inputs

    # ---- losses ----

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Loss per trained token as of the parent, plus the balance term while training."""
        if not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.balance is None:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return self.checked_scale(loss)
        assert not return_outputs
        ids, count = sequence_ids(inputs)
        with self.balance.collect():
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
        balance_sum, violation = self.balance.take(ids, count)
        # the sum over micro-batches is the mean over the sequences of the global batch: gradients
        # add up over micro-batches, and DDP averages them over processes
        scale = self.accelerator.num_processes / max(self._step_sequences, 1)
        balance = balance_sum * scale
        process_mean = self.accelerator.reduce(balance.detach(), "mean").item()
        violation_mean = self.accelerator.reduce(
            torch.tensor(violation, device=loss.device), "mean"
        ).item()
        metrics = self._metrics["train"]
        # the log averages over micro-batches, but the balance term is a sum over them
        metrics["balance"].append(process_mean * self.current_gradient_accumulation_steps)
        metrics["max_violation"].append(violation_mean)
        return self.checked_scale(loss + self.balance_coefficient * balance)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss per trained token of the whole split, where the parent averages batch means."""
        # wrapped already, since this runs between training steps
        model = self._wrap_model(self.model, training=False)
        model.eval()
        local_sum = torch.zeros((), device=self.args.device)
        local_count = 0
        moments = torch.zeros(4, dtype=torch.float64)
        for inputs in dataloader:
            inputs = self._prepare_inputs(inputs)
            batch_count = int((inputs["labels"] != IGNORED).sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs)
            # the parent's loss is a mean over the batch: turn it back into a sum
            local_sum += loss.detach() * batch_count
            local_count += batch_count
            if batch_count:
                batch_sum = float(loss) * batch_count
                products = [batch_sum**2, batch_sum * batch_count, batch_count**2]
                moments += torch.tensor([1, *products], dtype=torch.float64)
        sums = torch.tensor([float(local_sum), float(local_count), *moments], dtype=torch.float64)
        sums = self.accelerator.reduce(sums.to(self.args.device), "sum")
        loss_sum, trained = sums[:2].tolist()
        self._eval_sums.append(sums)
        # TRL would log its means of batch means as well
        self._metrics["eval"].clear()
        metrics = {
            f"{metric_key_prefix}_loss": loss_sum / max(trained, 1),
            f"{metric_key_prefix}_trained": int(trained) // self.get_cp_size(),
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
        """Evaluate each group, and add `eval_loss`: the mean per trained token over all groups."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(dataset, dict):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._eval_sums.clear()
        # the parent calls this method again for each group
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        sums = torch.stack(self._eval_sums).sum(0)
        loss_sum, trained = sums[:2].tolist()
        overall = {f"{metric_key_prefix}_loss": loss_sum / max(trained, 1)}
        # processes that share a sequence have each counted the whole of it
        error = standard_error(sums / self.get_cp_size())
        if error is not None:
            overall[f"{metric_key_prefix}_error"] = error
        self.log(dict(overall))
        return metrics | overall

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log without the token count of the parent, which counts padding and restarts at 0."""
        self._metrics["train"].pop("num_tokens", None)
        super().log(logs, start_time)

    # ---- checkpoints ----

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Keep the model of an epoch that ends here, then do as the parent does."""
        # kept models are written first, so that a resume checkpoint implies that they exist
        epoch = self._epoch_to_keep()
        if self.keep_model is not None and epoch is not None:
            self.keep_model(self, epoch)
            self._kept_epochs.add(epoch)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _epoch_to_keep(self) -> int | None:
        """Epoch that ends at this step and whose model is to be kept and is not yet."""
        epoch = float(self.state.epoch or 0.0)
        if not epoch.is_integer():
            return None
        pending = set(self.keep_epochs) - self._kept_epochs
        return int(epoch) if int(epoch) in pending else None
