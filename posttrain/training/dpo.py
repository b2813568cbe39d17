"""The DPO stage: pairs and a policy → a checkpoint artifact.

    prepared = prepare(recipe, dpo_arguments(recipe, out=…))
    train_dpo(prepared, open_stage(recipe))

Order: claim the output directory → tokenizer, pairs, policy → preflight → plan → the reference's
log-probabilities → train (resuming if there is a whole checkpoint) → model, card and manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.dpo_config import DPOConfig

from posttrain.artifacts import (
    Counts,
    Manifest,
    StageDir,
    atomic_write_text,
    parent_of,
    read_artifact,
)
from posttrain.config.dpo import DpoConfig
from posttrain.errors import ConfigError
from posttrain.models.adapters import adapter_reach, lora_config, quantization_config
from posttrain.models.load import load_model
from posttrain.tokens.tokenizer import (
    SpecialTokens,
    check_same_tokenizer,
    largest_id,
    load_tokenizer,
    special_tokens,
)
from posttrain.training.distributed import Launched, check_launch, launched
from posttrain.training.dpo_card import dpo_card
from posttrain.training.dpo_collate import choose_layout, make_pair_collator
from posttrain.training.dpo_plan import check_enough_pairs
from posttrain.training.dpo_preflight import check_same_template, run_preflight
from posttrain.training.dpo_trainer import PairTrainer
from posttrain.training.finish import train_to_the_end
from posttrain.training.log_rows import LOG, LogRows
from posttrain.training.pair_data import Pairs, load_pairs
from posttrain.training.preflight import Preflight
from posttrain.training.reference import (
    ReferenceKey,
    ReferenceStore,
    compute_order,
    weights_digest,
)
from posttrain.training.stage import (
    KIND,
    REFERENCE,
    artifact_files,
    clean_up,
    model_parent,
    stage_config,
)
from posttrain.versions import package_versions


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything resolved and checked, nothing trained."""

    recipe: DpoConfig
    data: Manifest
    policy: Manifest | None
    special: SpecialTokens
    trainer: PairTrainer
    layout: str
    launched: Launched
    preflight: Preflight


def prepare(recipe: DpoConfig, args: DPOConfig) -> Prepared:
    """Load, check and build everything up to, but not including, the first step.

    Args:
        recipe: the resolved recipe.
        args: from `dpo_arguments`; its output directory holds the resume checkpoints.

    Raises:
        ConfigError, DataError: anything that would make the run wrong.
    """
    artifact = Path(recipe.data)
    data = read_artifact(artifact, kind="dpo_data")
    policy = model_parent(recipe.model)
    check_same_template(data, policy)
    tokenizer = load_tokenizer(artifact / "tokenizer")
    special = special_tokens(tokenizer, end_token=recipe.end_token, pad_token=recipe.pad_token)
    check_same_tokenizer(tokenizer, recipe.model)
    pairs = load_pairs(artifact)
    check_enough_pairs(
        pairs=len(pairs), batch=recipe.batch, steps=args.max_steps, max_epochs=recipe.max_epochs
    )
    model = load_model(
        recipe.model,
        special=special,
        vocabulary=largest_id(tokenizer) + 1,
        seed=recipe.seed,
        quantization=quantization_config(recipe.adapter),
    )
    longest = int((pairs.prompt + pairs.chosen.ids + pairs.rejected.ids).max())
    layout = choose_layout(recipe.layout, model, longest=longest)
    reach = adapter_reach(recipe.adapter, model) if recipe.adapter else ()
    store = _store(recipe, args, model, pairs, data, policy)
    trainer = _trainer(recipe, args, model, tokenizer, special, layout, pairs, store)
    got = launched(trainer.accelerator)
    check_launch(recipe.launch, got)
    _check_batch(recipe, trainer)
    preflight = run_preflight(
        model=trainer.model,
        score=trainer.probe,
        pairs=pairs,
        special=special,
        layout=layout,
        reach=reach,
        sharded=got.sharding == "zero3",
    )
    return Prepared(recipe, data, policy, special, trainer, layout, got, preflight)


def _check_batch(recipe: DpoConfig, trainer: PairTrainer) -> None:
    if trainer.global_batch != recipe.batch:
        raise ConfigError(
            f"batch is {recipe.batch}, this launch makes it {trainer.global_batch}: the launcher "
            "did not say in WORLD_SIZE how many processes it starts; use accelerate launch"
        )


