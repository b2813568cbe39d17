"""One worker process, as its owner sees it: jobs in, results out, killed at a limit.

    Worker(cpu_seconds=5.0, wall_seconds=60.0, memory=1 << 32).run([("same", ["2x", "x+x", None])])
    → [JobResult(True)]

Jobs and results are lines of JSON: nothing is unpickled, and `__main__` is not imported again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Job = tuple[str, list[Any]]  # a name in worker_jobs.JOBS, and its arguments
START_SECONDS = 120.0  # importing the algebra from a slow disk
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job gave: its value, or why there is none."""

    value: Any
    problem: str | None = None


class WorkerGone(Exception):
    """A worker ended, or no longer answers."""


class Worker:
    """One process, started when first used and again after its death. Not thread-safe."""

    def __init__(self, *, cpu_seconds: float, wall_seconds: float, memory: int) -> None:
        self.cpu_seconds, self.wall_seconds, self.memory = cpu_seconds, wall_seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        return None if self._process is None else self._process.pid

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Do the jobs in order; a job that ends the worker has a problem, the others go on.

        Raises:
            RuntimeError: the worker cannot be started at all.
        """
        results: list[JobResult] = []
        while len(results) < len(jobs):
            rest = jobs[len(results) :]
            process = self._ask(rest)
            try:
                for _ in rest:
                    answer = self._answer(process, self.wall_seconds)
                    results.append(JobResult(answer.get("value"), answer.get("error")))
            except WorkerGone as gone:
                self.kill()
                results.append(JobResult(None, str(gone)))
            except BaseException:  # a half-read batch would answer the next one's jobs
                self.kill()
                raise
        return results

    def _ask(self, jobs: Sequence[Job]) -> subprocess.Popen[bytes]:
        line = json.dumps(jobs).encode("ascii") + b"\n"
        for process in (self._process, None):
            process = process or self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:  # it ended while idle: nothing of this batch was begun
                self.kill()
                continue
            return process
        raise RuntimeError("a grading worker ends as soon as it has started")

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        arguments = [str(self.cpu_seconds), str(self.memory)]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "reward.graders.worker_main", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the parent, which then ends us
            )
            self._process, self._unread = process, b""
            try:
                self._answer(process, START_SECONDS)
            except WorkerGone as gone:
                self.kill()
                errors.seek(0)
                message = errors.read().decode("utf-8", "replace").strip()[-2000:]
                raise RuntimeError(f"a grading worker does not start: {gone}\n{message}") from gone
        return process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        deadline, descriptor = time.monotonic() + seconds, process.stdout.fileno()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                raise WorkerGone(f"no answer in {seconds:g} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise WorkerGone(self._epitaph(process.wait()))
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _epitaph(self, status: int) -> str:
        if status == -signal.SIGPROF:
            return f"stopped after {self.cpu_seconds:g} s"
        return f"ended with status {status}"

    def kill(self) -> None:
        """End the process, whatever it does. It starts again when next used."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        _close(process)

    def forget(self) -> None:
        """In a fork of the owner: the process is not ours, so leave it alone."""
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # else it would be waited for
            _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # what was never read is flushed in vain
            stream.close()


BATCH = 32  # jobs a worker gets at once
MEMORY = 4 << 30  # bytes of address space


class Workers:
    """A few worker processes, started as they are needed."""

    def __init__(self, *, size: int, cpu_seconds: float = 5.0, wall_seconds: float = 60.0) -> None:
        assert size > 0
        self._made = [
            Worker(cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory=MEMORY)
            for _ in range(size)
        ]
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()  # last used first: it is warm
        self._reset()
        # a fork has our pipes but not our processes: what it asks must not mix with what we ask
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _reset(self) -> None:
        self._free = queue.LifoQueue()
        for worker in self._made:
            self._free.put(worker)

    def _forget(self) -> None:
        for worker in self._made:
            worker.forget()
        self._reset()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """One result a job, in order."""
        batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
        if len(batches) < 2:
            return [result for batch in batches for result in self._run_batch(batch)]
        with ThreadPoolExecutor(min(len(batches), len(self._made))) as threads:
            return [result for done in threads.map(self._run_batch, batches) for result in done]

    def _run_batch(self, jobs: Sequence[Job]) -> list[JobResult]:
        worker = self._free.get()
        try:
            return worker.run(jobs)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the processes. They start again when they are needed."""
        for worker in self._made:
            worker.kill()

    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self._made if worker.pid is not None]


_making = threading.Lock()


def shared_workers() -> Workers:
    """The workers that all graders of this process share."""
    with _making:
        return _shared()


@functools.cache
def _shared() -> Workers:
    return Workers(size=min(8, os.cpu_count() or 1))
