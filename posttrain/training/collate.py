"""Packs → tensors, in the three layouts that keep the sequences of a pack apart.

varlen          [1, all tokens]      TRL's own padding-free collator: varlen kernels, or seq_idx
block_diagonal  [rows, longest]      sequences side by side, positions restart at each
unpacked        [sequences, longest] one sequence a row, right-padded: for recurrent layers

In all three, the first label of a sequence is ignored (nothing predicts it) and padding is never
trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.training.sft.data import IGNORED, sequences

Batch = dict[str, Any]


def _pad(rows: Sequence[torch.Tensor], fill: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def _labels(labels: Sequence[int]) -> torch.Tensor:
    tensor = torch.tensor(labels, dtype=torch.long)
    tensor[0] = IGNORED
    return tensor


@dataclass(frozen=True, slots=True)
class BlockDiagonalCollator:
    """Several sequences a row, as narrow as the longest. No attention mask is passed:
    transformers reads the blocks off the positions.

    Attention over a masked row costs its width squared, whatever the mask, and sequences do not
    see each other; so the micro-batch is dealt anew into rows no wider than its longest sequence.

    Returns `input_ids`, `labels`, `position_ids`, each int64 `[rows, longest sequence]`. The
    padding of a row is a sequence of its own, so no query is left without a key.
    """

    pad_id: int

    def __call__(self, packs: list[dict[str, Any]]) -> Batch:
        parts = [part for pack in packs for part in sequences(pack)]
        lengths = [len(ids) for ids, _ in parts]
        width = max(lengths)
        rows = deal_rows(lengths, width)
        ids = [[i for n in row for i in parts[n][0]] for row in rows]
        labels = [torch.cat([_labels(parts[n][1]) for n in row]) for row in rows]
        return {
            "input_ids": _pad([torch.tensor(row, dtype=torch.long) for row in ids], self.pad_id),
            "labels": _pad(labels, IGNORED),
            "position_ids": torch.stack(
                [_positions([lengths[n] for n in row], width) for row in rows]
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


def _positions(lengths: Sequence[int], width: int) -> torch.Tensor:
    tail = width - sum(lengths)
    return torch.cat([torch.arange(length) for length in (*lengths, tail)])


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
