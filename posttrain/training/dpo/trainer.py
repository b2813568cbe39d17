"""TRL's `DPOTrainer` on pairs of token ids, with the paper's loss over the whole batch.

TRL tokenises texts, caches reference sums its own way and averages its SFT term by micro-batch:
those hooks are overridden here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

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

# distance of the first preference loss from ln 2, its value where policy and reference are equal
FIRST_LOSS_LIMIT = 1e-4
FIRST_LOSS_LIMIT_HALF = 1e-2
# mean change of the chosen log-probability, in nats a token, below which it counts as fallen: the
# pairs then teach to avoid what they prefer
CHOSEN_FLOOR = -0.02


class PairTrainer(Resumable, DPOTrainer):
    """Trainer whose optimiser step is a batch of pairs, whatever the layout of processes.

    Args:
        pairs: all pairs of the data.
        layout: resolved layout of the collator.
        loss: weights and forms of the terms.
        store: log-probabilities under the reference, on disk or still to compute.
    """

    data_collator: Any

    def __init__(
        self,
        *args: Any,
        pairs: Pairs,
        layout: str,
        loss: LossConfig,
        store: ReferenceStore,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, train_dataset=pairs.data, **kwargs)
        self.print_steps(StepLines(describe_step))
        disable_attention_dropout(self.model)
        self.use_cpu_heads(self.base_model)
        self.pairs = pairs
        self.layout = layout
        self.loss = loss
        self.store = store
        # metrics before the first update
        self.first: dict[str, float] | None = None
        self.reference: Reference | None = None
        self._step_metrics = PairMetrics()
        # sampled tokens of the chosen of the current step, over all processes
        self._step_chosen_tokens = 0
        device = self.args.device
        self._chosen_counts = torch.from_numpy(pairs.chosen.sampled).to(device)
        self._rejected_counts = torch.from_numpy(pairs.rejected.sampled).to(device)
        self._category = torch.from_numpy(pairs.category).to(device)

    # ---- hooks of TRL that would process texts; the pairs hold token ids already ----

    def _prepare_dataset(self, dataset: Dataset, *_args: Any, **_kwargs: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_args: Any, **_kwargs: Any) -> Dataset:
        # too early: _run_epoch computes them when a sharded model is on its devices
        return dataset

    # ---- pairs of a step ----

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return pair_order(
            lengths=self.pairs.total_lengths.tolist(),
            batch=self.global_batch,
            steps=self.args.max_steps,
            seed=self.args.data_seed,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Draw the micro-batches of a step, and count its tokens over all processes."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        rows = torch.cat([batch["row"] for batch in batches]).cpu().numpy()
        local_counts = [
            self.pairs.total_lengths[rows].sum(),
            self.pairs.chosen.sampled[rows].sum(),
            self.pairs.rejected.sampled[rows].sum(),
        ]
        counts = self.accelerator.reduce(torch.tensor(local_counts, device=device), "sum")
        tokens, chosen_tokens, rejected_tokens = counts.tolist()
        self._step_chosen_tokens = chosen_tokens
        self.tokens_seen += tokens
        self.trained_seen += chosen_tokens + rejected_tokens
        return batches, items

    # ---- the reference ----

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Run an epoch, with the reference's log-probabilities loaded or computed before."""
        if self.reference is None:
            self.reference = self.load_reference(kwargs["model"])
        super()._run_epoch(*args, **kwargs)

    def load_reference(self, model: Any) -> Reference:
        """Load the reference's log-probabilities, and first compute those that are not on disk.

        They are computed before the first step, while the policy still is the reference.

        Raises:
            DataError: some are not on disk, and the policy has been trained already.
        """
        broadcast = [self.store.missing()]
        # a list, which the main process fills on the others
        broadcast_object_list(broadcast)
        missing = broadcast[0]
        plain_model = self.accelerator.unwrap_model(self.model)
        adapted = isinstance(plain_model, PeftModel)
        if missing and self.state.global_step and not adapted:
            raise DataError(
                f"{self.store.path} lacks {len(missing)} shards, and the policy has been trained "
                f"for {self.state.global_step} steps: the reference is gone. Delete "
                f"{self.args.output_dir} to start anew"
            )
        with use_adapter(plain_model, adapter_name=None) if adapted else contextlib.nullcontext():
            for shard in missing:
                scores = self._score_shard(model, shard)
                if self.is_world_process_zero():
                    print(f"reference    {shard + 1}/{len(self.store.shards)} shards", flush=True)
                    self.store.write(shard, **scores)
        self.accelerator.wait_for_everyone()
        return self.store.load()

    def _score_shard(self, model: Any, shard: int) -> dict[str, Any]:
        """Compute the values of a shard for `store.write`, on every process."""
        accelerator = self.accelerator
        processes = accelerator.num_processes
        rows = self.store.shards[shard]
        micro_batch = self.args.per_device_train_batch_size
        starts = range(0, len(rows), micro_batch)
        # each process fills in its batches; the sum over processes puts them together
        sums = torch.zeros(2, len(rows), dtype=torch.float64, device=accelerator.device)
        # a sharded model runs on all processes at once, so all need the same number of passes:
        # those without a batch left repeat the last one
        passes = math.ceil(len(starts) / processes) * processes
        model.eval()
        with torch.no_grad():
            for number in range(accelerator.process_index, passes, processes):
                start = starts[min(number, len(starts) - 1)]
                end = min(start + micro_batch, len(rows))
                batch_rows = rows[start:end].tolist()
                inputs = self.data_collator([self.pairs.data[row] for row in batch_rows])
                scored = self.score(model, self._prepare_inputs(inputs))
                if number < len(starts):
                    sums[0, start:end] = scored.chosen
                    sums[1, start:end] = scored.rejected
        model.train()
        chosen, rejected = accelerator.reduce(sums, "sum").cpu().numpy()
        return {"chosen": chosen, "rejected": rejected}

    def score(self, model: Any, inputs: dict[str, torch.Tensor]) -> ScoredPairs:
        """Log-probabilities of the pairs of a collated micro-batch."""
        (log_probs,) = score_labels(model, inputs, "log_probs")
        return score_pairs(log_probs, inputs["labels"], inputs["segment"], pairs=len(inputs["row"]))

    def probe(self, inputs: dict[str, torch.Tensor]) -> ScoredPairs:
        """Score a micro-batch before training, without dropout and gradient."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self.score(self.model, self._prepare_inputs(inputs))
        finally:
            self.model.train(training)

    # ---- loss ----

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Part of the batch's loss in this micro-batch; see `dpo/loss.py` for the formula."""
        assert self.reference is not None
        scored = self.score(model, inputs)
        rows = inputs["row"]
        terms = pair_terms(scored, reference=self.reference.select(rows), loss=self.loss)
        counts = (self._chosen_counts[rows], self._rejected_counts[rows])
        self._step_metrics.add(terms, counts=counts, category=self._category[rows])
        accumulation = self.current_gradient_accumulation_steps
        micro_batches = accumulation * self.accelerator.num_processes
        mean_scale = micro_batches / self._step_chosen_tokens
        loss = total_loss(terms, self.loss, mean_scale=mean_scale).float()
        return self.checked_scale(loss, 1 / accumulation)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the parent's step, and check the preference loss of the batch before any update."""
        loss = super().training_step(*args, **kwargs)
        before_first_update = self.state.global_step == 0 and self.accelerator.sync_gradients
        if before_first_update:
            self.first = self._step_metrics.means(self.accelerator)
            if self.is_world_process_zero():
                print(first_step_line(self.first, self.loss), flush=True)
            self._check_first_loss(self.first["preference_loss"])
        return loss

    def _check_first_loss(self, loss: float) -> None:
        """Refuse a first preference loss that differs from ln 2, as policy and reference then do.

        Raises:
            ConfigError: with the loss.
        """
        dtype = self.store.key.dtype
        limit = FIRST_LOSS_LIMIT if dtype == "float32" else FIRST_LOSS_LIMIT_HALF
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
        """Means over the pairs of the steps since the last row of the log."""
        means = self._step_metrics.means(self.accelerator)
        self._step_metrics.reset()
        if chosen_fell(means["chosen_change_per_token"]):
            means["chosen_below_floor"] = 1
        return means

    def epochs_drawn(self) -> float:
        """Pairs drawn so far, divided by the pairs of the data set."""
        return self.state.global_step * self.global_batch / len(self.pairs)


