"""The SFT stage: packed shards → a checkpoint artifact.

    outcome = train_sft(load_recipe("recipes/tiny/sft.yaml", SftConfig))

Order: claim the output directory → tokenizer, model, data → preflight → plan → train (resuming if
there is a whole checkpoint) → write the model, its card and the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig

from posttrain.artifacts import (
    Counts,
    Manifest,
    StageDir,
    atomic_write_text,
    parent_of,
    read_artifact,
)
from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError, DataError
from posttrain.models.adapters import (
    AdapterReach,
    adapter_reach,
    lora_config,
    quantization_config,
)
from posttrain.models.load import load_model
from posttrain.tokens.tokenizer import (
    SpecialTokens,
    check_same_tokenizer,
    largest_id,
    load_tokenizer,
    special_tokens,
)
from posttrain.training.distributed import Launched, check_launch, launched
from posttrain.training.document_masking import choose_document_masking, make_collator
from posttrain.training.finish import train_to_the_end
from posttrain.training.log_rows import LOG, LogRows
from posttrain.training.model_card import model_card
from posttrain.training.packed_data import index_sums, load_split, split_by_group
from posttrain.training.preflight import Preflight, run_preflight
from posttrain.training.save import write_model
from posttrain.training.sft_trainer import PackedSFTTrainer
from posttrain.training.stage import KIND, artifact_files, clean_up, model_parent, stage_config
from posttrain.versions import package_versions


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything resolved and checked, nothing trained."""

    recipe: SftConfig
    data: Manifest
    tokenizer: PreTrainedTokenizerBase
    special: SpecialTokens
    trainer: PackedSFTTrainer
    document_masking: str
    launched: Launched
    preflight: Preflight
    reach: tuple[AdapterReach, ...]


def prepare(recipe: SftConfig, args: SFTConfig) -> Prepared:
    """Load, check and build everything up to, but not including, the first step.

    Args:
        recipe: the resolved recipe.
        args: from `sft_arguments`; its output directory holds the resume checkpoints.

    Raises:
        ConfigError, DataError: anything that would make the run wrong.
    """
    artifact = Path(recipe.data)
    data = read_artifact(artifact, kind="sft_data")
    tokenizer = load_tokenizer(artifact / "tokenizer")
    special = special_tokens(tokenizer, end_token=recipe.end_token, pad_token=recipe.pad_token)
    train = load_split(artifact, "train", pad_id=special.pad_id)
    held_out = load_split(artifact, "eval", pad_id=special.pad_id)
    if train is None:
        raise DataError(f"{artifact} has no packed training rows")
    if args.eval_strategy != "no" and held_out is None:
        raise ConfigError(f"trainer.eval_strategy is set, but {artifact} has no held-out packs")
    check_same_tokenizer(tokenizer, recipe.model)
    model = load_model(
        recipe.model,
        special=special,
        vocabulary=largest_id(tokenizer) + 1,
        seed=recipe.seed,
        quantization=quantization_config(recipe.adapter),
    )
    document_masking = choose_document_masking(recipe.document_masking, model)
    reach = adapter_reach(recipe.adapter, model) if recipe.adapter else ()
    trainer = _trainer(recipe, args, model, tokenizer, special, document_masking, train, held_out)
    _check_kept_epochs(recipe, trainer, packs=len(train) - 1)
    got = launched(trainer.accelerator)
    check_launch(recipe.launch, got)
    preflight = run_preflight(
        model=trainer.model,
        train=train,
        special=special,
        document_masking=document_masking,
        reach=reach,
        sharded=got.sharding == "zero3",
    )
    return Prepared(
        recipe, data, tokenizer, special, trainer, document_masking, got, preflight, reach
    )