def _store(
    recipe: DpoConfig,
    args: DPOConfig,
    model: PreTrainedModel,
    pairs: Pairs,
    data: Manifest,
    policy: Manifest | None,
) -> ReferenceStore:
    dtype = str(model.dtype).removeprefix("torch.")
    half = "bfloat16" if args.bf16 else "float16" if args.fp16 else dtype
    key = ReferenceKey(
        weights=weights_digest(recipe.model, model, policy),
        template=data.template_digest,
        data=data.digest,
        dtype=dtype if half == dtype else f"{dtype}, {half} autocast",
        quantization="nf4" if recipe.adapter and recipe.adapter.method == "qlora" else None,
        tokens=bool(recipe.loss.kl_weight),
    )
    folder = Path(recipe.reference_cache or Path(recipe.out) / REFERENCE)
    order = compute_order(pairs.lengths)
    return ReferenceStore(folder, key, order=order, chosen_counts=pairs.chosen.sampled)


def _trainer(
    recipe: DpoConfig,
    args: DPOConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    special: SpecialTokens,
    layout: str,
    pairs: Pairs,
    store: ReferenceStore,
) -> PairTrainer:
    return PairTrainer(
        model=model,
        args=args,
        data_collator=make_pair_collator(layout, special.pad_id),
        processing_class=tokenizer,
        callbacks=[LogRows(Path(recipe.out))],
        peft_config=lora_config(recipe.adapter, model) if recipe.adapter else None,
        pairs=pairs,
        loss=recipe.loss,
        store=store,
        chosen_floor=recipe.chosen_floor,
    )


def open_stage(recipe: DpoConfig, *, claim: bool = True) -> StageDir:
    """Claim the output directory, or only check that it could be had.

    Raises:
        ConfigError: it belongs to another config.
        DataError: the input is not a finished `dpo_data` artifact.
    """
    data = read_artifact(recipe.data, kind="dpo_data")
    return StageDir.open(recipe.out, kind=KIND, config=stage_config(recipe, data), claim=claim)


def train_dpo(prepared: Prepared, stage: StageDir) -> Manifest | None:
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
    recipe, policy = prepared.recipe, prepared.policy
    parents = [parent_of(recipe.data, relative_to=stage.path, manifest=prepared.data)]
    if policy is not None:
        parents.append(parent_of(str(recipe.model.path), relative_to=stage.path, manifest=policy))
    stats = run_stats(prepared)
    card = dpo_card(
        recipe,
        parents=parents,
        base=f"checkpoint {policy.digest[:12]}" if policy else str(recipe.model.path),
        stats=stats,
        versions=package_versions(),
    )
    atomic_write_text(stage.path / "README.md", card)
    rows = sum(1 for _ in (stage.path / LOG).open(encoding="utf-8"))
    files: dict[str, int | None] = dict.fromkeys(artifact_files(stage.path))
    pairs = len(prepared.trainer.pairs)
    reached = min(pairs, stats["pairs_drawn"])
    manifest = stage.finish(
        counts=Counts(
            rows_in=pairs,
            kept=reached,
            dropped={"not_reached": pairs - reached} if reached < pairs else {},
        ),
        files=files | {LOG: rows},
        parents=parents,
        template_digest=prepared.data.template_digest,
        seed=recipe.seed,
        stats=stats,
    )
    clean_up(stage.path)
    return manifest


def run_stats(prepared: Prepared) -> dict[str, Any]:
    """Stats of a finished run, from its log; the same after a resume."""
    trainer, loss = prepared.trainer, prepared.recipe.loss
    rows = [row for row in trainer.state.log_history if "preference_loss" in row]
    first, last = rows[0], rows[-1]
    changes = [row["chosen_change_per_token"] for row in rows]
    steps = trainer.state.global_step
    return {
        "method": "dpo",
        "steps": steps,
        "epochs": steps * trainer.global_batch / len(trainer.pairs),
        "global_batch": trainer.global_batch,
        "pairs_drawn": steps * trainer.global_batch,
        "pairs_by_category": trainer.pairs.by_category(),
        "world_size": prepared.launched.world_size,
        "sharding": prepared.launched.sharding,
        "tokens": trainer.tokens_seen,
        "trained": trainer.trained_seen,
        "train_loss": last["loss"],
        "beta": loss.beta,
        "sft_form": loss.sft_form,
        "first_preference_loss": first["preference_loss"],
        "first_sft": {form: first[f"sft_{form}"] for form in ("sum", "mean")},
        "last": {name: last[name] for name in LAST},
        "lowest_chosen_change_per_token": min(changes),
        "chosen_fell": min(changes) < trainer.chosen_floor,
        "reference_key": trainer.store.key.digest,
        "end_token": prepared.special.end_token,
        **prepared.preflight.stats,
    }


LAST = (
    "preference_loss", "margin", "accuracy", "chosen_logp", "rejected_logp", "chosen_change",
    "rejected_change", "chosen_change_per_token", "rejected_change_per_token",
)  # fmt: skip
