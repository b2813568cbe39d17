"""The same jobs as a Ray Data pipeline, on one machine or on a cluster that shares a disk.

    with RayExecutor(make_tools, workers=200) as executor:
        for number, result in executor.run(jobs, tell):
            …

`RAY_ADDRESS` names a cluster; without it Ray is started in this process and ended with it. Every
job is a block of a dataset, mapped by actors that make their tools once. Jobs write to files and
give nothing back, so what comes of them does not depend on where they ran. Ray does a job again
whose actor died. Needs the extra `ray`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from data_builders.workers import Job, Tell, sendable
from posttrain.errors import ConfigError, PosttrainError

_ROOT = Path(__file__).resolve().parent.parent


class RayExecutor:
    """Runs jobs on `workers` actors of one core each.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, make_tools: Callable[[], Any], workers: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
            importlib.import_module("ray.data")
        except ImportError as error:
            raise ConfigError(
                "executor: ray needs the extra of this name: pip install 'posttrain[ray]'"
            ) from error
        self._ray, self._make_tools, self._workers = ray, make_tools, workers
        self._started = False

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            # an embedded Ray has as many cores as it is given workers, and one to distribute
            cores = None if "RAY_ADDRESS" in os.environ else self._workers + 1
            self._ray.init(
                num_cpus=cores,
                include_dashboard=False if cores else None,
                log_to_driver=False,
                logging_level=logging.WARNING,
                runtime_env={"env_vars": {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}},
            )
            self._started = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._ray.shutdown()

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`, but for results, which stay where they were made."""
        if not jobs:
            return
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)  # how far it is, is ours to show
        actors = min(self._workers, len(jobs))
        done = data.range(len(jobs), override_num_blocks=len(jobs)).map(
            _Actor,
            fn_constructor_args=(self._make_tools, list(jobs)),
            compute=data.ActorPoolStrategy(size=actors),
            num_cpus=1,
        )
        for row in done.iter_rows():
            if row["error"]:
                raise _errors()[row["error"]](row["message"])
            tell(row["told"])
            yield row["id"], None


class _Actor:
    """Does jobs by their number."""

    def __init__(self, make_tools: Callable[[], Any], jobs: Sequence[Job]) -> None:
        self._tools, self._jobs = make_tools(), jobs

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        told: list[int] = []
        error, message = "", ""
        try:
            self._jobs[row["id"]].run(self._tools, told.append)
        except Exception as found:  # noqa: BLE001 - Ray would wrap it; whoever asked raises it
            made = sendable(found)
            error, message = type(made).__name__, str(made)
        return {"id": row["id"], "told": sum(told), "error": error, "message": message}


def _errors() -> dict[str, type[Exception]]:
    """What `sendable` gives, by name."""
    kinds: list[type[Exception]] = [RuntimeError, PosttrainError]
    return {kind.__name__: kind for kind in [*kinds, *PosttrainError.__subclasses__()]}