def chosen_fell(change_per_token: float) -> bool:
    """True if the chosen completions lost more log-probability than may be."""
    return change_per_token < CHOSEN_FLOOR


def first_step_line(first: dict[str, float], loss: LossConfig) -> str:
    """Line on the terms before the first update, with both forms of the SFT term."""
    forms: list[str] = []
    for form in ("sum", "mean"):
        used = " (used)" if form == loss.sft_form else ""
        forms.append(f"{form} {first[f'sft_{form}']:.4f}{used}")
    weighted = loss.sft_weight * first[f"sft_{loss.sft_form}"]
    return (
        f"first step   preference {first['preference_loss']:.6f} (ln 2 = {math.log(2):.6f}); "
        f"SFT on chosen: {', '.join(forms)}; it adds {loss.sft_weight:g} × = {weighted:.4f}"
    )


def describe_step(row: dict[str, Any]) -> str | None:
    """Text to print for a row of the log; None where the row is not a step's."""
    if "preference_loss" not in row:
        return None
    warning = "  (fell)" if "chosen_below_floor" in row else ""
    return (
        f"loss {row['loss']:.4f}  preference {row['preference_loss']:.4f}  "
        f"accuracy {row['accuracy']:.2f}  margin {row['margin']:+.4f}  "
        f"chosen {row['chosen_change']:+.2f}{warning}  rejected {row['rejected_change']:+.2f}"
    )


def pair_order(*, lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Order of the pairs over a whole run, the same for every layout of processes.

        pair_order(lengths=[30, 90, 60, 40], batch=3, steps=2, seed=0)
        → [1, 2, 0,   1, 3, 0]     the second step ends one epoch and begins the next

    A pair is drawn again only when all have been drawn. In a step the longer pairs come first:
    micro-batches then hold pairs of like length, and no mean over a step changes.

    Args:
        lengths: tokens of each pair.
        batch: pairs per step.
        steps: steps of the run.
        seed: of the recipe.
    """
    order: list[int] = []
    for step in range(steps):
        rows = rows_drawn(count=len(lengths), per_step=batch, step=step, seed=seed)
        order += sorted(rows, key=lambda row: (-lengths[row], row))
    return order
