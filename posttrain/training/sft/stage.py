"""The SFT stage: packed shards → a checkpoint artifact.

    SftStage(recipe).run(dry_run=False)

tokens             512 of 8,000 packs looked at: ids 0…1023 of 1,024 rows; pad <|pad|> ≠ end …
end token          <|im_end|> is trained in 100.0 % of 2,113 sequences
document_masking   block_diagonal: …; packed vs alone 2.1e-07, unprotected 0.83
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.sft_config import SFTConfig

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError, DataError
from posttrain.models.adapters import AdapterReach
from posttrain.runs import Manifest
from posttrain.tokens.tokenizer import (
    SpecialTokens,
    check_same_tokenizer,
    largest_id,
    load_tokenizer,
)
from posttrain.training.arguments import make_arguments
from posttrain.training.document_masking import (
    check_probe,
    choose_document_masking,
    describe_document_masking,
    make_collator,
    probe_document_masking,
)
from posttrain.training.plan import (
    Line,
    ModelSize,
    Preflight,
    RunPlan,
    adapter_lines,
    batch_line,
    check_stops,
    checkpoint_bytes,
    disk_line,
    embedding_rows,
    positions,
    time_line,
    time_passes,
)
from posttrain.training.sft.data import (
    check_data,
    index_sums,
    load_split,
    sample_data,
    split_by_group,
    split_size,
)
from posttrain.training.sft.trainer import PackedSFTTrainer
from posttrain.training.stage import DataStage, PreparedRun, RunOutcome
from posttrain.training.trainer import write_model


def sft_arguments(recipe: SftConfig, *, out: Path) -> SFTConfig:
    """The trainer's arguments.

    Args:
        out: where resume checkpoints go.

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
    if args.max_steps > 0 and "num_train_epochs" in recipe.trainer:
        raise ConfigError("trainer: give max_steps or num_train_epochs, not both")
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
        """As `sft_arguments`."""
        return sft_arguments(self.recipe, out=out)

    def prepare(self, args: SFTConfig) -> PreparedRun[PackedSFTTrainer]:
        """Tokenizer, data, model, trainer, and the checks of them."""
        recipe, artifact = self.recipe, Path(self.recipe.data)
        template_digest = self.data.template_digest
        tokenizer = load_tokenizer(artifact / "tokenizer")
        special = self.special_tokens(tokenizer)
        train = load_split(artifact, "train", pad_id=special.pad_id)
        held_out = load_split(artifact, "eval", pad_id=special.pad_id)
        if train is None:
            raise DataError(f"{artifact} has no packed training rows")
        if args.eval_strategy != "no" and held_out is None:
            raise ConfigError(f"trainer.eval_strategy is set, but {artifact} has no held-out packs")
        check_same_tokenizer(tokenizer, recipe.model)
        model, reach = self.load_policy(special, vocabulary=largest_id(tokenizer) + 1)
        masking = choose_document_masking(recipe.document_masking, model)
        # TRL insists on making its own collator when padding-free
        args.padding_free = masking == "varlen"
        trainer = PackedSFTTrainer(
            **self.trainer_parts(args, model, tokenizer),
            data_collator=None if args.padding_free else make_collator(masking, special.pad_id),
            train_dataset=train,
            eval_dataset=split_by_group(held_out) if held_out is not None else None,
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
        self._check_kept_epochs(trainer, packs=len(train) - 1)
        launched = self.check_launch(trainer)
        preflight = run_preflight(
            model=trainer.model,
            train=train,
            special=special,
            document_masking=masking,
            reach=reach,
            sharded=launched.sharding == "zero3",
        )
        return PreparedRun(trainer, special, launched, preflight, template_digest)

    def _check_kept_epochs(self, trainer: PackedSFTTrainer, *, packs: int) -> None:
        """`max_steps` may end the run before an epoch whose model was to be kept."""
        per_epoch, last = -(-packs // trainer.global_batch), max(self.recipe.keep_epochs, default=0)
        if 0 < trainer.args.max_steps < last * per_epoch:
            raise ConfigError(
                f"keep_epochs names epoch {last}, which ends at step {last * per_epoch}; "
                f"trainer.max_steps is {trainer.args.max_steps}"
            )

    def plan(
        self, prepared: PreparedRun[PackedSFTTrainer], size: ModelSize, *, measure: bool
    ) -> RunPlan:
        """Packs, tokens, steps; two micro-batches are timed."""
        trainer, launched = prepared.trainer, prepared.launched
        args, batch = trainer.args, trainer.global_batch
        train, held = (split_size(Path(self.recipe.data), split) for split in ("train", "eval"))
        per_epoch = math.ceil(train.packs / batch)
        epochs = args.num_train_epochs
        steps = args.max_steps if args.max_steps > 0 else math.ceil(epochs * per_epoch)
        disk = checkpoint_bytes(size, kept=args.save_total_limit or math.ceil(epochs))
        disk += size.weight_bytes * len(self.recipe.keep_epochs)
        row_tokens = train.tokens / max(train.packs, 1)
        lines = [
            (
                "train",
                f"{train.packs:,} packs, {train.sequences:,} sequences, {train.tokens:,} tokens, "
                f"{train.trained:,} trained ({train.trained / train.tokens:.0%})",
            ),
            (
                "held out",
                f"{held.packs:,} packs, {held.sequences:,} sequences, {held.tokens:,} tokens",
            ),
            batch_line(trainer, launched, name="packs", row_tokens=row_tokens),
            ("steps", f"{per_epoch:,} an epoch, {steps:,} in all"),
            disk_line(disk),
        ]
        if measure:
            time = time_line(
                parameters=size.parameters,
                tokens=steps * batch * row_tokens,
                micros=steps * args.gradient_accumulation_steps,
                args=args,
                micro=lambda: _time_micro_batch(trainer),
            )
            lines.append(time)
        return RunPlan(lines, disk)

    def outcome(self, prepared: PreparedRun[PackedSFTTrainer], base: str | None) -> RunOutcome:
        """Losses, kept epochs and counts."""
        recipe, trainer, artifact = self.recipe, prepared.trainer, Path(self.recipe.data)
        packs = len(trainer.train_dataset) - 1
        stats = {
            **_results(trainer),
            "kept_epochs": list(recipe.keep_epochs),
            "end_token": prepared.special.end_token,
        }
        return RunOutcome(
            rows=packs,
            reached=min(packs, trainer.state.global_step * trainer.global_batch),
            stats=stats,
            summary=[
                f"Base: {base or 'random initialisation'}. Trained for "
                f"{trainer.state.global_step:,} steps of {trainer.global_batch} packs, "
                f"{trainer.tokens_seen:,} tokens of which {trainer.trained_seen:,} trained.",
                "",
                f"Last logged training loss: {stats['train_loss']:.4f}.",
                *_held_out_lines(stats["eval_loss"]),
            ],
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
            training=f"Document masking: {prepared.preflight.stats['document_masking']}. Expert "
            f"balance coefficient: {recipe.balance.coefficient:g}. ",
        )

    def closing_lines(self, manifest: Manifest) -> list[str]:
        """The log says it all."""
        return []


def run_preflight(
    *,
    model: PreTrainedModel,
    train: Dataset,
    special: SpecialTokens,
    document_masking: str,
    reach: tuple[AdapterReach, ...],
    sharded: bool,
) -> Preflight:
    """All checks that need the model and the data.

    Args:
        sharded: parameters are already split over processes (ZeRO-3), so no forward is possible.

    Raises:
        ConfigError, DataError: from the first check that fails.
    """
    rows = embedding_rows(model)
    sample = sample_data(train, special)
    check_data(sample, special, rows=rows, positions=positions(model))
    stats: dict[str, Any] = {
        "document_masking": document_masking,
        "end_trained": round(sample.end_trained, 4),
    }
    masking = describe_document_masking(document_masking, str(model.config._attn_implementation))
    if sharded:
        masking += "; not measured, the parameters are sharded"
    else:
        packs = [train[row] for row in range(min(2, len(train) - 1))]
        collator = make_collator(document_masking, special.pad_id)
        probe = probe_document_masking(model, collator, packs)
        check_probe(probe, document_masking)
        masking += f"; packed vs alone {probe.apart:.1e}, unprotected {probe.leaking:.1e}"
        # an upper bound to one digit: the last bits differ between machines, the manifest must not
        stats["packed_vs_alone"] = float(f"{probe.apart:.0e}")
    lines: list[Line] = [
        (
            "tokens",
            f"{sample.packs:,} of {sample.of:,} packs looked at: ids {sample.smallest_id}…"
            f"{sample.largest_id} of {rows:,} rows; pad {special.pad_token} ≠ end "
            f"{special.end_token}",
        ),
        (
            "end token",
            f"{special.end_token} is trained in {sample.end_trained:.1%} of "
            f"{sample.sequences:,} sequences",
        ),
        ("stops", check_stops(model, special)),
        ("document_masking", masking),
        *adapter_lines(model, reach),
    ]
    return Preflight(tuple(lines), stats)


def _time_micro_batch(trainer: PackedSFTTrainer) -> float:
    """Seconds of one forward and backward pass on real packs; leaves no gradient behind."""
    size = trainer.args.per_device_train_batch_size
    packs = [trainer.train_dataset[row % (len(trainer.train_dataset) - 1)] for row in range(size)]
    columns = ("input_ids", "labels", "seq_lengths")
    batch = trainer.data_collator([{key: pack[key] for key in columns} for pack in packs])
    batch = trainer._prepare_inputs(batch)

    def loss() -> torch.Tensor:
        with trainer.compute_loss_context_manager():
            return trainer.model(**batch, use_cache=False, fused_lm_head=True).loss

    return time_passes(trainer.model, loss, trainer.args.device)


def _results(trainer: PackedSFTTrainer) -> dict[str, Any]:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    held_out: dict[str, float] = {}
    for entry in trainer.state.log_history:
        for key, value in entry.items():
            if key.startswith("eval_") and key.endswith("_loss"):
                group = key.removeprefix("eval_").removesuffix("loss").removesuffix("_")
                held_out[group or "all"] = value
    return {
        "epochs": trainer.state.epoch,
        "global_batch": trainer.global_batch,
        "train_loss": losses[-1] if losses else None,
        "eval_loss": held_out,
    }


def _held_out_lines(losses: Mapping[str, float]) -> list[str]:
    if not losses:
        return []
    rows = [f"| {name} | {loss:.4f} |" for name, loss in losses.items()]
    return ["", "| held-out group | loss per trained token |", "|---|---|", *rows]


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
