from __future__ import annotations

import pytest
from torch.utils.data import BatchSampler

from posttrain.training.order import EpochOrder


def test_every_pack_once_and_the_filler_only_tops_up():
    order = list(EpochOrder(packs=13, global_batch=4, seed=3))
    assert sorted(order[:13]) == list(range(13))
    assert order[13:] == [13, 13, 13]


def test_epochs_and_seeds_shuffle_anew_and_repeatably():
    def order(seed: int | None, epoch: int) -> list[int]:
        sampler = EpochOrder(packs=50, global_batch=5, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(None, 0) == order(None, 1) == list(range(50))


@pytest.mark.parametrize(("processes", "accumulation", "batch"), [(1, 1, 8), (2, 2, 2), (4, 1, 2)])
def test_a_step_sees_the_same_packs_in_every_layout(processes, accumulation, batch):
    """accelerate deals whole micro-batches to processes in turn."""
    sampler = EpochOrder(packs=21, global_batch=8, seed=0)
    micro = list(BatchSampler(sampler, batch, drop_last=False))
    per_step = processes * accumulation
    steps = [micro[i : i + per_step] for i in range(0, len(micro), per_step)]
    seen = [{pack for part in step for pack in part} for step in steps]
    order = list(sampler)
    assert seen == [set(order[i : i + 8]) for i in range(0, len(order), 8)]
