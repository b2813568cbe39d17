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


# the program of a parent: it prints the ids of its workers, of which one waits for
# what never comes
PARENT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from data_builders.workers import ProcessPool
from posttrain.config.command import run_command
from tests.data_builders.pool_jobs import Job, WorkerState
def run(jobs, end):
    with ProcessPool(WorkerState, 2) as pool:
        said = []
        def on_progress(count):
            if not said:
                print(*(w.process.pid for w in pool._workers), flush=True)
                said.append(count)
                end()
        list(pool.run([Job(k, waits_for={never!r} * (k > 1)) for k in jobs], on_progress))
if __name__ == "__main__":
    {main}
"""
KILLED = "run([1, 2, 3], lambda: os.kill(os.getpid(), 9))"
# a shell that started the tests in the background had Ctrl-C ignored
INTERRUPTED = (
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "run_command(lambda: run([1, 2], lambda: None))"
)
