"""Every record of a run that is not there yet, checkpoint by checkpoint.

await make_records(recipe, units, how, opened=opened_sampler, meter=meter)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from posttrain.config.backend import BackendConfig, Server
from posttrain.config.eval import EvalConfig
from posttrain.evaluation.inspect_run import run_units
from posttrain.evaluation.lock import LOCK, bind_weights
from posttrain.evaluation.record import Record, write_records
from posttrain.evaluation.run_files import (
    WORK,
    join_parts,
    part_path,
    record_path,
    refuse_failures,
)
from posttrain.evaluation.unit import How, Unit, parts_of
from posttrain.sampling.progress import ProgressBar
from posttrain.sampling.sampler import Sampler

IN_FLIGHT = 2  # rollouts a server connection, so that one may run tools while another is answered
Opened = Callable[[BackendConfig, str | None], AbstractAsyncContextManager[Sampler]]


async def make_records(
    recipe: EvalConfig, units: Sequence[Unit], how: How, *, opened: Opened, meter: ProgressBar
) -> None:
    """Fill the run's directory.

    Args:
        units: of one checkpoint; all are asked the same.
        opened: a backend and a checkpoint's path → the sampler, for as long as it is needed.
        meter: of all records of the run.

    Raises:
        ConfigError: a checkpoint is not what it was when the run began.
        DataError: a backend gave up too often.
    """
    for name in recipe.checkpoints:
        own = [replace(unit, checkpoint=name) for unit in units]
        await _make(recipe, name, own, how, opened, meter)


async def _make(
    recipe: EvalConfig,
    name: str,
    units: Sequence[Unit],
    how: How,
    opened: Opened,
    meter: ProgressBar,
) -> None:
    out, backend = Path(recipe.out), recipe.backend_of(name)
    # a server's completions are kept one by one, and never all in flight
    chunk = None if isinstance(backend, Server) else recipe.chunk
    parts = {unit.name: parts_of(unit, chunk=chunk or unit.size) for unit in units}
    left = [
        part
        for unit in parts.values()
        if not record_path(out, name, unit[0].name).is_file() and not join_parts(out, unit)
        for part in unit
        if not part_path(out, part).is_file()
    ]
    meter.restored(sum(unit.size for unit in units) - sum(part.size for part in left))
    if not left:
        return

    def keep(part: Unit, records: list[Record]) -> None:
        refuse_failures(records, max_failure_rate=recipe.max_failure_rate)
        write_records(part_path(out, part), records)
        join_parts(out, parts[part.name])
        for record in records:
            meter.done(record.completion)

    async with opened(backend, recipe.path_of(name)) as sampler:
        bind_weights(out / LOCK, name, sampler.identity)
        await run_units(
            left,
            sampler,
            how,
            log_dir=out / "inspect" / name if recipe.inspect_logs else None,
            on_done=keep,
            progress=meter.tokens,
            at_once=IN_FLIGHT * backend.concurrency if isinstance(backend, Server) else None,
            work=out / WORK / "journals",
        )
