"""Jobs on several processes: results as they come, and a clear end whatever happens.

    with Pool(make_tools, workers=8) as pool:
        for number, result in pool.run(jobs, tell):
            …

A job is an object that can be sent, with `run(tools, tell)`. Workers are started anew (spawned) and
make their tools themselves. Jobs are given out in order. Of several that fail, the first in order
is the one reported, so an error does not depend on how fast a worker was. A worker ends when the
process that started it is gone; `Here` runs the same jobs in this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, Self

from posttrain.errors import PosttrainError

Tell = Callable[[int], None]


class WorkerError(PosttrainError):
    """A worker process that ended without a word."""


class Job(Protocol):
    """Something to do in whatever process; it can be sent, and so can its result."""

    def run(self, tools: Any, tell: Tell) -> Any:
        """Do it; `tell` is told how many rows more were handled."""
        ...

    def describe(self) -> str:
        """For messages."""
        ...


class Executor(Protocol):
    """Runs jobs."""

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Any]]:
        """The position of each job and its result, in the order in which they end."""
        ...


class Here:
    """Runs jobs one after the other in this process."""

    def __init__(self, tools: Any) -> None:
        self._tools = tools

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        for number, job in enumerate(jobs):
            yield number, job.run(self._tools, tell)


class _Worker:
    def __init__(self, make_tools: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, make_tools))
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

    def give(self, number: int, job: Job) -> None:
        self.number = number
        with contextlib.suppress(BrokenPipeError):  # it is dead; `receive` finds out
            self.connection.send((number, job))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """Runs jobs on `workers` processes, started when the first jobs come.

    Raises:
        WorkerError: a worker died, for instance for want of memory.
    """

    def __init__(self, make_tools: Callable[[], Any], workers: int) -> None:
        self._make_tools, self._most = make_tools, workers
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        while len(self._workers) < min(self._most, len(jobs)):
            self._workers.append(_Worker(self._make_tools))
        waiting = iter(enumerate(jobs))
        failed: dict[int, BaseException] = {}
        for worker in self._workers:
            _give_next(worker, waiting)
        while busy := [w for w in self._workers if _matters(w, failed)]:
            for worker in _ready(busy):
                kind, *said = self._receive(worker, jobs)
                if kind == "rows":
                    tell(said[0])
                    continue
                number, worker.number = worker.number, None
                assert number is not None
                if kind == "failed":
                    failed[number] = said[0]
                    waiting = iter(())
                    continue
                _give_next(worker, waiting)
                yield number, said[0]
        if failed:
            raise failed[min(failed)]

    def _receive(self, worker: _Worker, jobs: Sequence[Job]) -> tuple[Any, ...]:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            assert worker.number is not None
            raise WorkerError(
                f"a worker process {how} at {jobs[worker.number].describe()}. Without a message "
                "above it, that is most often want of memory: use fewer workers. What is finished "
                "is kept; the same command goes on from there"
            ) from None


def _matters(worker: _Worker, failed: dict[int, BaseException]) -> bool:
    """Whether to wait for a worker: after a failure, only for those with an earlier job."""
    return worker.number is not None and (not failed or worker.number < min(failed))


def _ready(busy: Sequence[_Worker]) -> list[_Worker]:
    found = wait([worker.connection for worker in busy])
    return [worker for worker in busy if worker.connection in found]


def _give_next(worker: _Worker, waiting: Iterator[tuple[int, Job]]) -> None:
    found = next(waiting, None)
    if found is not None:
        worker.give(*found)


def _serve(connection: Connection, make_tools: Callable[[], Any]) -> None:
    """A worker's life."""
    tools: Any = None

    def tell(rows: int) -> None:
        _send(connection, ("rows", rows))

    while True:
        try:
            _, job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            tools = tools or make_tools()
            answer = ("done", job.run(tools, tell))
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
