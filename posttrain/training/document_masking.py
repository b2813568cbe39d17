"""How the sequences of a pack are kept apart, and a measurement on the real model that they are.

document_masking = choose_document_masking("auto", model)                  → "block_diagonal"
probe_document_masking(model, collator, packs)              → Probe(apart=2e-7, leaking=0.9, …)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from posttrain.errors import ConfigError
from posttrain.models.load import VARLEN_ATTENTION, has_recurrent_kernels, recurrent_layers
from posttrain.training.collate import BlockDiagonalCollator, UnpackedCollator
from posttrain.training.sft.data import sequences

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]
Ids = tuple[int, ...]
PROBE_TOKENS = 64
FP32_TOLERANCE = 1e-5


def choose_document_masking(asked: str, model: PreTrainedModel) -> str:
    """Resolve `auto`, and refuse a layout that would leak on this model.

    Raises:
        ConfigError: saying which setting works.
    """
    attention = model.config._attn_implementation
    varlen = attention in VARLEN_ATTENTION
    recurrent = recurrent_layers(model)
    kernels = has_recurrent_kernels()
    if asked == "auto":
        if recurrent and not kernels:
            return "unpacked"
        return "varlen" if varlen or recurrent else "block_diagonal"
    if asked == "block_diagonal" and recurrent:
        raise ConfigError(
            f"document_masking block_diagonal masks attention only: the {recurrent} recurrent "
            "layers of "
            f"{type(model).__name__} would carry state across sequences. "
            "Set document_masking: unpacked (one sequence a row)"
        )
    if asked == "varlen" and recurrent and not kernels:
        raise ConfigError(
            f"packing {type(model).__name__} needs the mamba_ssm and causal_conv1d kernels on a "
            "GPU, they are not usable here. Set document_masking: unpacked (one sequence a row), "
            "or "
            "install them"
        )
    if asked == "block_diagonal" and varlen:
        raise ConfigError(
            f"document_masking block_diagonal with {attention}: flash-attention reads boundaries "
            "of one "
            "row only. Set document_masking: varlen, or model.attention: sdpa"
        )
    return asked


def describe_document_masking(document_masking: str, attention: str) -> str:
    """One line for the plan: which mask is active."""
    if document_masking == "varlen":
        how = "varlen kernels" if attention in VARLEN_ATTENTION else "a block-diagonal mask"
        return f"varlen: a micro-batch is one row, {how} ({attention})"
    if document_masking == "block_diagonal":
        return f"block_diagonal: sequences side by side, masked from each other ({attention})"
    return f"unpacked: a sequence is a row, right-padded ({attention})"


def make_collator(document_masking: str, pad_id: int) -> Collator:
    """The collator of a layout; for `varlen` it is the one TRL makes itself."""
    if document_masking == "varlen":
        return DataCollatorForLanguageModeling(pad_token_id=pad_id, padding_free=True)
    if document_masking == "block_diagonal":
        return BlockDiagonalCollator(pad_id)
    assert document_masking == "unpacked", document_masking
    return UnpackedCollator(pad_id)


@dataclass(frozen=True, slots=True)
class Probe:
    """Largest logit differences: of a sequence in its batch against the same sequence alone
    (`apart`), and of the same sequences run together with nothing between them (`leaking`);
    `scale` is the largest logit there is, by magnitude."""

    apart: float
    leaking: float
    scale: float
    dtype: str


def probe_document_masking(
    model: PreTrainedModel, collator: Collator, packs: Sequence[dict[str, Any]]
) -> Probe:
    """Run a few real sequences in the batch layout, alone, and unprotected.

    Args:
        packs: rows of the shards; up to three sequences of each are used, shortened.
    """
    short = [_shorten(pack) for pack in packs]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            together = _by_sequence(model, collator(short))
            parts = [tuple(ids) for pack in short for ids, _ in sequences(pack)]
            alone = [_logits(model, ids) for ids in parts]
            joined = torch.cat([_logits(model, pack["input_ids"]) for pack in short])
    finally:
        model.train(was_training)
    pairs = zip((together[ids] for ids in parts), alone, strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    leaking = float((joined - torch.cat(alone)).abs().max())
    scale = max(float(a.abs().max()) for a in alone)
    return Probe(apart, leaking, scale, str(model.dtype).removeprefix("torch."))


def check_probe(probe: Probe, document_masking: str) -> None:
    """Refuse a layout that leaks: 1e-5 in fp32; in less precise types 5 % of the leak.

    Rounding grows with the numbers rounded: a trained model's logits of 20 differ by more than 1e-5
    when only the shape of the batch changes. The fp32 limit grows with them.

    Raises:
        ConfigError: with the measured differences.
    """
    in_fp32 = FP32_TOLERANCE * max(1.0, probe.scale)
    limit = in_fp32 if probe.dtype == "float32" else 0.05 * probe.leaking
    if probe.apart > limit:
        raise ConfigError(
            f"document_masking {document_masking} leaks on this model: logits of a sequence in "
            "its pack differ "
            f"by {probe.apart:.2g} from the same sequence alone (limit {limit:.2g}, unprotected "
            f"{probe.leaking:.2g}). Set document_masking: unpacked"
        )


def _shorten(pack: dict[str, Any]) -> dict[str, Any]:
    """A pack of up to three sequences, the later ones short enough to share a row."""
    parts = list(sequences(pack))[:3]
    first = min(PROBE_TOKENS, len(parts[0][0]))
    cuts = [first, *[max(first // 2, 2)] * (len(parts) - 1)]
    parts = [(ids[:cut], labels[:cut]) for (ids, labels), cut in zip(parts, cuts, strict=True)]
    return {
        "input_ids": [i for ids, _ in parts for i in ids],
        "labels": [i for _, labels in parts for i in labels],
        "seq_lengths": [len(ids) for ids, _ in parts],
    }


def _logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    inputs = torch.tensor([list(ids)], device=model.device)
    return model(input_ids=inputs, use_cache=False).logits[0].float()


def _by_sequence(model: PreTrainedModel, batch: dict[str, Any]) -> dict[Ids, torch.Tensor]:
    """The logits of each sequence of a collated batch, under its ids."""
    inputs = {
        key: value.to(model.device) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
        if key != "labels"
    }
    logits = model(**inputs, use_cache=False).logits.float().flatten(0, 1)
    ids = batch["input_ids"].flatten()
    if "attention_mask" in batch:
        real = batch["attention_mask"].flatten().bool()
        lengths = batch["attention_mask"].sum(-1).tolist()
        logits, ids = logits[real.to(logits.device)], ids[real]
    else:
        starts = (batch["position_ids"].flatten() == 0).nonzero().flatten().tolist()
        lengths = [b - a for a, b in pairwise([*starts, len(ids)])]
    parts = zip(ids.split(lengths), logits.split(lengths), strict=True)
    return {tuple(part.tolist()): scores for part, scores in parts}
