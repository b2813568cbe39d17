"""TRL's `DPOTrainer` on pairs of token ids, with the paper's loss over the whole batch.

TRL tokenises texts, keeps reference sums in a cache of its own and averages its SFT term by
micro-batch: those hooks are ours here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import PeftModel
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import use_adapter

from posttrain.config.dpo import LossConfig
from posttrain.errors import ConfigError, DataError
from posttrain.training.dpo.data import Pairs
from posttrain.training.dpo.loss import (
    PairMetrics,
    ScoredPairs,
    pair_terms,
    score_pairs,
    total_loss,
)
from posttrain.training.dpo.reference import Reference, ReferenceStore
from posttrain.training.order import rows_drawn
from posttrain.training.output import StepLines
from posttrain.training.trainer import Resumable, disable_attention_dropout, score_labels

# how far the first preference loss may be from ln 2: there policy and reference are one model
FIRST_LOSS, FIRST_LOSS_HALF = 1e-4, 1e-2


class PairTrainer(Resumable, DPOTrainer):
    """One optimiser step = `batch` pairs, whatever the layout of processes.

    Args:
        store: where the reference's log-probabilities are, or will be.
        chosen_floor: nats per token; below it the fall of the chosen is worth a warning.
    """

    data_collator: Any

    def __init__(
        self,
        *args: Any,
        pairs: Pairs,
        layout: str,
        loss: LossConfig,
        store: ReferenceStore,
        chosen_floor: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, train_dataset=pairs.data, **kwargs)
        self.print_steps(StepLines(describe_step))
        disable_attention_dropout(self.model)
        self.use_cpu_heads(self.base_model)
        self.pairs, self.layout, self.loss = pairs, layout, loss
        self.store, self.chosen_floor = store, chosen_floor
        self.first: dict[str, float] | None = None
        self.reference: Reference | None = None
        self._step_metrics = PairMetrics(kl=bool(loss.kl_weight))
        self._step_chosen = 0
        device = self.args.device
        sides = (pairs.chosen.sampled, pairs.rejected.sampled)
        self._counts = tuple(torch.from_numpy(side).to(device) for side in sides)
        self._category = torch.from_numpy(pairs.category).to(device)

    # ---- what TRL would make of texts, and is there already ----

    def _prepare_dataset(self, dataset: Dataset, *_args: Any, **_kwargs: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_args: Any, **_kwargs: Any) -> Dataset:
        # computed when the model is on its devices, sharded or not: see _run_epoch
        return dataset

    # ---- which pairs a step sees ----

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return pair_order(
            lengths=self.pairs.lengths.tolist(),
            batch=self.global_batch,
            steps=self.args.max_steps,
            seed=self.args.data_seed,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """As the parent; also counts the tokens of the whole batch."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        rows = torch.cat([batch["row"] for batch in batches]).cpu().numpy()
        sides = (self.pairs.chosen.sampled, self.pairs.rejected.sampled)
        local = [part[rows].sum() for part in (self.pairs.lengths, *sides)]
        counts = self.accelerator.reduce(torch.tensor(local, device=device), "sum").tolist()
        self._step_chosen = counts[1]
        self.tokens_seen += counts[0]
        self.trained_seen += counts[1] + counts[2]
        return batches, items

    # ---- the reference ----

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.reference is None:
            self.reference = self._load_reference(kwargs["model"])
        super()._run_epoch(*args, **kwargs)

    def _load_reference(self, model: Any) -> Reference:
        """Load what is on disk; compute the rest, before the first step, with this very model."""
        shared = [self.store.missing()]
        broadcast_object_list(shared)
        adapted = isinstance(self.accelerator.unwrap_model(self.model), PeftModel)
        if shared[0] and self.state.global_step and not adapted:
            raise DataError(
                f"{self.store.path} lacks {len(shared[0])} shards, and the policy has been trained "
                f"for {self.state.global_step} steps: the reference is gone. Delete "
                f"{self.args.output_dir} to start anew"
            )
        plain = self.accelerator.unwrap_model(self.model)
        with use_adapter(plain, adapter_name=None) if adapted else contextlib.nullcontext():
            for number in shared[0]:
                scores = self._score_shard(model, number)
                if self.is_world_process_zero():
                    done = number + 1
                    print(f"reference    {done}/{len(self.store.shards)} shards", flush=True)
                    self.store.write(number, **scores)
        self.accelerator.wait_for_everyone()
        return self.store.load()

    def _score_shard(self, model: Any, number: int) -> dict[str, Any]:
        """Values for `store.write`, on every process."""
        rows, accelerator = self.store.shards[number], self.accelerator
        batch, processes = self.args.per_device_train_batch_size, accelerator.num_processes
        starts = range(0, len(rows), batch)
        offsets = np.concatenate([[0], np.cumsum(self.store.chosen_counts[rows])])
        empty = {"dtype": torch.float64, "device": accelerator.device}
        sums, tokens = torch.zeros(2, len(rows), **empty), torch.zeros(int(offsets[-1]), **empty)
        model.eval()
        with torch.no_grad():
            # sharded models need as many passes on every process: some repeat the last one
            for mine in range(
                accelerator.process_index, -(-len(starts) // processes) * processes, processes
            ):
                start = starts[min(mine, len(starts) - 1)]
                end = min(start + batch, len(rows))
                inputs = self.data_collator(
                    [self.pairs.data[row] for row in rows[start:end].tolist()]
                )
                scored = self.score(model, self._prepare_inputs(inputs))
                if mine < len(starts):
                    sums[0, start:end], sums[1, start:end] = scored.chosen, scored.rejected
                    tokens[offsets[start] : offsets[end]] = scored.chosen_tokens
        model.train()
        chosen, rejected = accelerator.reduce(sums, "sum").cpu().numpy()
        tokens = accelerator.reduce(tokens, "sum").cpu().numpy() if self.store.key.tokens else None
        return {"chosen": chosen, "rejected": rejected, "tokens": tokens}

    def score(self, model: Any, inputs: dict[str, torch.Tensor]) -> ScoredPairs:
        """Log-probabilities of a collated micro-batch."""
        (log_probs,) = score_labels(model, inputs, "log_probs")
        labels, segment = inputs["labels"], inputs["segment"]
        return score_pairs(log_probs, labels, segment, pairs=len(inputs["row"]))

    def probe(self, inputs: dict[str, torch.Tensor]) -> ScoredPairs:
        """`score` before training, without dropout or gradient."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self.score(self.model, self._prepare_inputs(inputs))
        finally:
            self.model.train(training)

    # ---- loss ----

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """The micro-batch's part of the batch's loss; see `dpo/loss.py`."""
        assert self.reference is not None
        scored = self.score(model, inputs)
        rows = inputs["row"]
        reference, tokens = self.reference.of(rows)
        counts = (self._counts[0][rows], self._counts[1][rows])
        terms = pair_terms(
            scored,
            reference=reference,
            loss=self.loss,
            reference_tokens=tokens,
            chosen_counts=counts[0],
        )
        self._step_metrics.add(terms, counts=counts, category=self._category[rows])
        parts = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        loss = total_loss(terms, self.loss, mean_scale=parts / self._step_chosen).float()
        return self.checked_scale(loss, 1 / self.current_gradient_accumulation_steps)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the parent; looks at the whole batch before the first update."""
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step == 0 and self.accelerator.sync_gradients:
            self.first = self._step_metrics.means(self.accelerator)
            if self.is_world_process_zero():
                print(first_line(self.first, self.loss), flush=True)
            self._check_first(self.first["preference_loss"])
        return loss

    def _check_first(self, loss: float) -> None:
        dtype = self.store.key.dtype
        limit = FIRST_LOSS if dtype == "float32" else FIRST_LOSS_HALF
        if abs(loss - math.log(2)) <= limit:
            return
        raise ConfigError(
            f"the first preference loss is {loss:.6f}, not ln 2 = {math.log(2):.6f} (limit "
            f"{limit:g} in {dtype}): policy and reference differ before the first step. Delete "
            f"{self.store.path}; if that does not help, the model's forward pass is not "
            "deterministic"
        )

    # ---- log ----

    def step_figures(self) -> dict[str, float]:
        """The means over the pairs of the steps since the last row."""
        means = self._step_metrics.means(self.accelerator)
        self._step_metrics.reset()
        if means["chosen_change_per_token"] < self.chosen_floor:
            means["chosen_below_floor"] = 1
        return means

    def epochs_drawn(self) -> float:
        """Pairs drawn, in data sets."""
        return self.state.global_step * self.global_batch / len(self.pairs)


def first_line(first: dict[str, float], loss: LossConfig) -> str:
    """The terms before the first update, with both forms of the SFT term."""
    both = ", ".join(
        f"{form} {first[f'sft_{form}']:.4f}" + (" (used)" if form == loss.sft_form else "")
        for form in ("sum", "mean")
    )
    weighted = loss.sft_weight * first[f"sft_{loss.sft_form}"]
    return (
        f"first step   preference {first['preference_loss']:.6f} (ln 2 = {math.log(2):.6f}); "
        f"SFT on chosen: {both}; it adds {loss.sft_weight:g} × = {weighted:.4f}"
    )


def describe_step(row: dict[str, Any]) -> str | None:
    """The figures of a row worth a look."""
    if "preference_loss" not in row:
        return None
    fallen = "  (below chosen_floor)" if "chosen_below_floor" in row else ""
    return (
        f"loss {row['loss']:.4f}  preference {row['preference_loss']:.4f}  "
        f"accuracy {row['accuracy']:.2f}  margin {row['margin']:+.4f}  "
        f"chosen {row['chosen_change']:+.2f}{fallen}  rejected {row['rejected_change']:+.2f}"
    )


def pair_order(*, lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Rows of the pairs for a whole run, the same for every layout of processes.

        pair_order(lengths=[30, 90, 60, 40], batch=3, steps=2, seed=0)
        → [1, 2, 0,   1, 3, 0]     the first epoch's rest and the next one's beginning

    A pair is drawn a second time only when all have been drawn once. In a step the longer pairs
    come first: micro-batches then hold pairs of like length, and a mean over the step does not
    change.

    Args:
        lengths: tokens of each pair.
    """
    order: list[int] = []
    for step in range(steps):
        rows = rows_drawn(count=len(lengths), per_step=batch, step=step, seed=seed)
        order += sorted(rows, key=lambda row: (-lengths[row], row))
    return order
