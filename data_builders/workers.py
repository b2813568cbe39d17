"""Work of a build: executors of jobs, and the stages that are shown while they run.

A job is an object that can be pickled, with `run(state, on_progress)`; workers make their state
themselves. Results come as jobs end. If several jobs fail, the first in order is the one reported.
`RayPool` runs the same jobs as a Ray Data pipeline, on the cluster that `RAY_ADDRESS` names or on a
Ray of its own (extra `ray`); all machines must see one disk. Ray repeats a job whose actor died.

`Stages` shows the stage, the amount done, the rate and the time that remains: on a terminal one
moving line; elsewhere, as in a log, a line from time to time.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn

from posttrain import errors
from posttrain.errors import ConfigError, PosttrainError

OnProgress = Callable[[int], None]
_LOG_INTERVAL = 30.0  # seconds between the lines of a log


class WorkerError(PosttrainError):
    """Worker process that ended without a message."""


class Job(Protocol):
    """Piece of work for any process; it can be pickled, and so can its result."""

    def run(self, state: Any, on_progress: OnProgress) -> Any:
        """Do the work.

        Args:
            state: state that the worker made.
            on_progress: called with the number of rows handled since its last call.
        """
        ...

    def describe(self) -> str:
        """Name of the job in messages."""
        ...


class Executor(Protocol):
    """Runner of jobs."""

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """Yield the position of each job and its result, in the order in which they end."""
        ...


class Serial:
    """Executor that runs jobs one after the other in this process."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """See `Executor.run`."""
        for number, job in enumerate(jobs):
            yield number, job.run(self._state, on_progress)


class _Worker:
    """Process that runs one job at a time.

    Attributes:
        connection: our end of the pipe to it.
        number: position of its job; None while it has none.
    """

    def __init__(self, make_state: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(child_connection, make_state)
        )
        # a child inherits blocked signals: the parent alone answers Ctrl-C, also while a worker is
        # still importing. The tracker is started first, since its start unblocks Ctrl-C
        resource_tracker.ensure_running()
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        child_connection.close()
        self.number: int | None = None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessPool(contextlib.AbstractContextManager["ProcessPool"]):
    """Executor on several processes, which are started when the first jobs come.

    Raises:
        WorkerError: a worker died, for instance for want of memory.
    """

    def __init__(self, make_state: Callable[[], Any], workers: int) -> None:
        self._make_state = make_state
        self._max_workers = workers
        self._workers: list[_Worker] = []

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """See `Executor.run`."""
        while len(self._workers) < min(self._max_workers, len(jobs)):
            self._workers.append(_Worker(self._make_state))
        waiting_jobs = iter(enumerate(jobs))
        errors_by_job: dict[int, BaseException] = {}
        for worker in self._workers:
            _send_next_job(worker, waiting_jobs)
        while awaited := [w for w in self._workers if _is_awaited(w, errors_by_job)]:
            ready_connections = wait([worker.connection for worker in awaited])
            for worker in awaited:
                if worker.connection not in ready_connections:
                    continue
                kind, content = self._receive(worker, jobs)
                if kind == "rows":
                    on_progress(content)
                    continue
                number = worker.number
                assert number is not None
                worker.number = None
                if kind == "failed":
                    errors_by_job[number] = content
                    waiting_jobs = iter(())
                    continue
                _send_next_job(worker, waiting_jobs)
                yield number, content
        if errors_by_job:
            raise errors_by_job[min(errors_by_job)]

    def _receive(self, worker: _Worker, jobs: Sequence[Job]) -> tuple[str, Any]:
        """Receive a worker's message: "rows", "done" or "failed", and its content.

        Raises:
            WorkerError: the worker is dead.
        """
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


def _is_awaited(worker: _Worker, errors_by_job: dict[int, BaseException]) -> bool:
    """True if a worker has a job; after a failure, only if that job comes before the failed one."""
    if worker.number is None:
        return False
    return not errors_by_job or worker.number < min(errors_by_job)


def _send_next_job(worker: _Worker, waiting_jobs: Iterator[tuple[int, Job]]) -> None:
    """Send the next waiting job to a worker, if there is one."""
    numbered_job = next(waiting_jobs, None)
    if numbered_job is None:
        return
    worker.number, job = numbered_job
    with contextlib.suppress(BrokenPipeError):  # the worker is dead, which `_receive` reports
        worker.connection.send(job)


def _serve(connection: Connection, make_state: Callable[[], Any]) -> None:
    """Main loop of a worker process: receive a job, run it, send its result or its error."""
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
            message = ("done", job.run(state, on_progress))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            message = ("failed", sendable(error))
        _send(connection, message)


def _send(connection: Connection, message: tuple[str, Any]) -> None:
    """Send a message to the parent; end this process if the parent is gone."""
    try:
        connection.send(message)
    except (BrokenPipeError, ConnectionResetError):
        # nobody waits for the result, and another process may be doing the same job by now
        os._exit(1)


def sendable(error: Exception) -> Exception:
    """Error that can be pickled: ours as it is, any other as a RuntimeError with its traceback."""
    if isinstance(error, PosttrainError):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


_ROOT = Path(__file__).resolve().parent.parent


class RayPool:
    """Executor on Ray actors of one core each.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, make_state: Callable[[], Any], workers: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
            importlib.import_module("ray.data")
        except ImportError as error:
            raise ConfigError(
                "executor: ray needs the extra of this name: pip install 'posttrain[ray]'"
            ) from error
        self._ray = ray
        self._make_state = make_state
        self._workers = workers
        self._started = False

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            # a Ray of our own has a core for each worker, and one that distributes the jobs
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
        """See `Executor.run`; results stay on their machine, and None comes instead."""
        if not jobs:
            return
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)  # progress is shown by us
        actors = min(self._workers, len(jobs))
        results = data.range(len(jobs), override_num_blocks=len(jobs)).map(
            _Actor,
            fn_constructor_args=(self._make_state, list(jobs)),
            compute=data.ActorPoolStrategy(size=actors),
            num_cpus=1,
        )
        for row in results.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"], RuntimeError)(row["message"])
            on_progress(row["rows_read"])
            yield row["id"], None


