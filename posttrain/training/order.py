"""Order in which the rows of a data set are drawn.

Each optimiser step takes the next `global_batch` rows of the order, however these are split into
processes and micro-batches, so the layout changes no batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochOrder(Sampler[int]):
    """Permutation of the packs for each epoch, filled up with the filler row to whole batches.

        list(EpochOrder(packs=5, global_batch=4, seed=0))  → [3, 0, 4, 1, 2, 5, 5, 5]

    Args:
        packs: number of packs, and with it the index of the filler row.
        global_batch: packs per optimiser step, over all processes and accumulation steps.
        seed: seed of the recipe, which with the epoch decides the permutation; None keeps the order
            of the shards.
    """

    def __init__(self, *, packs: int, global_batch: int, seed: int | None) -> None:
        self.packs = packs
        self.filled = -(-packs // global_batch) * global_batch
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation; accelerate and the trainer call this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of rows in an epoch, fillers included."""
        return self.filled

    def __iter__(self) -> Iterator[int]:
        """Iterate over the row indices of the chosen epoch."""
        order = list(range(self.packs))
        if self.seed is not None:
            key = hashlib.blake2b(f"{self.seed}:{self.epoch}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
            order = torch.randperm(self.packs, generator=generator).tolist()
        yield from order
        yield from [self.packs] * (self.filled - self.packs)


def rows_drawn(*, count: int, per_step: int, step: int, seed: int) -> list[int]:
    """Row indices of one step in a run that is counted in steps.

    The run draws one permutation of all rows after the other, whatever the layout of processes.

    Args:
        count: rows in the data set.
        per_step: rows per step.
        step: index of the step, from 0.
        seed: seed of the recipe.
    """
    order = EpochOrder(packs=count, global_batch=1, seed=seed)
    rows: list[int] = []
    epoch, start = divmod(step * per_step, count)
    while len(rows) < per_step:
        order.set_epoch(epoch)
        rows += list(order)[start : start + per_step - len(rows)]
        epoch += 1
        start = 0
    return rows
