"""Which prompts a batch of rollouts has, and which of them each process makes.

    rows_drawn(count=10, per_batch=4, batch=2, seed=0)     → [7, 2, 5, 0]   rows of the prompts
    share(per_batch=4, num_iterations=2, processes=2, process=1)
    → [[1], [3]]   positions, by update

Prompts come in whole permutations one after the other, the same for every layout of processes. A
process makes whole groups: their rewards are relative to each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.errors import ConfigError
from posttrain.training.order import EpochOrder


def rows_drawn(*, count: int, per_batch: int, batch: int, seed: int) -> list[int]:
    """Rows of the prompts of one batch of rollouts, in order of position.

    Args:
        count: prompts there are.
        batch: which batch, from 0.
    """
    order = EpochOrder(packs=count, global_batch=1, seed=seed)
    start, rows = batch * per_batch, list[int]()
    epoch, skip = divmod(start, count)
    while len(rows) < per_batch:
        order.set_epoch(epoch)
        rows += list(order)[skip : skip + per_batch - len(rows)]
        epoch, skip = epoch + 1, 0
    return rows


def share(*, per_batch: int, num_iterations: int, processes: int, process: int) -> list[list[int]]:
    """Positions that one process makes, a list an update; all of them are of the same length."""
    size = per_batch // (num_iterations * processes)
    assert size * num_iterations * processes == per_batch, "checked by `accumulation`"
    starts = [(update * processes + process) * size for update in range(num_iterations)]
    return [list(range(start, start + size)) for start in starts]


def accumulation(
    *, per_batch: int, num_generations: int, num_iterations: int, micro: int, processes: int
) -> int:
    """Micro-batches of an update on each process.

    Args:
        per_batch: prompts of a batch of rollouts.
        micro: rollouts in a micro-batch on one process.

    Raises:
        ConfigError: a group would be split over processes or updates, or micro-batches do not fit;
            with the sizes that do.
    """
    parts = num_iterations * processes
    if per_batch % parts:
        below = per_batch // parts * parts
        sizes = [size for size in (below, below + parts) if size]
        may = [p for p in range(1, per_batch + 1) if per_batch % (p * num_iterations) == 0]
        fits = f", or start {_listed(may)} process(es)" if may else ""
        shared = f" × {num_iterations} updates" if num_iterations > 1 else ""
        raise ConfigError(
            f"prompts_per_step {per_batch} over {processes} process(es){shared} would split a "
            f"group, whose rewards are relative to each other: set prompts_per_step to "
            f"{_listed(sizes)}{fits}"
        )
    local = per_batch // parts * num_generations
    if local % micro:
        fitting = [n for n in range(1, local + 1) if local % n == 0]
        raise ConfigError(
            f"{local} rollouts a process and update are no multiple of "
            f"trainer.per_device_train_batch_size {micro}; it may be {_listed(fitting)}"
        )
    return local // micro


def _listed(sizes: Sequence[int]) -> str:
    if len(sizes) > 12:
        return f"{', '.join(map(str, sizes[:6]))}, … {', '.join(map(str, sizes[-3:]))}"
    return ", ".join(map(str, sizes))
