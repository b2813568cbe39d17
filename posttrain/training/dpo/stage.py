"""The DPO stage: pairs and a policy → a checkpoint artifact."""

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
    compute_order,
    initial_weights,
)
from posttrain.training.dpo.trainer import PairTrainer
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

MAX_STEPS = 50  # the paper's, Appendix C
# of a run on few pairs: fewer would hardly move the policy
FITTING_STEPS = 8
# a forward pass is about a third of a step
FORWARD_SHARE = 1 / 3
LAST = (
    "preference_loss", "margin", "accuracy", "chosen_logp", "rejected_logp", "chosen_change",
    "rejected_change", "chosen_change_per_token", "rejected_change_per_token",
)  # fmt: skip


def dpo_arguments(
    recipe: DpoConfig, *, out: Path, env: Mapping[str, str] = os.environ
) -> DPOConfig:
    """The trainer's arguments, with the accumulation that the batch asks for; resume checkpoints go
    to `out`.

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
            # the trainer then loads no second model; the log-probabilities are ours
            "precompute_ref_log_probs": True,
            "remove_unused_columns": False,
            # its row holds the loss before any update
            "logging_first_step": True,
        },
    )


def accumulation(batch: int, micro: int, processes: int) -> int:
    """Micro-batches an optimiser step on each process, `micro` pairs each.

    Raises:
        ConfigError: they do not divide; with the micro-batches that do.
    """
    if batch % (micro * processes):
        fitting = [n for n in range(1, batch // processes + 1) if batch % (n * processes) == 0]
        hint = (
            f"trainer.per_device_train_batch_size may be {', '.join(map(str, fitting))}"
            if fitting
            else f"batch must be a multiple of {processes}"
        )
        raise ConfigError(
            f"batch {batch} is no multiple of {micro} pairs × {processes} process(es); {hint}"
        )
    return batch // (micro * processes)


def fitting_settings(
    draws: int, *, processes: int, micro: int, warmup: float
) -> dict[str, int] | None:
    """Batch, steps, micro-batch and warm-up for a run of at most `draws` pairs, by the keys of the
    recipe; None where there are fewer pairs than processes.

    Args:
        draws: pairs times how often each may come.
        micro: the recipe's pairs of a micro-batch.
        warmup: the recipe's warm-up; a share of all steps below 1, which fits any run.
    """
    # the largest power of two that leaves some steps
    batch = processes
    while 2 * batch * FITTING_STEPS <= draws:
        batch *= 2
    steps = draws // batch
    if not steps:
        return None
    fitting_micro = max(
        n
        for n in range(1, batch // processes + 1)
        if batch % (n * processes) == 0 and n <= max(micro, 1)
    )
    settings = {
        "batch": batch,
        "trainer.max_steps": steps,
        "trainer.per_device_train_batch_size": fitting_micro,
    }
    if warmup >= 1:
        settings["trainer.warmup_steps"] = min(int(warmup), steps // 10)
    return settings


def fit_recipe(
    recipe: DpoConfig, pairs: int, *, env: Mapping[str, str] = os.environ
) -> tuple[DpoConfig, str | None]:
    """The recipe with batch and steps that `pairs` pairs can fill, and a sentence on what changed;
    the recipe itself and None where they fill its own, or where nothing fits."""
    trainer = recipe.trainer
    steps = trainer.get("max_steps", MAX_STEPS)
    draws = pairs * recipe.max_epochs
    if recipe.batch * steps <= draws:
        return recipe, None
    micro, processes = batch_layout(trainer, DPOConfig, env)
    warmup = trainer.get("warmup_steps", 0)
    settings = fitting_settings(draws, processes=processes, micro=micro, warmup=warmup)
    if settings is None:
        return recipe, None
    before = {
        "batch": recipe.batch,
        "trainer.max_steps": steps,
        "trainer.per_device_train_batch_size": micro,
        "trainer.warmup_steps": warmup,
    }
    changes = [
        f"{key} {before[key]:g} → {value}"
        for key, value in settings.items()
        if value != before[key]
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
            # first of all: batch and steps are part of what names a run
            self.recipe, self.fitted = fit_recipe(recipe, len(self.pairs))

    def arguments(self, out: Path) -> DPOConfig:
        return dpo_arguments(self.recipe, out=out)

    def load_data(self, args: DPOConfig, special: SpecialTokens) -> Pairs:
        recipe, pairs_template = self.recipe, self.data.template_digest
        template = self.policy.template_digest if self.policy is not None else None
        if template and pairs_template and template != pairs_template:
            raise ConfigError(
                f"the pairs were rendered with template {pairs_template[:12]}, the policy was "
                f"trained with {template[:12]}; sample and build the pairs with the policy's "
                "template"
            )
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        settings = fitting_settings(
            len(self.pairs) * recipe.max_epochs,
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
        """The pairs of the recipe's data."""
        return load_pairs(Path(self.recipe.data))

    def data_hold(self, text: str, number: int) -> bool:
        """A completion holds whatever the policy has sampled."""
        return self.pairs.hold(number)

    def make_trainer(self, data: Pairs, special: SpecialTokens, **parts: Any) -> PairTrainer:
        """The trainer with its layout and the place of the reference's numbers."""
        recipe, model = self.recipe, parts["model"]
        longest = int((data.prompt + data.chosen.ids + data.rejected.ids).max())
        layout = choose_layout(recipe.layout, model, longest=longest)
        return PairTrainer(
            **parts,
            data_collator=make_pair_collator(layout, special.pad_id),
            pairs=data,
            layout=layout,
            loss=recipe.loss,
            store=self._reference_store(parts["args"], model, data),
            chosen_floor=recipe.chosen_floor,
        )

    def _reference_store(
        self, args: DPOConfig, model: PreTrainedModel, pairs: Pairs
    ) -> ReferenceStore:
        recipe = self.recipe
        dtype = str(model.dtype).removeprefix("torch.")
        half = "bfloat16" if args.bf16 else "float16" if args.fp16 else dtype
        key = ReferenceKey(
            weights=initial_weights(recipe.model, self.policy),
            template=self.data.template_digest,
            data=self.data.digest,
            dtype=dtype if half == dtype else f"{dtype}, {half} autocast",
            quantization="nf4" if recipe.adapter and recipe.adapter.method == "qlora" else None,
            tokens=bool(recipe.loss.kl_weight),
        )
        folder = Path(recipe.reference_cache or self.out / REFERENCE)
        order = compute_order(pairs.lengths)
        return ReferenceStore(folder, key, order=order, chosen_counts=pairs.chosen.sampled)

    def check(self, trainer: PairTrainer, special: SpecialTokens, launched: Launched) -> Preflight:
        """The pairs against the model, and the layout measured on it."""
        check_batch(trainer, self.recipe.batch, name="pairs")
        model, pairs, layout = trainer.model, trainer.pairs, trainer.layout
        tokens = check_pairs(pairs, rows=embedding_rows(model), longest=positions(model.config))
        preflight = Preflight([("tokens", tokens)], {"layout": layout})
        if self.fitted is not None:
            preflight.lines.append(("fitted", self.fitted))
            preflight.stats["fitted_to_pairs"] = self.fitted
        return preflight

    def probe(self, trainer: PairTrainer) -> Preflight:
        """The layout measured on the model."""
        layout, dtype = trainer.layout, str(trainer.base_model.dtype).removeprefix("torch.")
        pad_id = cast(PreTrainedTokenizerBase, trainer.processing_class).pad_token_id
        apart, sft = probe_layout(
            trainer.probe, trainer.pairs, layout, pad_id=cast(int, pad_id), dtype=dtype
        )
        lines = [("probe", f"{layout}: log-probability a token in its batch vs alone {apart:.1e}")]
        if warning := sft_outweighs(self.recipe.loss, sft):
            lines.append(("warning", warning))
        # an upper bound to one digit: the last bits differ between machines
        return Preflight(lines, {"batch_vs_alone": float(f"{apart:.0e}")})

    def largest_batch(self, trainer: PairTrainer) -> Mapping[str, torch.Tensor]:
        """Of the longest pairs."""
        micro = trainer.args.per_device_train_batch_size
        rows = compute_order(trainer.pairs.lengths)[:micro].tolist()
        return trainer.data_collator([trainer.pairs.data[row] for row in rows])

    def plan(
        self, prepared: PreparedRun[PairTrainer], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Pairs, tokens, steps, what the reference lacks; a micro-batch is timed."""
        trainer, launched = prepared.trainer, prepared.launched
        args, pairs, store = trainer.args, trainer.pairs, trainer.store
        drawn = trainer.global_batch * args.max_steps
        tokens = int(pairs.lengths.sum())
        trained = int(pairs.chosen.sampled.sum() + pairs.rejected.sampled.sum())
        missing = sum(len(store.shards[n]) for n in store.missing())
        kept = 0 if args.save_strategy == "no" else args.save_total_limit or args.max_steps
        disk = checkpoint_bytes(size, kept=kept)
        disk += 24 * len(pairs) + 4 * int(store.key.tokens) * trained
        categories = ", ".join(f"{n:,} {name}" for name, n in pairs.by_category().items())
        to_do = f"{missing:,} pairs to compute" if missing else "all on disk"
        lines = [
            ("pairs", f"{len(pairs):,}: {categories}; {tokens:,} tokens, {trained:,} trained"),
            ("loss", describe_loss(trainer.loss)),
            ("layout", LAYOUTS[trainer.layout]),
            batch_line(trainer, launched, name="pairs", row_tokens=tokens / len(pairs)),
            (
                "steps",
                f"{args.max_steps} × {trainer.global_batch} = {drawn:,} pairs drawn, "
                f"{drawn / len(pairs):.2f} epochs",
            ),
            ("reference", f"{store.path}: {to_do} (key {store.key.digest[:12]})"),
        ]
        if measure:
            passes = drawn + FORWARD_SHARE * missing

            def margin(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
                """A loss of about the same cost that needs no reference."""
                scored = trainer.score(trainer.model, inputs)
                return (scored.chosen - scored.rejected).mean()

            # pairs of the first step's middle length
            micro = args.per_device_train_batch_size
            step = list(trainer._get_train_sampler())[: trainer.global_batch]
            start = max(0, (trainer.global_batch - micro) // 2)
            rows = step[start : start + micro]
            micro_batch = [pairs.data[row] for row in rows]
            lines += time_line(
                trainer,
                lambda tokens: trainer.data_collator(shorter_pairs(micro_batch, tokens)),
                margin,
                tokens=int(pairs.lengths[rows].sum()),
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
        """The first and last figures of the log, and whether the chosen became less likely."""
        trainer, loss = prepared.trainer, self.recipe.loss
        rows = [row for row in trainer.state.log_history if "preference_loss" in row]
        first, last = rows[0], rows[-1]
        lowest = min(row["chosen_change_per_token"] for row in rows)
        steps, pairs = trainer.state.global_step, len(trainer.pairs)
        drawn = steps * trainer.global_batch
        by_category = trainer.pairs.by_category()
        stats = {
            "method": self.method,
            "epochs": drawn / pairs,
            "global_batch": trainer.global_batch,
            "pairs_drawn": drawn,
            "pairs_by_category": by_category,
            "train_loss": last["loss"],
            "beta": loss.beta,
            "sft_form": loss.sft_form,
            "first_preference_loss": first["preference_loss"],
            "first_sft": {form: first[f"sft_{form}"] for form in ("sum", "mean")},
            "last": {name: last[name] for name in LAST},
            "lowest_chosen_change_per_token": lowest,
            "chosen_fell": lowest < trainer.chosen_floor,
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
            *[f"| {name.replace('_', ' ')} | {last[name]:.4f} |" for name in LAST],
        ]
        if stats["chosen_fell"]:
            fell = f"by up to {-lowest:.4f} nats a token"
            summary += ["", f"**The log-probability of chosen completions fell**, {fell}."]
        categories = [f"| {name} | {n:,} |" for name, n in by_category.items()]
        return RunOutcome(
            rows=pairs,
            reached=min(pairs, drawn),
            stats=stats,
            summary=summary,
            data=["## Data", "", "| category | pairs |", "|---|---|", *categories, ""],
            training=f"Layout: {trainer.layout}. ",
        )

    def closing_lines(self, manifest: Manifest) -> list[str]:
        if not manifest.stats["chosen_fell"]:
            return []
        lowest = manifest.stats["lowest_chosen_change_per_token"]
        return [
            f"warning      chosen completions lost {-lowest:.4f} nats a token against the "
            f"reference (limit {-self.recipe.chosen_floor:g}): raise loss.sft_weight, lower the "
            "learning rate, or drop pairs that differ in a few tokens (minimum_distance in "
            "build_dpo)"
        ]
