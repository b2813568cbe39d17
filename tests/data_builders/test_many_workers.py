"""Many workers prepare and write what one process does, byte for byte.

Processes of their own are in `test_build_sft_parts`, two of them; here eight take turns in one.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.pool import Executor, Here, Job, Tell
from data_builders.sft_inputs import scan_inputs
from data_builders.sft_plan import plan_build
from data_builders.sft_spools import spool_sources
from data_builders.sft_write import write_splits
from data_builders.stages import Stages
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from tests.data_builders.light_tools import light_tools
from tests.data_builders.small_build import write_recipe


class Turns:
    """Workers with tools of their own; the next job goes to any, and they end in any order."""

    def __init__(self, recipe: BuildSftConfig, workers: int) -> None:
        self._tools = [light_tools(recipe) for _ in range(workers)]
        self._random = random.Random(workers)

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        order = list(range(len(jobs)))
        self._random.shuffle(order)
        for number in order:
            yield number, jobs[number].run(self._random.choice(self._tools), tell)


def _build(out: Path, recipe: BuildSftConfig, executor: Executor) -> dict[str, bytes]:
    """All that lies in the spool and in the shards afterwards."""
    _, parts = scan_inputs(recipe, Path("."))
    assert sum(len(own) for own in parts.values()) > 16, "more parts than workers"
    with Stages(Console(file=io.StringIO())) as stages:
        spools = spool_sources(
            recipe,
            parts,
            out / "spool",
            tokens={},
            scratch="s",
            executor=executor,
            stages=stages,
        )
        plan = plan_build(spools, recipe)
        write_splits(
            out, spools, plan, recipe, scratch=out / "plan", executor=executor, stages=stages
        )
    files = (path for path in out.rglob("*") if path.is_file() and path.parent.name != "plan")
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_eight_workers_write_the_bytes_of_one_process(tmp_path):
    keys = {"shards": {"packs": 3}, "write_dropped": True, "part_bytes": 5000}
    recipe = load_recipe(write_recipe(tmp_path, **keys), BuildSftConfig, [])
    alone = _build(tmp_path / "alone", recipe, Here(light_tools(recipe)))
    together = _build(tmp_path / "together", recipe, Turns(recipe, 8))
    assert sum(name.startswith("packed/train") for name in alone) > 8, "shards for every worker"
    assert any(name.startswith("packed/eval") for name in alone)
    assert together.keys() == alone.keys()
    assert [name for name in alone if together[name] != alone[name]] == []
