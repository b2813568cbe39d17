"""Worker processes for what may never end: jobs in, results out, each killed at its limit.

    Workers(size=8).run([("equal", ["2x", "x+x"])]) → [JobResult(True)]

Jobs and results are lines of JSON: nothing is unpickled, and `__main__` is not imported again.
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

Job = tuple[str, list[Any]]  # a name in worker_main.JOBS, and its arguments
RunJobs = Callable[[Sequence[Job]], "list[JobResult]"]  # one result a job, in order
WALL_SECONDS = 60.0  # of a job
START_SECONDS = 120.0  # importing the algebra from a slow disk
MEMORY = 4 << 30  # bytes of address space
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job gave: its value, or why there is none, and whether that was a limit of time."""

    value: Any
    problem: str | None = None
    timed_out: bool = False

    @property
    def failure(self) -> FailureKind | None:
        """The kind of failure; None where there is a value."""
        if self.problem is None:
            return None
        return "timeout" if self.timed_out else "verifier_error"


class Worker:
    """One process, started when first used and again after its death. Not thread-safe."""

    def __init__(self, *, cpu_seconds: float) -> None:
        self.cpu_seconds = cpu_seconds
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job) -> JobResult:
        """Do a job; one that ends the worker has a problem. Raises RuntimeError: the worker cannot
        be started at all."""
        try:
            process = self.process
            if process is None or process.poll() is not None:  # it ended while idle
                process = self._start()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is ending: its status is the answer
                process.stdin.write(json.dumps(job).encode("ascii") + b"\n")
                process.stdin.flush()
            return self._answer(process, WALL_SECONDS)
        except BaseException:  # an answer not read would be taken for the next job's
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
                start_new_session=True,  # Ctrl-C is for the parent, which then ends us
            )
            self.process = process
            if problem := self._answer(process, START_SECONDS).problem:
                errors.seek(0)
                message = errors.read().decode("utf-8", "replace").strip()[-2000:]
                raise RuntimeError(f"a grading worker does not start: {problem}\n{message}")
        return process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> JobResult:
        assert process.stdout is not None
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN | select.POLLHUP)
        if not waiting.poll(seconds * 1000):
            self.kill()
            return JobResult(None, f"no answer in {seconds:g} s", timed_out=True)
        line = process.stdout.readline()  # written at once
        if line.endswith(b"\n"):
            return JobResult(**json.loads(line))
        status = process.wait()
        self.kill()
        if status == -signal.SIGPROF:
            return JobResult(None, f"stopped after {self.cpu_seconds:g} s", timed_out=True)
        return JobResult(None, f"ended with status {status}")

    def kill(self) -> None:
        """End the process, whatever it does. It starts again when next used."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Close our ends alone: in a fork of the owner the process is not ours."""
        process, self.process = self.process, None
        if process is None:
            return
        process.returncode = process.returncode or 0  # else it would be waited for
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what was never read is flushed in vain
                stream.close()


class Workers:
    """A few worker processes, started as they are needed. Thread-safe."""

    def __init__(self, *, size: int, cpu_seconds: float = 5.0) -> None:
        self._workers = [Worker(cpu_seconds=cpu_seconds) for _ in range(size)]
        self._reset()
        # a fork has our pipes but not our processes: its jobs must not mix with ours
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _reset(self) -> None:
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()  # last used first: it is warm
        for worker in self._workers:
            self._free.put(worker)
        # as many threads as workers: no job waits inside a thread that others could use
        self._threads = ThreadPoolExecutor(len(self._workers), thread_name_prefix="grading")

    def _forget(self) -> None:
        for worker in self._workers:
            worker.forget()
        self._reset()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """One result a job, in order."""
        return list(self._threads.map(self._run, jobs))

    async def run_one(self, job: Job) -> JobResult:
        """As `run`, for one job; the event loop goes on meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)

    def _run(self, job: Job) -> JobResult:
        worker = self._free.get()
        try:
            return worker.run(job)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the processes. They start again when they are needed."""
        for worker in self._workers:
            worker.kill()

    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]


# what all graders of a process share; nothing starts before it is used
SHARED_WORKERS = Workers(size=min(8, os.cpu_count() or 1))
run_shared: RunJobs = SHARED_WORKERS.run
