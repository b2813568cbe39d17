"""The SFT stage: packed shards → a checkpoint artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError, DataError
from posttrain.models.load import embedding_rows
from posttrain.models.room import positions
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.arguments import make_arguments
from posttrain.training.cpu_attention import use_cpu_varlen
from posttrain.training.document_masking import (
    check_probe,
    choose_document_masking,
    describe_document_masking,
    make_collator,
    probe_document_masking,
)
from posttrain.training.launch import Launched
from posttrain.training.output import RunOutcome
from posttrain.training.plan import Line, ModelSize, batch_line, checkpoint_bytes, time_line
from posttrain.training.sft.data import (
    COLUMNS,
    check_data,
    first_tokens,
    index_sums,
    load_split,
    sampled_rows,
    split_by_group,
    split_size,
)
from posttrain.training.sft.trainer import PackedSFTTrainer
from posttrain.training.stage import DataStage, Preflight, PreparedRun
from posttrain.training.trainer import write_model


def sft_arguments(recipe: SftConfig, *, out: Path) -> SFTConfig:
    """The trainer's arguments; resume checkpoints go to `out`.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, or an impossible combination.
    """
    args = make_arguments(
        SFTConfig,
        recipe,
        out=out,
        defaults={"save_strategy": "epoch", "logging_steps": 10},
        decided={
            "max_length": None,
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "average_tokens_across_devices": True,
        },
    )
    last = max(recipe.keep_epochs, default=0)
    if args.save_strategy == "best":
        raise ConfigError("trainer.save_strategy best: name epochs in keep_epochs: instead")
    if args.max_steps <= 0 and last > args.num_train_epochs:
        raise ConfigError(
            f"keep_epochs names epoch {last}, trainer.num_train_epochs is {args.num_train_epochs:g}"
        )
    return args


class SftStage(DataStage[SftConfig, PackedSFTTrainer]):
    """Supervised fine-tuning on the packed shards of `build_sft`."""

    method = "sft"
    data_kind = "sft_data"

    def arguments(self, out: Path) -> SFTConfig:
        return sft_arguments(self.recipe, out=out)

    def load_data(self, args: SFTConfig, special: SpecialTokens) -> tuple[Dataset, Dataset | None]:
        artifact = Path(self.recipe.data)
        train = load_split(artifact, "train", pad_id=special.pad_id)
        held_out = load_split(artifact, "eval", pad_id=special.pad_id)
        if train is None:
            raise DataError(f"{artifact} has no packed training rows")
        if args.eval_strategy != "no" and held_out is None:
            raise ConfigError(f"trainer.eval_strategy is set, but {artifact} has no held-out packs")
        return train, held_out

    def make_trainer(
        self, data: tuple[Dataset, Dataset | None], special: SpecialTokens, **parts: Any
    ) -> PackedSFTTrainer:
        """The trainer with the collator of the document masking."""
        recipe, args, (train, held_out) = self.recipe, parts["args"], data
        if args.device.type == "cpu" and recipe.document_masking in ("auto", "varlen"):
            use_cpu_varlen(parts["model"])
        masking = choose_document_masking(recipe.document_masking, parts["model"])
        # TRL insists on making its own collator when padding-free, and on a CPU it would advise
        # against one pack a micro-batch
        args.padding_free = masking == "varlen" and args.device.type != "cpu"
        trainer = PackedSFTTrainer(
            **parts,
            data_collator=None if args.padding_free else make_collator(masking, special.pad_id),
            train_dataset=train,
            eval_dataset=split_by_group(held_out) if held_out is not None else None,
            document_masking=masking,
            balance_coefficient=recipe.balance.coefficient,
            keep_epochs=recipe.keep_epochs,
            keep_model=lambda trainer, epoch: write_model(
                trainer,
                self.out / f"checkpoint-epoch-{epoch}",
                out=self.out,
                base=recipe.model,
                special=special,
            ),
        )
        # `max_steps` may end the run before an epoch whose model was to be kept
        last = max(recipe.keep_epochs, default=0)
        end = last * -(-trainer.packs // trainer.global_batch)
        if 0 < args.max_steps < end:
            raise ConfigError(
                f"keep_epochs names epoch {last}, which ends at step {end}; trainer.max_steps is "
                f"{args.max_steps}; keep_epochs=null keeps none"
            )
        return trainer

    def check(
        self, trainer: PackedSFTTrainer, special: SpecialTokens, launched: Launched
    ) -> Preflight:
        """A sample of the packs against the model, and the document masking measured on it."""
        model, masking = trainer.model, trainer.document_masking
        rows, room = embedding_rows(model), positions(model.config)
        lines, trained = check_data(trainer.train_dataset, special, rows=rows, positions=room)
        text = describe_document_masking(masking, str(model.config._attn_implementation))
        stats = {"document_masking": masking, "end_trained": round(trained, 4)}
        return Preflight([*lines, ("document_masking", text)], stats)

    def probe(self, trainer: PackedSFTTrainer) -> Preflight:
        """The document masking measured on the model."""
        masking, train = trainer.document_masking, trainer.train_dataset
        packs = [train[row] for row in range(min(2, trainer.packs))]
        pad_id = cast(PreTrainedTokenizerBase, trainer.processing_class).pad_token_id
        collator = make_collator(masking, cast(int, pad_id))
        probe = probe_document_masking(trainer.model, collator, packs)
        check_probe(probe, masking)
        text = f"packed vs alone {probe.apart:.1e}, unprotected {probe.leaking:.1e}"
        # an upper bound to one digit: the last bits differ between machines, the manifest must not
        return Preflight([("probe", text)], {"packed_vs_alone": float(f"{probe.apart:.0e}")})

    def largest_batch(self, trainer: PackedSFTTrainer) -> Mapping[str, torch.Tensor]:
        """Of the packs of a sample that fill most rows of their longest sequence."""
        lengths = trainer.train_dataset.select_columns("seq_lengths")
        rows = sampled_rows(trainer.packs)
        sizes = [len(row) * max(row) for row in lengths.select(rows)["seq_lengths"]]
        order = sorted(range(len(rows)), key=sizes.__getitem__, reverse=True)
        micro = trainer.args.per_device_train_batch_size
        packs = trainer.train_dataset.select_columns(list(COLUMNS))
        return trainer.data_collator([packs[rows[k]] for k in (order * micro)[:micro]])

    def plan(
        self, prepared: PreparedRun[PackedSFTTrainer], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Packs, tokens, steps; slices of a micro-batch are timed."""
        trainer, launched = prepared.trainer, prepared.launched
        args, batch = trainer.args, trainer.global_batch
        sizes = [split_size(Path(self.recipe.data), split) for split in ("train", "eval")]
        train, held_out = (
            f"{packs:,} packs, {sequences:,} sequences, {tokens:,} tokens"
            for packs, sequences, tokens, _ in sizes
        )
        packs, _, tokens, trained = sizes[0]
        per_epoch = math.ceil(packs / batch)
        epochs = args.num_train_epochs
        steps = args.max_steps if args.max_steps > 0 else math.ceil(epochs * per_epoch)
        disk = checkpoint_bytes(size, kept=args.save_total_limit or math.ceil(epochs))
        disk += size.weight_bytes * len(self.recipe.keep_epochs)
        row_tokens = tokens / packs
        lines = [
            ("train", f"{train}, {trained:,} trained ({trained / tokens:.0%})"),
            ("held out", held_out),
            batch_line(trainer, launched, name="packs", row_tokens=row_tokens),
            ("steps", f"{per_epoch:,} an epoch, {steps:,} in all"),
        ]
        if measure:
            data = trainer.train_dataset.select_columns(list(COLUMNS))
            micro_batch = [data[row % packs] for row in range(args.per_device_train_batch_size)]
            lines += time_line(
                trainer,
                lambda tokens: trainer.data_collator(first_tokens(micro_batch, tokens)),
                lambda batch: trainer.model(**batch, use_cache=False, fused_lm_head=True).loss,
                tokens=sum(len(pack["input_ids"]) for pack in micro_batch),
                micros=steps * args.gradient_accumulation_steps,
                shrink=(
                    "trainer.max_steps",
                    "trainer.gradient_accumulation_steps",
                    "mixture.total and packing.max_length of build_sft",
                    "the model (model.path)",
                ),
            )
        return lines, disk

    def outcome(self, prepared: PreparedRun[PackedSFTTrainer], base: str | None) -> RunOutcome:
        recipe, trainer, artifact = self.recipe, prepared.trainer, Path(self.recipe.data)
        steps, history = trainer.state.global_step, trainer.state.log_history
        losses = [entry["loss"] for entry in history if "loss" in entry]
        held_out = {
            key.removeprefix("eval_").removesuffix("loss").removesuffix("_") or "all": value
            for entry in history
            for key, value in entry.items()
            if key.startswith("eval_") and key.endswith("_loss")
        }
        stats = {
            "epochs": trainer.state.epoch,
            "global_batch": trainer.global_batch,
            "train_loss": losses[-1] if losses else None,
            "eval_loss": held_out,
            "kept_epochs": list(recipe.keep_epochs),
            "end_token": prepared.special.end_token,
        }
        summary = [
            f"Base: {base or 'random initialisation'}. Trained for {steps:,} steps of "
            f"{trainer.global_batch} packs, {trainer.tokens_seen:,} tokens of which "
            f"{trainer.trained_seen:,} trained.",
        ]
        if losses:
            summary += ["", f"Last logged training loss: {losses[-1]:.4f}."]
        if held_out:
            summary += ["", "| held-out group | loss per trained token |", "|---|---|"]
            summary += [f"| {name} | {loss:.4f} |" for name, loss in held_out.items()]
        return RunOutcome(
            rows=trainer.packs,
            reached=min(trainer.packs, steps * trainer.global_batch),
            stats=stats,
            summary=summary,
            data=[
                "## Data",
                "",
                *_table("source", index_sums(artifact, "train", "source")),
                "",
                "## Licenses of the data",
                "",
                *_table("license", index_sums(artifact, "train", "license")),
                "",
            ],
            training=f"Document masking: {trainer.document_masking}. Expert balance coefficient: "
            f"{recipe.balance.coefficient:g}. ",
        )


def _table(name: str, sums: Mapping[str, tuple[int, int, int]]) -> list[str]:
    total = sum(trained for _, _, trained in sums.values()) or 1
    return [
        f"| {name} | sequences | tokens | trained | share of trained |",
        "|---|---|---|---|---|",
        *[
            f"| {key} | {n:,} | {tokens:,} | {trained:,} | {trained / total:.1%} |"
            for key, (n, tokens, trained) in sums.items()
        ],
    ]
