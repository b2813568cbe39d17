"""Which pairs each step of DPO sees: whole permutations one after the other, cut into batches.

    list(PairOrder(lengths=[30, 90, 60, 40], batch=3, steps=2, seed=0))
    → [1, 2, 0,   1, 3, 0]     steps of three: the first epoch's rest and the next one's beginning

Every step has exactly `batch` pairs, whatever the number of pairs; a pair is drawn a second time
only when all have been drawn once. In a step the longer pairs come first: micro-batches then hold
pairs of like length, and a mean over the step does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from torch.utils.data import Sampler

from posttrain.training.order import EpochOrder


class PairOrder(Sampler[int]):
    """Rows of the pairs for a whole run, the same for every layout of processes.

    Args:
        lengths: tokens of each pair.
        batch: pairs a step.
        steps: of the run.
        seed: of the permutations.
    """

    def __init__(self, *, lengths: Sequence[int], batch: int, steps: int, seed: int) -> None:
        self.lengths = lengths
        self.batch = batch
        self.steps = steps
        self.seed = seed

    def __len__(self) -> int:
        return self.batch * self.steps

    def __iter__(self) -> Iterator[int]:
        rows = self._rows()
        for _ in range(self.steps):
            step = list(islice(rows, self.batch))
            yield from sorted(step, key=lambda row: (-self.lengths[row], row))

    def _rows(self) -> Iterator[int]:
        order = EpochOrder(packs=len(self.lengths), global_batch=1, seed=self.seed)
        epoch = 0
        while True:
            order.set_epoch(epoch)
            yield from order
            epoch += 1
