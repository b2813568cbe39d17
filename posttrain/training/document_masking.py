"""How the sequences of a pack are kept apart, and a measurement on the real model that they are.

varlen          [1, all tokens]      TRL's own padding-free collator: varlen kernels, or seq_idx
block_diagonal  [rows, longest]      sequences side by side, positions restart at each
unpacked        [sequences, longest] one sequence a row, right-padded: for recurrent layers

The first label of a sequence is ignored (nothing predicts it) and padding is never trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from posttrain.errors import ConfigError, DataError
from posttrain.models.load import VARLEN_ATTENTION, has_recurrent_kernels, recurrent_layers
from posttrain.tokens.encode import IGNORED

Batch = dict[str, Any]
Collator = Callable[[list[dict[str, Any]]], Batch]
PROBE_TOKENS = 64
FP32_TOLERANCE = 1e-5


def choose_document_masking(requested: str, model: PreTrainedModel) -> str:
    """Resolve `auto`, and refuse a layout that would leak on this model.

    Raises:
        ConfigError: saying which setting works.
    """
    attention = model.config._attn_implementation
    varlen = attention in VARLEN_ATTENTION
    recurrent = recurrent_layers(model)
    kernels = has_recurrent_kernels()
    if requested == "auto":
        if recurrent and not kernels:
            return "unpacked"
        return "varlen" if varlen or recurrent else "block_diagonal"
    if requested == "block_diagonal" and recurrent:
        raise ConfigError(
            f"document_masking block_diagonal masks attention only: the {recurrent} recurrent "
            f"layers of {type(model).__name__} would carry state across sequences. "
            "Set document_masking: unpacked (one sequence a row)"
        )
    if requested == "varlen" and recurrent and not kernels:
        raise ConfigError(
            f"packing {type(model).__name__} needs the mamba_ssm and causal_conv1d kernels on a "
            "GPU, they are not usable here. Set document_masking: unpacked (one sequence a row), "
            "or install them"
        )
    if requested == "block_diagonal" and varlen:
        raise ConfigError(
            f"document_masking block_diagonal with {attention}: flash-attention reads boundaries "
            "of one row only. Set document_masking: varlen, or model.attention: sdpa"
        )
    return requested


def describe_document_masking(document_masking: str, attention: str) -> str:
    """One line for the plan: which mask is active."""
    kernels = "varlen kernels" if attention in VARLEN_ATTENTION else "a block-diagonal mask"
    text = {
        "varlen": f"a micro-batch is one row, {kernels}",
        "block_diagonal": "sequences side by side, masked from each other",
        "unpacked": "a sequence is a row, right-padded",
    }[document_masking]
    return f"{document_masking}: {text} ({attention})"


def make_collator(document_masking: str, pad_id: int) -> Collator:
    """The collator of a layout; for `varlen` it is the one TRL makes itself."""
    if document_masking == "varlen":
        return DataCollatorForLanguageModeling(pad_token_id=pad_id, padding_free=True)
    collate = {"block_diagonal": _block_diagonal, "unpacked": _unpacked}[document_masking]
    return partial(collate, pad_id)


def sequences(pack: dict[str, Any]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The (input ids, labels) of each sequence of one pack."""
    start = 0
    for length in pack["seq_lengths"]:
        yield pack["input_ids"][start : start + length], pack["labels"][start : start + length]
        start += length
    if start != len(pack["input_ids"]) or start != len(pack["labels"]):
        raise DataError(
            f"a pack's seq_lengths sum to {start}, "
            f"it has {len(pack['input_ids'])} ids and {len(pack['labels'])} labels"
        )


