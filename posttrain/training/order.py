"""The order of packs in an epoch. Consecutive runs of `global_batch` entries are one optimiser step
each, however they are dealt out to processes and micro-batches; so the layout changes no batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochOrder(Sampler[int]):
    """A permutation of `packs` keyed by seed and epoch, topped up with the filler row, `packs`.

        list(EpochOrder(packs=5, global_batch=4, seed=0))  → [3, 0, 4, 1, 2, 5, 5, 5]

    Args:
        global_batch: packs an optimiser step (all processes, all accumulation steps).
        seed: the recipe's; None keeps the order of the shards.
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
        return self.filled

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.packs))
        if self.seed is not None:
            key = hashlib.blake2b(f"{self.seed}:{self.epoch}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
            order = torch.randperm(self.packs, generator=generator).tolist()
        yield from order
        yield from [self.packs] * (self.filled - self.packs)


def rows_drawn(*, count: int, per_step: int, step: int, seed: int) -> list[int]:
    """Rows of one step, counted from 0, of a run without epochs: whole permutations of `count` rows
    one after the other, the same for every layout of processes."""
    order = EpochOrder(packs=count, global_batch=1, seed=seed)
    rows: list[int] = []
    epoch, skip = divmod(step * per_step, count)
    while len(rows) < per_step:
        order.set_epoch(epoch)
        rows += list(order)[skip : skip + per_step - len(rows)]
        epoch, skip = epoch + 1, 0
    return rows