class _Actor:
    """Ray actor that runs the job with a given index."""

    def __init__(self, make_state: Callable[[], Any], jobs: Sequence[Job]) -> None:
        self._state = make_state()
        self._jobs = jobs

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        rows_read: list[int] = []
        error_name = ""
        message = ""
        try:
            self._jobs[row["id"]].run(self._state, rows_read.append)
        except Exception as error:  # noqa: BLE001 - Ray would wrap it; `run` raises it
            sent_error = sendable(error)
            error_name = type(sent_error).__name__
            message = str(sent_error)
        return {
            "id": row["id"],
            "rows_read": sum(rows_read),
            "error": error_name,
            "message": message,
        }


class Stages:
    """Display of one stage after the other; a stage without a total shows the amount done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = 0.0  # monotonic time of the last line of a log
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, *, total: int | None = None, unit: str = "", done: int = 0) -> None:
        """Begin a stage.

        Args:
            total: amount to be done; None: not known.
            unit: plural noun of that amount.
            done: amount that an earlier run has done, which does not count for the rate.
        """
        for task in self._progress.tasks:
            self._progress.remove_task(task.id)
        self._progress.add_task(name, total=total, completed=done, before=done, unit=unit, text="")
        self._last_line = time.monotonic()

    def advance(self, count: int) -> None:
        """Add to the amount done, and show it."""
        (task,) = self._progress.tasks
        self._progress.advance(task.id, count)
        text = _progress_text(task)
        self._progress.update(task.id, text=text)
        time_now = time.monotonic()
        if not self._console.is_terminal and time_now - self._last_line >= _LOG_INTERVAL:
            self._last_line = time_now
            self._console.print(f"{task.description}: {text}", highlight=False)


def _progress_text(task: Task) -> str:
    """Text of a stage: "12,800 of ~18,000,000 rows, 2,130 rows/s, 2:20:43 left"."""
    unit = task.fields["unit"]
    seconds = task.elapsed
    rate = (task.completed - task.fields["before"]) / seconds if seconds else 0.0
    total = "" if task.total is None else f" of ~{task.total:,}"
    text = f"{task.completed:,}{total} {unit}, {rate:,.0f} {unit}/s"
    if task.total is not None and rate > 0:
        remaining_seconds = max(task.total - task.completed, 0) / rate
        text += f", {timedelta(seconds=round(remaining_seconds))} left"
    return text
