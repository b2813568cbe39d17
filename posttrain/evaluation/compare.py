"""Two checkpoints of finished runs, compared question by question, without a model.

compare_runs("runs/eval-sft", "runs/eval-dpo:dpo")  → [{"task": "maths", "rates": {…}}, …]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.evaluation.lock import LOCK, Lock, read_lock, refuse_unlike
from posttrain.evaluation.paired import paired_rows
from posttrain.evaluation.record import Record
from posttrain.evaluation.run_files import read_run
from posttrain.evaluation.unit import unit_name


@dataclass(frozen=True, slots=True)
class Side:
    """One checkpoint of one run."""

    run: Path
    checkpoint: str
    records: list[Record]
    lock: Lock


def side_of(given: str) -> Side:
    """`RUN` or `RUN:NAME`.

    Raises:
        ConfigError: no such checkpoint, or several and none named.
        DataError: not a finished evaluation.
    """
    path, name = Path(given), ""
    if not path.is_dir() and ":" in given:
        folder, _, name = given.rpartition(":")
        path = Path(folder)
    _, records = read_run(path)
    if not name and len(records) > 1:
        first = next(iter(records))
        raise ConfigError(f"{path} has several checkpoints; name one, as in {path}:{first}")
    name = name or next(iter(records))
    if name not in records:
        raise ConfigError(f"{path} has no checkpoint {name!r}{nearest(name, tuple(records))}")
    return Side(path, name, records[name], read_lock(path / LOCK))


def compare_runs(a: Side, b: Side, *, despite: Collection[str] = ()) -> list[dict[str, Any]]:
    """Paired differences, b − a, for every task and setting that both runs have.

    Raises:
        ConfigError: they were not asked alike (`refuse_unlike`).
    """
    shared = refuse_unlike(
        a.lock, b.lock, checkpoints=(a.checkpoint, b.checkpoint), despite=despite
    )
    left, right = (
        [record for record in side.records if unit_name(record.prompt) in shared] for side in (a, b)
    )
    rows = paired_rows(left, right, seed=0)
    # the same name in two runs would say nothing
    return [row | {"a": f"a:{a.checkpoint}", "b": f"b:{b.checkpoint}"} for row in rows]
