"""The process in which one job at a time is done: `python -m reward.worker_main CPU_SECONDS BYTES`.

    stdin   [["same", ["\\\\sqrt{8}", "2\\\\sqrt{2}", null]], …]     one line a batch
    stdout  {"value": true}                                one line a job, as it ends

The kernel itself ends the process when a job has used its CPU seconds: no Python code has to run
for that, so neither a loop in C nor the death of the parent leaves anything behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
from typing import Any

from reward.worker_jobs import JOBS

LOOK_FOR_PARENT = 5000  # milliseconds: a fork of the parent may hold our stdin open after it


def main() -> None:
    """Answer batches until stdin closes or the parent is gone."""
    parent = os.getppid()
    cpu_seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # a library that prints must not speak among the answers
    waiting = select.poll()
    waiting.register(0, select.POLLIN | select.POLLHUP)
    print(json.dumps({"value": "ready"}), file=answers, flush=True)
    while os.getppid() == parent:
        if not waiting.poll(LOOK_FOR_PARENT):
            continue
        line = sys.stdin.readline()  # one batch: the next comes when this one is answered
        if not line.endswith("\n"):
            return
        for name, arguments in json.loads(line):
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            answer = _do(name, arguments)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(answer), file=answers, flush=True)


def _do(name: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"value": JOBS[name](*arguments)}
    except Exception as error:  # noqa: BLE001 - whatever algebra raises: the caller is told
        return {"error": f"{type(error).__name__}: {error}"[:200]}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
