"""Sequences of packed SFT data that calibrate a quantised model, and those that measure it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.errors import DataError
from posttrain.hashing import digest_of
from posttrain.tokens.encode import IGNORED
from posttrain.training.sft.data import load_split, read_index


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a pack.

    Attributes:
        ids_T: (T,) token ids, int64.
        labels_T: (T,) the same ids where they are trained, -100 elsewhere.
    """

    ids_T: torch.Tensor
    labels_T: torch.Tensor


def draw_sequences(
    artifact: Path, split: str, count: int, *, seed: int, reasoning: bool
) -> list[Sequence]:
    """Draw sequences of a split by keyed hash: the same ones whatever the order of packs.

    Args:
        split: "train" or "eval".
        count: sequences to draw; all where there are fewer.
        reasoning: draw from the sequences with reasoning, where there are any.

    Raises:
        DataError: the artifact has no sequence of this split.
    """
    columns = ("pack", "offset", "length", "record_id", "turn", "epoch", "reasoning")
    rows = read_index(artifact, split, *columns).to_pylist()
    if reasoning:
        rows = [row for row in rows if row["reasoning"] == "on"] or rows
    packs = load_split(artifact, split, pad_id=0)
    if packs is None or not rows:
        raise DataError(f"{artifact} has no sequences of the split {split!r}")

    def key(row: dict[str, Any]) -> str:
        return digest_of([seed, split, row["record_id"], row["turn"], row["epoch"]])

    sequences: list[Sequence] = []
    for row in sorted(rows, key=key)[:count]:
        pack = packs[row["pack"]]
        span = slice(row["offset"], row["offset"] + row["length"])
        sequences.append(
            Sequence(torch.tensor(pack["input_ids"][span]), torch.tensor(pack["labels"][span]))
        )
    return sequences


def trained_targets(sequence: Sequence) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions (N,) whose next token is trained, and these tokens (N,)."""
    targets_T = sequence.labels_T[1:]
    positions_N = (targets_T != IGNORED).nonzero()[:, 0]
    return positions_N, targets_T[positions_N]
