"""Worker processes for jobs that may never end: each has a limit, and is killed at it.

    workers = Workers(size=2, cpu_seconds=5.0)
    workers.run([("same", ["\\\\sqrt{8}", "2\\\\sqrt{2}", None])]) → [Outcome(True)]

Any number of threads may call `run`; from asyncio, call it through `asyncio.to_thread`. A job's
limit is CPU time, so that a busy machine does not change a verdict; a second limit, in wall time,
is for a worker that no longer runs at all.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from reward.worker import Job, Outcome, Worker

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

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job, in order."""
        batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
        if len(batches) < 2:
            return [outcome for batch in batches for outcome in self._run_batch(batch)]
        with ThreadPoolExecutor(min(len(batches), len(self._made))) as threads:
            return [outcome for done in threads.map(self._run_batch, batches) for outcome in done]

    def _run_batch(self, jobs: Sequence[Job]) -> list[Outcome]:
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