def _check_kept_epochs(recipe: SftConfig, trainer: PackedSFTTrainer, *, packs: int) -> None:
    """`max_steps` may end the run before an epoch whose model was to be kept."""
    per_epoch, last = -(-packs // trainer.global_batch), max(recipe.keep_epochs, default=0)
    if 0 < trainer.args.max_steps < last * per_epoch:
        raise ConfigError(
            f"keep_epochs names epoch {last}, which ends at step {last * per_epoch}; "
            f"trainer.max_steps is {trainer.args.max_steps}"
        )


def _trainer(
    recipe: SftConfig,
    args: SFTConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    special: SpecialTokens,
    document_masking: str,
    train: Dataset,
    held_out: Dataset | None,
) -> PackedSFTTrainer:
    # TRL insists on making its own collator when padding-free
    args.padding_free = document_masking == "varlen"
    out = Path(recipe.out)

    def keep(trainer: PackedSFTTrainer, epoch: int) -> None:
        target = out / f"checkpoint-epoch-{epoch}"
        write_model(trainer, target, out=out, base=recipe.model, special=special)

    return PackedSFTTrainer(
        model=model,
        args=args,
        data_collator=None
        if args.padding_free
        else make_collator(document_masking, special.pad_id),
        train_dataset=train,
        eval_dataset=split_by_group(held_out) if held_out is not None else None,
        processing_class=tokenizer,
        callbacks=[LogRows(out)],
        peft_config=lora_config(recipe.adapter, model) if recipe.adapter else None,
        balance_coefficient=recipe.balance.coefficient,
        keep_epochs=recipe.keep_epochs,
        keep_model=keep,
    )


def open_stage(recipe: SftConfig, *, claim: bool = True) -> StageDir:
    """Claim the output directory, or only check that it could be had.

    Raises:
        ConfigError: it belongs to another config.
        DataError: the input is not a finished `sft_data` artifact.
    """
    data = read_artifact(recipe.data, kind="sft_data")
    return StageDir.open(recipe.out, kind=KIND, config=stage_config(recipe, data), claim=claim)


def train_sft(prepared: Prepared, stage: StageDir) -> Manifest | None:
    """Train, resuming from a whole checkpoint if there is one, and finish the artifact.

    Returns:
        The manifest, on the main process; None on the others.
    """
    trainer = prepared.trainer
    train_to_the_end(trainer, stage.path, base=prepared.recipe.model, special=prepared.special)
    if not trainer.is_world_process_zero():
        return None
    return _finish(prepared, stage)


def _finish(prepared: Prepared, stage: StageDir) -> Manifest:
    """Card and manifest; then the resume checkpoints have done their work."""
    recipe, state = prepared.recipe, prepared.trainer.state
    artifact = Path(recipe.data)
    parents = [parent_of(artifact, relative_to=stage.path, manifest=prepared.data)]
    if (base := model_parent(recipe.model)) is not None:
        parents.append(parent_of(str(recipe.model.path), relative_to=stage.path, manifest=base))
    packs = len(prepared.trainer.train_dataset) - 1
    reached = min(packs, state.global_step * prepared.trainer.global_batch)
    stats = _stats(prepared)
    card = model_card(
        recipe,
        parents=parents,
        base=f"checkpoint {base.digest[:12]}" if base else recipe.model.path,
        stats=stats,
        by_source=index_sums(artifact, "train", "source"),
        by_license=index_sums(artifact, "train", "license"),
        versions=package_versions(),
    )
    atomic_write_text(stage.path / "README.md", card)
    rows = sum(1 for _ in (stage.path / LOG).open(encoding="utf-8"))
    files: dict[str, int | None] = dict.fromkeys(artifact_files(stage.path))
    manifest = stage.finish(
        counts=Counts(
            rows_in=packs,
            kept=reached,
            dropped={"not_reached": packs - reached} if reached < packs else {},
        ),
        files=files | {LOG: rows},
        parents=parents,
        template_digest=prepared.data.template_digest,
        seed=recipe.seed,
        stats=stats,
    )
    clean_up(stage.path)
    return manifest


def _stats(prepared: Prepared) -> dict[str, Any]:
    trainer, recipe = prepared.trainer, prepared.recipe
    history = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    held_out: dict[str, float] = {}
    for entry in history:
        for key, value in entry.items():
            if key.startswith("eval_") and key.endswith("_loss"):
                group = key.removeprefix("eval_").removesuffix("loss").removesuffix("_")
                held_out[group or "all"] = value
    return {
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "kept_epochs": list(recipe.keep_epochs),
        "global_batch": trainer.global_batch,
        "world_size": prepared.launched.world_size,
        "sharding": prepared.launched.sharding,
        "tokens": trainer.tokens_seen,
        "trained": trainer.trained_seen,
        "train_loss": losses[-1] if losses else None,
        "eval_loss": held_out,
        "end_token": prepared.special.end_token,
        **prepared.preflight.stats,
    }
