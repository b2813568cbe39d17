"""DPO stage: pairs and a policy → a checkpoint artifact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.dpo_config import DPOConfig

from posttrain.config.dpo import DpoConfig
from posttrain.errors import ConfigError
from posttrain.models.load import embedding_rows
from posttrain.models.room import positions
from posttrain.runs import Manifest
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.arguments import LEARNING_RATE, batch_layout, make_arguments
from posttrain.training.dpo.data import (
    LAYOUTS,
    Pairs,
    check_pairs,
    choose_layout,
    load_pairs,
    make_pair_collator,
    probe_layout,
    shorter_pairs,
)
from posttrain.training.dpo.loss import describe_loss, sft_outweighs
from posttrain.training.dpo.reference import (
    ReferenceKey,
    ReferenceStore,
    initial_weights,
    longest_first,
)
from posttrain.training.dpo.trainer import CHOSEN_FLOOR, PairTrainer, chosen_fell
from posttrain.training.launch import Launched
from posttrain.training.output import REFERENCE, RunOutcome
from posttrain.training.plan import (
    Line,
    ModelSize,
    batch_line,
    check_batch,
    check_enough,
    checkpoint_bytes,
    time_line,
)
from posttrain.training.stage import DataStage, Preflight, PreparedRun

# steps of the paper's run (Appendix C)
MAX_STEPS = 50
# steps of a run on few pairs, at least: fewer would hardly move the policy
FITTING_STEPS = 8
# time of a forward pass, as a share of that of a training step
FORWARD_SHARE = 1 / 3
# metrics of the last step that go to the manifest and the card
LAST_METRICS = (
    "preference_loss",
    "margin",
    "accuracy",
    "chosen_logp",
    "rejected_logp",
    "chosen_change",
    "rejected_change",
    "chosen_change_per_token",
    "rejected_change_per_token",
)


def dpo_arguments(
    recipe: DpoConfig, *, out: Path, env: Mapping[str, str] = os.environ
) -> DPOConfig:
    """Build the trainer's arguments, with the accumulation that gives the recipe's batch.

    Args:
        out: folder of resume checkpoints.
        env: environment, in which the launcher passes on its settings.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, a batch that does not divide.
    """
    micro, processes = batch_layout(recipe.trainer, DPOConfig, env)
    return make_arguments(
        DPOConfig,
        recipe,
        out=out,
        env=env,
        counted_in_steps=True,
        defaults={
            "learning_rate": LEARNING_RATE,
            "max_steps": MAX_STEPS,
            "per_device_train_batch_size": micro,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 25,
        },
        decided={
            "gradient_accumulation_steps": accumulation(recipe.batch, micro, processes),
            "beta": recipe.loss.beta,
            "loss_type": ["sigmoid", "sft"],
            "loss_weights": [recipe.loss.preference_weight, recipe.loss.sft_weight],
            "max_length": None,
            # makes the trainer load no second model; `PairTrainer` computes the log-probabilities
            "precompute_ref_log_probs": True,
            "remove_unused_columns": False,
            # the row of the first step holds the loss before any update
            "logging_first_step": True,
        },
    )


def accumulation(batch: int, micro: int, processes: int) -> int:
    """Micro-batches of `micro` pairs that each process adds up in one optimiser step.

    Raises:
        ConfigError: the batch does not divide; with the micro-batches by which it does.
    """
    if batch % (micro * processes):
        divisors = _micro_batches(batch, processes)
        if divisors:
            sizes = ", ".join(str(size) for size in divisors)
            hint = f"trainer.per_device_train_batch_size may be {sizes}"
        else:
            hint = f"batch must be a multiple of {processes}"
        raise ConfigError(
            f"batch {batch} is no multiple of {micro} pairs × {processes} process(es); {hint}"
        )
    return batch // (micro * processes)


def _micro_batches(batch: int, processes: int) -> list[int]:
    """Sizes of a micro-batch that divide a batch among processes."""
    sizes = range(1, batch // processes + 1)
    return [size for size in sizes if batch % (size * processes) == 0]


def fitting_settings(
    draws: int, *, batch: int, processes: int, micro: int, warmup: float
) -> dict[str, int] | None:
    """Batch, steps, micro-batch and warm-up of a run that draws at most `draws` pairs.

    Args:
        draws: number of pairs, times the epochs.
        batch: pairs of a step in the recipe, which the run does not exceed.
        micro: pairs per micro-batch in the recipe.
        warmup: warm-up of the recipe; below 1 it is a share of all steps, which fits any run.

    Returns:
        The settings by the keys of the recipe; None where there are fewer pairs than processes.
    """
    # processes times the largest power of two that leaves enough steps
    fitting_batch = processes
    while 2 * fitting_batch <= batch and 2 * fitting_batch * FITTING_STEPS <= draws:
        fitting_batch *= 2
    steps = draws // fitting_batch
    if not steps:
        return None
    sizes = _micro_batches(fitting_batch, processes)
    fitting_micro = max(size for size in sizes if size <= max(micro, 1))
    settings = {
        "batch": fitting_batch,
        "trainer.max_steps": steps,
        "trainer.per_device_train_batch_size": fitting_micro,
    }
    if warmup >= 1:
        settings["trainer.warmup_steps"] = min(int(warmup), steps // 10)
    return settings


def fit_recipe(
    recipe: DpoConfig, pairs: int, *, env: Mapping[str, str] = os.environ
) -> tuple[DpoConfig, str | None]:
    """Lower batch and steps of a recipe to what its pairs can fill.

    Returns:
        The new recipe and a sentence on the changes; the recipe itself and None where the pairs are
        enough for it, or too few for any run.
    """
    trainer = recipe.trainer
    steps = trainer.get("max_steps", MAX_STEPS)
    draws = pairs * recipe.max_epochs
    if recipe.batch * steps <= draws:
        return recipe, None
    micro, processes = batch_layout(trainer, DPOConfig, env)
    warmup = trainer.get("warmup_steps", 0)
    settings = fitting_settings(
        draws, batch=recipe.batch, processes=processes, micro=micro, warmup=warmup
    )
    if settings is None:
        return recipe, None
    recipe_settings = {
        "batch": recipe.batch,
        "trainer.max_steps": steps,
        "trainer.per_device_train_batch_size": micro,
        "trainer.warmup_steps": warmup,
    }
    changes = [
        f"{key} {recipe_settings[key]:g} → {value}"
        for key, value in settings.items()
        if value != recipe_settings[key]
    ]
    fitted_trainer = {
        key.removeprefix("trainer."): value
        for key, value in settings.items()
        if key.startswith("trainer.")
    }
    fitted = recipe.model_copy(
        update={"batch": settings["batch"], "trainer": trainer | fitted_trainer}
    )
    return fitted, (
        f"{pairs:,} pairs × max_epochs {recipe.max_epochs} are fewer than the recipe draws "
        f"({recipe.batch} × {steps}): {', '.join(changes)}"
    )


class DpoStage(DataStage[DpoConfig, PairTrainer]):
    """Direct preference optimisation on the pairs of `build_dpo`."""

    method = "dpo"
    data_kind = "dpo_data"
    scratch = REFERENCE

    def __init__(self, recipe: DpoConfig) -> None:
        super().__init__(recipe)
        self.fitted: str | None = None
        if recipe.few_pairs == "fit":
            # before anything else: batch and steps are part of the run's identity
            self.recipe, self.fitted = fit_recipe(recipe, len(self.pairs))

    def arguments(self, out: Path) -> DPOConfig:
        return dpo_arguments(self.recipe, out=out)

    def load_data(self, args: DPOConfig, special: SpecialTokens) -> Pairs:
        """Check that the pairs fit the policy's template and are enough for the run."""
        recipe = self.recipe
        pairs_template = self.data.template_digest
        policy_template = self.policy.template_digest if self.policy is not None else None
        if policy_template and pairs_template and policy_template != pairs_template:
            raise ConfigError(
                f"the pairs were rendered with template {pairs_template[:12]}, the policy was "
                f"trained with {policy_template[:12]}; sample and build the pairs with the "
                "policy's template"
            )
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        settings = fitting_settings(
            len(self.pairs) * recipe.max_epochs,
            batch=recipe.batch,
            processes=processes,
            micro=args.per_device_train_batch_size,
            warmup=args.warmup_steps,
        )
        fitting = " ".join(f"{key}={value}" for key, value in (settings or {}).items())
        check_enough(
            len(self.pairs),
            name="pairs",
            batch=recipe.batch,
            batches=args.max_steps,
            max_epochs=recipe.max_epochs,
            fitting=fitting,
        )
        return self.pairs

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs of the recipe's data."""
        return load_pairs(Path(self.recipe.data))

    def data_contains(self, text: str, token: int) -> bool:
        """Search the pairs for a token: a completion contains whatever the policy sampled."""
        return self.pairs.contains(token)

    def make_trainer(self, data: Pairs, special: SpecialTokens, **parts: Any) -> PairTrainer:
        """Build the trainer with its layout and the store of the reference."""
        recipe = self.recipe
        model = parts["model"]
        # a row of the shared layout holds the prompt once
        longest = int((data.prompt + data.chosen.ids + data.rejected.ids).max())
        layout = choose_layout(recipe.layout, model, longest=longest)
        return PairTrainer(
            **parts,
            data_collator=make_pair_collator(layout, special.pad_id),
            pairs=data,
            layout=layout,
            loss=recipe.loss,
            store=self._reference_store(parts["args"], model, data),
        )

    def _reference_store(
        self, args: DPOConfig, model: PreTrainedModel, pairs: Pairs
    ) -> ReferenceStore:
        """Store of the reference's log-probabilities, under the key of this run's inputs."""
        recipe = self.recipe
        weights_dtype = str(model.dtype).removeprefix("torch.")
        compute_dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else weights_dtype
        dtype = weights_dtype
        if compute_dtype != weights_dtype:
            dtype = f"{weights_dtype}, {compute_dtype} autocast"
        quantized = recipe.adapter is not None and recipe.adapter.method == "qlora"
        key = ReferenceKey(
            weights=initial_weights(recipe.model, self.policy),
            template=self.data.template_digest,
            data=self.data.digest,
            dtype=dtype,
            quantization="nf4" if quantized else None,
        )
        folder = Path(recipe.reference_cache or self.out / REFERENCE)
        order = longest_first(pairs.total_lengths)
        return ReferenceStore(folder, key, order=order)

    def check(self, trainer: PairTrainer, special: SpecialTokens, launched: Launched) -> Preflight:
        """Check the batch, and the pairs against the model."""
        check_batch(trainer, self.recipe.batch, name="pairs")
        model = trainer.model
        tokens = check_pairs(
            trainer.pairs,
            embeddings=embedding_rows(model),
            positions=positions(model.config),
        )
        preflight = Preflight([("tokens", tokens)], {"layout": trainer.layout})
        if self.fitted is not None:
            preflight.lines.append(("fitted", self.fitted))
            preflight.stats["fitted_to_pairs"] = self.fitted
        return preflight

    def probe(self, trainer: PairTrainer) -> Preflight:
        """Measure on the model that the layout keeps completions apart."""
        layout = trainer.layout
        dtype = str(trainer.base_model.dtype).removeprefix("torch.")
        pad_id = cast(PreTrainedTokenizerBase, trainer.processing_class).pad_token_id
        difference, sft_terms = probe_layout(
            trainer.probe, trainer.pairs, layout, pad_id=cast(int, pad_id), dtype=dtype
        )
        text = f"{layout}: log-probability a token in its batch vs alone {difference:.1e}"
        lines = [("probe", text)]
        warning = sft_outweighs(self.recipe.loss, sft_terms)
        if warning is not None:
            lines.append(("warning", warning))
        # rounded to one digit: the last bits differ between machines, the manifest must not
        return Preflight(lines, {"batch_vs_alone": float(f"{difference:.0e}")})

    def largest_batch(self, trainer: PairTrainer) -> Mapping[str, torch.Tensor]:
        """Collate the longest pairs."""
        micro_batch = trainer.args.per_device_train_batch_size
        rows = longest_first(trainer.pairs.total_lengths)[:micro_batch].tolist()
        return trainer.data_collator([trainer.pairs.data[row] for row in rows])

    def plan(
        self, prepared: PreparedRun[PairTrainer], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Lines of the plan, and an upper bound on the bytes written to disk.

        The lines tell of pairs, tokens, steps and the reference; parts of a micro-batch are timed.
        """
        trainer = prepared.trainer
        args = trainer.args
        pairs = trainer.pairs
        store = trainer.store
        pairs_drawn = trainer.global_batch * args.max_steps
        tokens = int(pairs.total_lengths.sum())
        trained = int(pairs.chosen.sampled.sum() + pairs.rejected.sampled.sum())
        missing = sum(len(store.shards[shard]) for shard in store.missing())
        checkpoints = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
        disk = checkpoint_bytes(size, checkpoints=checkpoints)
        # the reference: row and two sums of 8 bytes for each pair
        disk += 24 * len(pairs)
        categories = ", ".join(f"{count:,} {name}" for name, count in pairs.by_category().items())
        reference_text = f"{missing:,} pairs to compute" if missing else "all on disk"
        lines = [
            ("pairs", f"{len(pairs):,}: {categories}; {tokens:,} tokens, {trained:,} trained"),
            ("loss", describe_loss(trainer.loss)),
            ("layout", LAYOUTS[trainer.layout]),
            batch_line(trainer, prepared.launched, name="pairs", row_tokens=tokens / len(pairs)),
            (
                "steps",
                f"{args.max_steps} × {trainer.global_batch} = {pairs_drawn:,} pairs drawn, "
                f"{pairs_drawn / len(pairs):.2f} epochs",
            ),
            ("reference", f"{store.path}: {reference_text} (key {store.key.digest[:12]})"),
        ]
        if measure:
            passes = pairs_drawn + FORWARD_SHARE * missing

            def margin(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
                """Loss of about the same cost as the run's, which needs no reference."""
                scored = trainer.score(trainer.model, inputs)
                return (scored.chosen - scored.rejected).mean()

            # a step goes from long to short pairs: time a micro-batch of its middle
            micro = args.per_device_train_batch_size
            first_step = list(trainer._get_train_sampler())[: trainer.global_batch]
            start = max(0, (trainer.global_batch - micro) // 2)
            rows = first_step[start : start + micro]
            micro_batch = [pairs.data[row] for row in rows]
            lines += time_line(
                trainer,
                lambda tokens: trainer.data_collator(shorter_pairs(micro_batch, tokens)),
                margin,
                tokens=int(pairs.total_lengths[rows].sum()),
                micros=round(passes / (micro * args.world_size)),
                shrink=(
                    "trainer.max_steps",
                    "batch",
                    "max_length of build_dpo",
                    "the model (model.path)",
                ),
            )
        return lines, disk

    def outcome(self, prepared: PreparedRun[PairTrainer], base: str | None) -> RunOutcome:
        """Results of the run: first and last metrics, and the fall of the chosen if any."""
        trainer = prepared.trainer
        loss = self.recipe.loss
        rows = [row for row in trainer.state.log_history if "preference_loss" in row]
        first_row = rows[0]
        last_row = rows[-1]
        lowest_change = min(row["chosen_change_per_token"] for row in rows)
        steps = trainer.state.global_step
        pairs = len(trainer.pairs)
        pairs_drawn = steps * trainer.global_batch
        by_category = trainer.pairs.by_category()
        stats = {
            "method": self.method,
            "epochs": pairs_drawn / pairs,
            "global_batch": trainer.global_batch,
            "pairs_drawn": pairs_drawn,
            "pairs_by_category": by_category,
            "train_loss": last_row["loss"],
            "beta": loss.beta,
            "sft_form": loss.sft_form,
            "first_preference_loss": first_row["preference_loss"],
            "first_sft": {form: first_row[f"sft_{form}"] for form in ("sum", "mean")},
            "last": {name: last_row[name] for name in LAST_METRICS},
            "lowest_chosen_change_per_token": lowest_change,
            "chosen_fell": chosen_fell(lowest_change),
            "reference_key": trainer.store.key.digest,
            "end_token": prepared.special.end_token,
        }
        summary = [
            f"Policy and reference: {base}. {steps:,} steps of {trainer.global_batch} pairs, "
            f"{stats['epochs']:.2f} epochs.",
            "",
            f"Loss: {describe_loss(loss)}.",
            "",
            "| last logged step | |",
            "|---|---|",
            *[f"| {name.replace('_', ' ')} | {last_row[name]:.4f} |" for name in LAST_METRICS],
        ]
        if stats["chosen_fell"]:
            fall = f"by up to {-lowest_change:.4f} nats a token"
            summary += ["", f"**The log-probability of chosen completions fell**, {fall}."]
        categories = [f"| {name} | {count:,} |" for name, count in by_category.items()]
        return RunOutcome(
            rows=pairs,
            reached=min(pairs, pairs_drawn),
            stats=stats,
            summary=summary,
            data=["## Data", "", "| category | pairs |", "|---|---|", *categories, ""],
            training=f"Layout: {trainer.layout}. ",
        )

    def closing_lines(self, manifest: Manifest) -> list[str]:
        """Warning where the chosen completions became less likely than the recipe allows."""
        if not manifest.stats["chosen_fell"]:
            return []
        lowest_change = manifest.stats["lowest_chosen_change_per_token"]
        return [
            f"warning      chosen completions lost {-lowest_change:.4f} nats a token against the "
            f"reference (limit {-CHOSEN_FLOOR:g}): raise loss.sft_weight, lower the "
            "learning rate, or drop pairs that differ in a few tokens (minimum_distance in "
            "build_dpo)"
        ]
