"""Packs → tensors, in the three layouts that keep the sequences of a pack apart.

varlen          [1, all tokens]     TRL's own padding-free collator: varlen kernels, or seq_idx
block_diagonal  [packs, capacity]   one pack a row, positions restart at each sequence
unpacked        [sequences, longest] one sequence a row, right-padded: for recurrent layers

In all three, the first label of a sequence is ignored (nothing predicts it) and padding is never
trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.training.packed_data import IGNORED, sequences

Batch = dict[str, Any]


def _pad(rows: Sequence[torch.Tensor], fill: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def _labels(labels: Sequence[int]) -> torch.Tensor:
    tensor = torch.tensor(labels, dtype=torch.long)
    tensor[0] = IGNORED
    return tensor


@dataclass(frozen=True, slots=True)
class BlockDiagonalCollator:
    """One pack a row. No attention mask: transformers reads the blocks off the positions.

    Returns `input_ids`, `labels`, `position_ids`, each int64 `[packs, longest pack]`. The padding
    of a shorter pack is a sequence of its own, so no query is left without a key.
    """

    pad_id: int

    def __call__(self, packs: list[dict[str, Any]]) -> Batch:
        longest = max(len(pack["input_ids"]) for pack in packs)
        ids = [torch.tensor(pack["input_ids"], dtype=torch.long) for pack in packs]
        labels = [torch.cat([_labels(part) for _, part in sequences(pack)]) for pack in packs]
        return {
            "input_ids": _pad(ids, self.pad_id),
            "labels": _pad(labels, IGNORED),
            "position_ids": torch.stack([_positions(pack, longest) for pack in packs]),
        }


def _positions(pack: dict[str, Any], longest: int) -> torch.Tensor:
    lengths = list(pack["seq_lengths"])
    if tail := longest - sum(lengths):
        lengths.append(tail)
    return torch.cat([torch.arange(length) for length in lengths])


@dataclass(frozen=True, slots=True)
class UnpackedCollator:
    """One sequence a row, right-padded, so that no state or attention can cross sequences.

    Returns `input_ids`, `labels`, `attention_mask`, each int64 `[sequences, longest sequence]`.
    """

    pad_id: int

    def __call__(self, packs: list[dict[str, Any]]) -> Batch:
        parts = [part for pack in packs for part in sequences(pack)]
        ids = [torch.tensor(part, dtype=torch.long) for part, _ in parts]
        return {
            "input_ids": _pad(ids, self.pad_id),
            "labels": _pad([_labels(labels) for _, labels in parts], IGNORED),
            "attention_mask": _pad([torch.ones_like(row) for row in ids], 0),
        }


def sequence_ids(batch: Batch) -> tuple[torch.Tensor, int]:
    """Which *trained* sequence each token belongs to, and how many there are.

    Works on the batch of any layout. Tokens of padding, and of sequences with nothing trained
    (fillers), get -1.

    Returns:
        ids: int64 `[rows * columns]`, 0 … count-1 or -1, in the order of the flattened batch.
        count: number of sequences with at least one trained token.
    """
    labels = batch["labels"]
    if "attention_mask" in batch:
        raw = torch.arange(labels.size(0), device=labels.device)[:, None].expand_as(labels)
        real = batch["attention_mask"].reshape(-1).bool()
    else:
        raw = (batch["position_ids"].reshape(-1) == 0).cumsum(0) - 1
        real = torch.ones(labels.numel(), dtype=torch.bool, device=labels.device)
    raw = raw.reshape(-1)
    trained = torch.zeros(int(raw.max()) + 1, dtype=torch.long, device=labels.device)
    trained.index_add_(0, raw, (labels.reshape(-1) != IGNORED).long())
    kept = trained > 0
    renumbered = torch.where(kept, kept.cumsum(0) - 1, -1)
    return torch.where(real, renumbered[raw], -1), int(kept.sum())


def real_tokens(batch: Batch) -> int:
    """Tokens of trained sequences in a batch: no padding, no filler."""
    return int((sequence_ids(batch)[0] >= 0).sum())
