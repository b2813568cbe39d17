"""SFT stage: packed shards → a checkpoint artifact."""

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
    MaskingProbe,
    check_probe,
    choose_document_masking,
    describe_document_masking,
    describe_leak,
    make_collator,
    probe_document_masking,
)
from posttrain.training.launch import Launched, context_processes
from posttrain.training.output import RunOutcome
from posttrain.training.plan import Line, ModelSize, batch_line, checkpoint_bytes, time_line
from posttrain.training.sft.data import (
    COLUMNS,
    check_packs,
    first_tokens,
    load_split,
    sampled_rows,
    sizes_by_value,
    split_by_group,
    split_size,
)
from posttrain.training.sft.trainer import PackedSFTTrainer, held_out_group
from posttrain.training.stage import DataStage, Preflight, PreparedRun
from posttrain.training.trainer import write_model


def sft_arguments(recipe: SftConfig, *, out: Path) -> SFTConfig:
    """Build the trainer's arguments, with `out` as the folder of resume checkpoints.

    Raises:
        ConfigError: an unknown field, a value the trainer refuses, or an impossible combination.
    """
    args = make_arguments(
        SFTConfig,
        recipe,
        out=out,
        defaults={"save_strategy": "epoch", "logging_steps": 10},
        decided={
            # the shards are packed: TRL would pack and cut them a second time
            "max_length": None,
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "average_tokens_across_devices": True,
        },
    )
    last_kept = max(recipe.keep_epochs, default=0)
    if args.save_strategy == "best":
        raise ConfigError("trainer.save_strategy best: name epochs in keep_epochs: instead")
    if args.max_steps <= 0 and last_kept > args.num_train_epochs:
        raise ConfigError(
            f"keep_epochs names epoch {last_kept}, trainer.num_train_epochs is "
            f"{args.num_train_epochs:g}"
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
        if held_out is None and (args.eval_strategy != "no" or args.eval_on_start):
            off = 'trainer.eval_strategy="no"'
            if args.eval_on_start:
                off += " and trainer.eval_on_start=false"
            raise ConfigError(
                f"the held-out loss is asked for, but {artifact} has no held-out packs: set "
                f"held_out.rate in build_sft, or {off}"
            )
        return train, held_out

    def make_trainer(
        self, data: tuple[Dataset, Dataset | None], special: SpecialTokens, **parts: Any
    ) -> PackedSFTTrainer:
        """Resolve the document masking and build the trainer with its collator.

        On a CPU the model's attention becomes one that can keep packed sequences apart.

        Raises:
            ConfigError: a layout that would leak, or settings that exclude each other.
        """
        recipe = self.recipe
        args = parts["args"]
        train, held_out = data
        context = context_processes()
        splits_sequences = context > 1
        may_be_varlen = not splits_sequences and recipe.document_masking in ("auto", "varlen")
        if may_be_varlen and args.device.type == "cpu":
            use_cpu_varlen(parts["model"])
        masking = choose_document_masking(recipe.document_masking, parts["model"], context=context)
        if splits_sequences and recipe.balance.coefficient:
            raise ConfigError(
                "balance.coefficient is of whole sequences, and the launcher's cp_size splits them "
                "among processes: set it to 0"
            )
        # if padding-free, TRL insists on its own collator, and on a CPU it would advise against a
        # micro-batch of one pack
        args.padding_free = masking == "varlen" and args.device.type != "cpu"
        collator = make_collator(masking, special.pad_id, context=context)
        trainer = PackedSFTTrainer(
            **parts,
            data_collator=None if args.padding_free else collator,
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
        last_kept = max(recipe.keep_epochs, default=0)
        last_step = last_kept * math.ceil(trainer.packs / trainer.global_batch)
        if 0 < args.max_steps < last_step:
            raise ConfigError(
                f"keep_epochs names epoch {last_kept}, which ends at step {last_step}; "
                f"trainer.max_steps is {args.max_steps}; keep_epochs=null keeps none"
            )
        return trainer

    def check(
        self, trainer: PackedSFTTrainer, special: SpecialTokens, launched: Launched
    ) -> Preflight:
        """Check a sample of packs against the vocabulary and the positions of the model."""
        model = trainer.model
        lines, end_share = check_packs(
            trainer.train_dataset,
            special,
            embeddings=embedding_rows(model),
            positions=positions(model.config),
        )
        masking = trainer.document_masking
        attention = str(model.config._attn_implementation)
        lines.append(("document_masking", describe_document_masking(masking, attention)))
        stats = {"document_masking": masking, "end_trained": round(end_share, 4)}
        return Preflight(lines, stats)

    def probe(self, trainer: PackedSFTTrainer) -> Preflight:
        """Measure on the model that the document masking keeps sequences apart.

        Where `auto` has chosen one that does not, each sequence gets a row of its own. Under
        sharding the batches are planned before the model can run, so there it is refused.
        """
        lines: list[Line] = []
        stats: dict[str, Any] = {}
        masking = trainer.document_masking
        probe = self._measure_masking(trainer)
        leak = describe_leak(probe, masking)
        if leak is not None and self.recipe.document_masking == "auto" and not trainer.sharded:
            trainer.document_masking = "unpacked"
            pad_id = cast(int, cast(Any, trainer.processing_class).pad_token_id)
            trainer.data_collator = make_collator("unpacked", pad_id)
            lines.append(("document_masking", f"unpacked: one sequence per row, since {leak}"))
            stats["document_masking"] = "unpacked"
            probe = self._measure_masking(trainer)
        check_probe(probe, trainer.document_masking)
        text = f"packed vs alone {probe.apart:.1e}, unprotected {probe.leaking:.1e}"
        lines.append(("probe", text))
        # rounded to one digit: the last bits differ between machines, the manifest must not
        stats["packed_vs_alone"] = float(f"{probe.apart:.0e}")
        return Preflight(lines, stats)

    def _measure_masking(self, trainer: PackedSFTTrainer) -> MaskingProbe:
        packs = [trainer.train_dataset[row] for row in range(min(2, trainer.packs))]
        pad_id = cast(PreTrainedTokenizerBase, trainer.processing_class).pad_token_id
        collator = make_collator(trainer.document_masking, cast(int, pad_id))
        return probe_document_masking(trainer.model, collator, packs)

    def largest_batch(self, trainer: PackedSFTTrainer) -> Mapping[str, torch.Tensor]:
        """Collate the micro-batch that takes most room when padded, out of a sample of packs."""
        micro_batch = trainer.args.per_device_train_batch_size
        rows = sampled_rows(trainer.packs)
        lengths = trainer.train_dataset.select_columns("seq_lengths").select(rows)["seq_lengths"]
        padded_sizes = {
            row: len(pack_lengths) * max(pack_lengths)
            for row, pack_lengths in zip(rows, lengths, strict=True)
        }
        largest_first = sorted(rows, key=padded_sizes.__getitem__, reverse=True)
        packs = trainer.train_dataset.select_columns(list(COLUMNS))
        # a data set smaller than the micro-batch repeats its packs
        largest_rows = (largest_first * micro_batch)[:micro_batch]
        batch = trainer.data_collator([packs[row] for row in largest_rows])
        context = trainer.get_cp_size()
        if context == 1:
            return batch
        # a process holds its part of the columns
        columns = batch["input_ids"].size(1) // context
        return {key: tensor[:, :columns] for key, tensor in batch.items()}

    def plan(
        self, prepared: PreparedRun[PackedSFTTrainer], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Plan of packs, tokens, steps and, if measured, time; and an upper bound on bytes on disk.

        Args:
            measure: time parts of a micro-batch on the model.
        """
        trainer = prepared.trainer
        args = trainer.args
        train = split_size(Path(self.recipe.data), "train")
        held_out = split_size(Path(self.recipe.data), "eval")
        steps_per_epoch = math.ceil(train.packs / trainer.global_batch)
        epochs = args.num_train_epochs
        steps = args.max_steps if args.max_steps > 0 else math.ceil(epochs * steps_per_epoch)
        disk = checkpoint_bytes(size, checkpoints=args.save_total_limit or math.ceil(epochs))
        disk += size.weight_bytes * len(self.recipe.keep_epochs)
        trained_share = train.trained / train.tokens
        lines = [
            ("train", f"{train.text}, {train.trained:,} trained ({trained_share:.0%})"),
            ("held out", held_out.text),
            batch_line(
                trainer,
                prepared.launched,
                name="packs",
                row_tokens=train.tokens / train.packs,
            ),
            ("steps", f"{steps_per_epoch:,} an epoch, {steps:,} in all"),
        ]
        if measure:
            packs = trainer.train_dataset.select_columns(list(COLUMNS))
            micro_batch = [
                packs[row % train.packs] for row in range(args.per_device_train_batch_size)
            ]
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
        """Results of the run, with the last training loss and the last held-out losses."""
        recipe = self.recipe
        trainer = prepared.trainer
        artifact = Path(recipe.data)
        steps = trainer.state.global_step
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        held_out_losses: dict[str, float] = {}
        for entry in trainer.state.log_history:
            for key, value in entry.items():
                group = held_out_group(key)
                if group is not None:
                    held_out_losses[group] = value
        stats = {
            "epochs": trainer.state.epoch,
            "global_batch": trainer.global_batch,
            "train_loss": losses[-1] if losses else None,
            "eval_loss": held_out_losses,
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
        if held_out_losses:
            summary += ["", "| held-out group | loss per trained token |", "|---|---|"]
            summary += [f"| {name} | {loss:.4f} |" for name, loss in held_out_losses.items()]
        return RunOutcome(
            rows=trainer.packs,
            reached=min(trainer.packs, steps * trainer.global_batch),
            stats=stats,
            summary=summary,
            data=[
                "## Data",
                "",
                *_size_table("source", sizes_by_value(artifact, "train", "source")),
                "",
                "## Licenses of the data",
                "",
                *_size_table("license", sizes_by_value(artifact, "train", "license")),
                "",
            ],
            training=f"Document masking: {trainer.document_masking}. Expert balance coefficient: "
            f"{recipe.balance.coefficient:g}. ",
        )


def _size_table(name: str, sizes: Mapping[str, tuple[int, int, int]]) -> list[str]:
    """Markdown table of sequences, tokens and trained tokens for each value of a column."""
    total_trained = sum(trained for _, _, trained in sizes.values()) or 1
    lines = [
        f"| {name} | sequences | tokens | trained | share of trained |",
        "|---|---|---|---|---|",
    ]
    for value, (count, tokens, trained) in sizes.items():
        share = trained / total_trained
        lines.append(f"| {value} | {count:,} | {tokens:,} | {trained:,} | {share:.1%} |")
    return lines
