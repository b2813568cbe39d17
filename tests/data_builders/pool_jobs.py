"""Jobs for a pool of processes, in a file of their own so that workers can import them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import DataError


class WorkerState:
    """What a worker makes once: it remembers how many jobs it did."""

    def __init__(self) -> None:
        self.done = 0


@dataclass(frozen=True)
class Job:
    """Squares a number, unless told to do something else."""

    number: int
    does: str = "square"
    waits_for: str = ""
    touches: str = ""

    def describe(self) -> str:
        """For messages."""
        return f"job {self.number}"

    def run(self, state: WorkerState, on_progress: Callable[[int], None]) -> tuple[int, int]:
        """The square, and who computed it."""
        state.done += 1
        while self.waits_for and not Path(self.waits_for).exists():
            on_progress(0)  # fails, and ends this process, once nobody listens
            time.sleep(0.01)
        if self.touches:
            Path(self.touches).touch()
        if self.does == "die":
            os.kill(os.getpid(), 9)
        if self.does == "exit":
            os._exit(3)
        if self.does == "data error":
            raise DataError(f"rows.jsonl:{self.number}: bad")
        if self.does == "bug":
            raise ZeroDivisionError("not the user's")
        on_progress(self.number)
        return self.number**2, os.getpid()


PARENT = """
import os, sys
sys.path.insert(0, {root!r})
from data_builders.workers import ProcessPool
from tests.data_builders.pool_jobs import Job, WorkerState
if __name__ == "__main__":
    def on_progress(count):
        pass
    with ProcessPool(WorkerState, 2) as pool:
        jobs = [Job(1), Job(2), Job(3, waits_for={never!r}), Job(4, waits_for={never!r})]
        pids = []
        for _, (_, pid) in pool.run(jobs, on_progress):
            pids.append(pid)
            if len(pids) == 2:
                print(*(w.process.pid for w in pool._workers), flush=True)
                os.kill(os.getpid(), 9)
"""


INTERRUPTED = """
import signal, sys
sys.path.insert(0, {root!r})
from data_builders.workers import ProcessPool
from posttrain.config.command import run_command
from tests.data_builders.pool_jobs import Job, WorkerState
def main():
    with ProcessPool(WorkerState, 2) as pool:
        said = []
        def on_progress(count):
            if not said:
                print(*(w.process.pid for w in pool._workers), flush=True)
                said.append(count)
        list(pool.run([Job(1, waits_for={never!r}), Job(2, waits_for={never!r})], on_progress))
if __name__ == "__main__":
    # a shell that started the tests in the background had Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command(main)
"""
