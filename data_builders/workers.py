"""Jobs in this process, on several processes, or on Ray: results as they come, and a clear end.

A job is an object that can be sent, with `run(state, on_progress)`; workers make their state
themselves. Of several jobs that fail, the first in order is the one reported. `RayPool` runs the
same jobs as a Ray Data pipeline on the cluster that `RAY_ADDRESS` names, or on a Ray of its own
(extra `ray`); all machines see one disk. Ray does a job again whose actor died.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol, Self

from posttrain import errors
from posttrain.errors import ConfigError, PosttrainError

OnProgress = Callable[[int], None]


class WorkerError(PosttrainError):
    """A worker process that ended without a word."""


class Job(Protocol):
    """Something to do in whatever process; it can be sent, and so can its result."""

    def run(self, state: Any, on_progress: OnProgress) -> Any:
        """Do it; `on_progress` is called with the number of rows handled since its last call."""
        ...

    def describe(self) -> str:
        """For messages."""
        ...


class Executor(Protocol):
    """Runs jobs."""

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """The position of each job and its result, in the order in which they end."""
        ...


class Serial:
    """Runs jobs one after the other in this process."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        for number, job in enumerate(jobs):
            yield number, job.run(self._state, on_progress)


class _Worker:
    def __init__(self, make_state: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, make_state))
        # what is blocked stays blocked in a child: Ctrl-C is the parent's to answer, also while a
        # worker is still importing. The tracker comes first, since its start unblocks Ctrl-C
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.number: int | None = None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessPool(contextlib.AbstractContextManager["ProcessPool"]):
    """Runs jobs on `workers` processes, started when the first jobs come.

    Raises:
        WorkerError: a worker died, for instance for want of memory.
    """

    def __init__(self, make_state: Callable[[], Any], workers: int) -> None:
        self._make_state, self._most = make_state, workers
        self._workers: list[_Worker] = []

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        while len(self._workers) < min(self._most, len(jobs)):
            self._workers.append(_Worker(self._make_state))
        waiting = iter(enumerate(jobs))
        failed: dict[int, BaseException] = {}
        for worker in self._workers:
            _give_next(worker, waiting)
        while busy := [w for w in self._workers if _matters(w, failed)]:
            speaking = wait([worker.connection for worker in busy])
            for worker in (w for w in busy if w.connection in speaking):
                kind, *content = self._receive(worker, jobs)
                if kind == "rows":
                    on_progress(content[0])
                    continue
                number, worker.number = worker.number, None
                assert number is not None
                if kind == "failed":
                    failed[number] = content[0]
                    waiting = iter(())
                    continue
                _give_next(worker, waiting)
                yield number, content[0]
        if failed:
            raise failed[min(failed)]

    def _receive(self, worker: _Worker, jobs: Sequence[Job]) -> tuple[Any, ...]:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            end = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            assert worker.number is not None
            raise WorkerError(
                f"a worker process {end} at {jobs[worker.number].describe()}. Without a message "
                "above it, that is most often want of memory: use fewer workers. What is finished "
                "is kept; rerun the same command to resume"
            ) from None


def _matters(worker: _Worker, failed: dict[int, BaseException]) -> bool:
    """Whether to wait for a worker: after a failure, only for those with an earlier job."""
    return worker.number is not None and (not failed or worker.number < min(failed))


def _give_next(worker: _Worker, waiting: Iterator[tuple[int, Job]]) -> None:
    if (found := next(waiting, None)) is not None:
        worker.number, job = found
        with contextlib.suppress(BrokenPipeError):  # it is dead; `_receive` finds out
            worker.connection.send(job)


def _serve(connection: Connection, make_state: Callable[[], Any]) -> None:
    """A worker's life."""
    state: Any = None

    def on_progress(rows: int) -> None:
        _send(connection, ("rows", rows))

    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            state = state or make_state()
            answer = ("done", job.run(state, on_progress))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            answer = ("failed", sendable(error))
        _send(connection, answer)


def _send(connection: Connection, message: tuple[Any, ...]) -> None:
    try:
        connection.send(message)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the parent is gone: nobody waits for this, and another may have its place


def sendable(error: Exception) -> Exception:
    """The user's mistakes as they are; of anything else the whole story, as text."""
    if isinstance(error, PosttrainError):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


_ROOT = Path(__file__).resolve().parent.parent


class RayPool:
    """Runs jobs on `workers` actors of one core each. Raises ConfigError: Ray is not installed."""

    def __init__(self, make_state: Callable[[], Any], workers: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
            importlib.import_module("ray.data")
        except ImportError as error:
            raise ConfigError(
                "executor: ray needs the extra of this name: pip install 'posttrain[ray]'"
            ) from error
        self._ray, self._make_state, self._workers = ray, make_state, workers
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

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`, but for results, which stay where they were made."""
        if not jobs:
            return
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)  # how far it is, is ours to show
        actors = min(self._workers, len(jobs))
        done = data.range(len(jobs), override_num_blocks=len(jobs)).map(
            _Actor,
            fn_constructor_args=(self._make_state, list(jobs)),
            compute=data.ActorPoolStrategy(size=actors),
            num_cpus=1,
        )
        for row in done.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"], RuntimeError)(row["message"])
            on_progress(row["rows_read"])
            yield row["id"], None


class _Actor:
    """Ray actor that runs the job with a given index."""

    def __init__(self, make_state: Callable[[], Any], jobs: Sequence[Job]) -> None:
        self._state, self._jobs = make_state(), jobs

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        rows_read: list[int] = []
        error, message = "", ""
        try:
            self._jobs[row["id"]].run(self._state, rows_read.append)
        except Exception as found:  # noqa: BLE001 - Ray would wrap it; whoever asked raises it
            made = sendable(found)
            error, message = type(made).__name__, str(made)
        return {"id": row["id"], "rows_read": sum(rows_read), "error": error, "message": message}