def pad_rows(rows: Iterable[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows of unequal length as one int64 tensor, filled up on the right."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)


def padded(ids: Sequence[Sequence[int]], labels: Iterable[Sequence[int]], pad_id: int) -> Batch:
    """Rows filled up on the right, each int64 `[rows, longest]`."""
    return {
        "input_ids": pad_rows(ids, pad_id),
        "labels": pad_rows(labels, IGNORED),
        "attention_mask": pad_rows(([1] * len(row) for row in ids), 0),
    }


def _labels(labels: Sequence[int]) -> list[int]:
    return [IGNORED, *labels[1:]]


def _block_diagonal(pad_id: int, packs: list[dict[str, Any]]) -> Batch:
    """Sequences side by side, each int64 `[rows, longest sequence]`: attention over a masked row
    costs its width squared, so the micro-batch is dealt anew into rows as narrow as its longest
    sequence. transformers reads the blocks off the positions; padding is a sequence of its own, so
    no query is left without a key."""
    parts = [part for pack in packs for part in sequences(pack)]
    lengths = [len(ids) for ids, _ in parts]
    width = max(lengths)
    rows = deal_rows(lengths, width)
    tails = [width - sum(lengths[n] for n in row) for row in rows]
    return {
        "input_ids": pad_rows(([i for n in row for i in parts[n][0]] for row in rows), pad_id),
        "labels": pad_rows(
            ([i for n in row for i in _labels(parts[n][1])] for row in rows), IGNORED
        ),
        "position_ids": torch.tensor(
            [
                [at for length in (*(lengths[n] for n in row), tail) for at in range(length)]
                for row, tail in zip(rows, tails, strict=True)
            ]
        ),
    }


def deal_rows(lengths: Sequence[int], width: int) -> list[list[int]]:
    """First-fit decreasing: which sequences share a row of at most `width` tokens."""
    rows: list[list[int]] = []
    free: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        at = next((i for i, left in enumerate(free) if left >= lengths[n]), None)
        if at is None:
            rows.append([])
            free.append(width)
            at = len(rows) - 1
        rows[at].append(n)
        free[at] -= lengths[n]
    return rows


def _unpacked(pad_id: int, packs: list[dict[str, Any]]) -> Batch:
    """One sequence a row."""
    parts = [part for pack in packs for part in sequences(pack)]
    return padded([ids for ids, _ in parts], (_labels(labels) for _, labels in parts), pad_id)


def sequence_ids(batch: Batch) -> tuple[torch.Tensor, int]:
    """Which *trained* sequence each token of a batch belongs to, and how many there are.

    Returns:
        ids: int64 `[rows * columns]`, in the order of the flattened batch; -1 for padding and for
            sequences with nothing trained (fillers).
        count: of sequences with at least one trained token.
    """
    raw, real = _sequence_numbers(batch)
    trained = torch.zeros(int(raw.max()) + 1, dtype=torch.long, device=raw.device)
    trained.index_add_(0, raw, (batch["labels"].reshape(-1) != IGNORED).long())
    kept = trained > 0
    renumbered = torch.where(kept, kept.cumsum(0) - 1, -1)
    return torch.where(real, renumbered[raw], -1), int(kept.sum())


def _sequence_numbers(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of each token's sequence, and whether it is no padding: `[rows * columns]`."""
    ids = batch["input_ids"]
    if "attention_mask" in batch:
        rows = torch.arange(ids.size(0), device=ids.device)[:, None].expand_as(ids)
        return rows.reshape(-1), batch["attention_mask"].reshape(-1).bool()
    numbers = (batch["position_ids"].reshape(-1) == 0).cumsum(0) - 1
    return numbers, torch.ones_like(numbers, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class MaskingProbe:
    """Largest logit differences: of a sequence in its batch against the same sequence alone
    (`apart`), and of the same sequences run packed with nothing between them (`leaking`);
    `scale` is the largest logit there is, by magnitude."""

    apart: float
    leaking: float
    scale: float
    dtype: str


def probe_document_masking(
    model: PreTrainedModel, collator: Collator, packs: Sequence[dict[str, Any]]
) -> MaskingProbe:
    """Run up to three sequences of each pack, cut short: in the layout, alone, unprotected."""
    short = [_shorten(pack) for pack in packs]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = _by_sequence(model, collator(short))
            parts = [tuple(ids) for pack in short for ids, _ in sequences(pack)]
            alone = [_logits(model, ids) for ids in parts]
            joined = torch.cat([_logits(model, pack["input_ids"]) for pack in short])
    finally:
        model.train(was_training)
    pairs = zip((packed[ids] for ids in parts), alone, strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    leaking = float((joined - torch.cat(alone)).abs().max())
    scale = max(float(a.abs().max()) for a in alone)
    return MaskingProbe(apart, leaking, scale, str(model.dtype).removeprefix("torch."))


def check_probe(probe: MaskingProbe, document_masking: str) -> None:
    """Refuse a layout that leaks: 1e-5 in fp32, times the largest logit above 1, for rounding grows
    with the numbers rounded; in less precise types 5 % of the leak.

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
    """Up to three sequences, the later ones short enough to share a row."""
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


def _by_sequence(
    model: PreTrainedModel, batch: dict[str, Any]
) -> dict[tuple[int, ...], torch.Tensor]:
    """The logits of each sequence of a collated batch, under its ids."""
    inputs = {
        key: value.to(model.device) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
        if key != "labels"
    }
    logits = model(**inputs, use_cache=False).logits.float().flatten(0, 1)
    numbers, real = _sequence_numbers(batch)
    ids, numbers = batch["input_ids"].flatten()[real], numbers[real]
    logits, lengths = logits[real.to(logits.device)], numbers.bincount().tolist()
    parts = zip(ids.split(lengths), logits.split(lengths), strict=True)
    return {tuple(part.tolist()): scores for part, scores in parts}
