"""Worker processes for jobs that may never end, each killed at its limit.

    Workers(size=8).run([("equal", ["2x", "x+x"])]) → [JobResult(True)]

Jobs and results are lines of JSON, not pickles: a worker's output is data from untrusted code, and
it need not import the parent's `__main__`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.records import FailureKind

Job = tuple[str, list[Any]]  # name in worker_main.JOBS, arguments
RunJobs = Callable[[Sequence[Job]], "list[JobResult]"]  # jobs → their results, in order
WALL_SECONDS = 60.0  # limit of a job, with what it imports
START_SECONDS = 120.0  # limit of a start, perhaps from a slow disk
MEMORY = 4 << 30  # bytes of address space
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job: its value, or why there is none and whether a time limit was the reason."""

    value: Any
    problem: str | None = None
    timed_out: bool = False

    @property
    def failure(self) -> FailureKind | None:
        """The kind of failure; None if there is a value."""
        if self.problem is None:
            return None
        return "timeout" if self.timed_out else "verifier_error"


class Worker:
    """One worker process, started at its first job and again after its death. Not thread-safe."""

    def __init__(self, *, cpu_seconds: float) -> None:
        self.cpu_seconds = cpu_seconds
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job) -> JobResult:
        """Run a job; if it ends the worker process, the result has a problem.

        Raises RuntimeError: the worker cannot be started at all.
        """
        try:
            process = self.process
            if process is None or process.poll() is not None:  # it ended while idle
                process = self._start()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is ending: its status is the answer
                process.stdin.write(json.dumps(job).encode("ascii") + b"\n")
                process.stdin.flush()
            return self._read_result(process, WALL_SECONDS)
        except BaseException:  # an unread result would be taken for that of the next job
            self.kill()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        self.kill()
        paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        arguments = [str(self.cpu_seconds), str(MEMORY)]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "reward.graders.worker_main", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends its workers
            )
            self.process = process
            if problem := self._read_result(process, START_SECONDS).problem:
                errors.seek(0)
                message = errors.read().decode("utf-8", "replace").strip()[-2000:]
                raise RuntimeError(f"a grading worker does not start: {problem}\n{message}")
        return process

    def _read_result(self, process: subprocess.Popen[bytes], seconds: float) -> JobResult:
        """Wait for the result of the job at hand; after `seconds` the process is killed."""
        assert process.stdout is not None
        stdout_poll = select.poll()
        stdout_poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        if not stdout_poll.poll(seconds * 1000):
            self.kill()
            return JobResult(None, f"no answer in {seconds:g} s", timed_out=True)
        line = process.stdout.readline()  # does not block: a worker writes its line at once
        if line.endswith(b"\n"):
            return JobResult(**json.loads(line))
        status = process.wait()
        self.kill()
        if status == -signal.SIGPROF:  # the timer of its CPU seconds
            return JobResult(None, f"stopped after {self.cpu_seconds:g} s", timed_out=True)
        return JobResult(None, f"ended with status {status}")

    def kill(self) -> None:
        """Kill the process, whatever it is doing. It starts again at the next job."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Close our ends of the pipes without touching the process.

        A fork of its owner must not end it.
        """
        process = self.process
        self.process = None
        if process is None:
            return
        process.returncode = process.returncode or 0  # else Popen's destructor would wait for it
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # closing flushes a job that nobody reads
                stream.close()


class Workers:
    """Pool of worker processes, started as they are needed. Thread-safe."""

    def __init__(self, *, size: int, cpu_seconds: float = 5.0) -> None:
        self._workers = [Worker(cpu_seconds=cpu_seconds) for _ in range(size)]
        self._mark_all_free()
        # a fork has our pipes but not our processes: its jobs must not mix with ours
        os.register_at_fork(after_in_child=self._start_over_in_fork)
        atexit.register(self.close)

    def _mark_all_free(self) -> None:
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()  # last used first: it is warm
        for worker in self._workers:
            self._free.put(worker)
        # as many threads as workers: no job waits inside a thread that others could use
        self._threads = ThreadPoolExecutor(len(self._workers), thread_name_prefix="grading")

    def _start_over_in_fork(self) -> None:
        for worker in self._workers:
            worker.forget()
        self._mark_all_free()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Run jobs in parallel; returns their results in order."""
        return list(self._threads.map(self._run_on_free_worker, jobs))

    async def run_one(self, job: Job) -> JobResult:
        """Run a job without blocking the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run_on_free_worker, job)

    def _run_on_free_worker(self, job: Job) -> JobResult:
        worker = self._free.get()
        try:
            return worker.run(job)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Kill the processes. They start again when they are needed."""
        for worker in self._workers:
            worker.kill()

    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]


# shared by all graders of a process; no worker starts before its first job
SHARED_WORKERS = Workers(size=min(8, os.cpu_count() or 1))
run_shared: RunJobs = SHARED_WORKERS.run
