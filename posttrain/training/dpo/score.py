"""The reference's log-probabilities of one shard of pairs, shared out over processes.

Batches are cut from the shard's rows alone, so their content, and with it every number, is the same
for any number of processes. Each runs as many forward passes as the others: sharded models need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posttrain.training.dpo.loss import Scored


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows to score, the sampled chosen tokens of each, whether single tokens are wanted, and
    pairs a forward pass."""

    rows: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    tokens: bool
    batch: int


def score_shard(
    shard: Shard, score: Callable[[list[int]], Scored], accelerator: Any, model: Any
) -> dict[str, Any]:
    """Values for `ReferenceStore.write`, on every process.

    Args:
        score: log-probabilities of some rows; called on every process equally often.
    """
    starts = list(range(0, len(shard.rows), shard.batch))
    rank, processes = accelerator.process_index, accelerator.num_processes
    offsets = np.concatenate([[0], np.cumsum(shard.counts)])
    sums = torch.zeros(2, len(shard.rows), dtype=torch.float64, device=accelerator.device)
    tokens = torch.zeros(
        int(offsets[-1]) if shard.tokens else 0, dtype=torch.float64, device=accelerator.device
    )
    model.eval()
    with torch.no_grad():
        for turn in range(-(-len(starts) // processes)):
            mine = turn * processes + rank
            start = starts[min(mine, len(starts) - 1)]
            end = min(start + shard.batch, len(shard.rows))
            scored = score(shard.rows[start:end].tolist())
            if mine >= len(starts):
                continue
            sums[0, start:end], sums[1, start:end] = scored.chosen, scored.rejected
            if shard.tokens:
                tokens[offsets[start] : offsets[end]] = scored.chosen_tokens
    model.train()
    sums = accelerator.reduce(sums, "sum").cpu().numpy()
    tokens = accelerator.reduce(tokens, "sum").cpu().numpy() if shard.tokens else None
    return {"chosen": sums[0], "rejected": sums[1], "tokens": tokens}
