"""Jobs on several processes: all results, the first error, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_builders.workers import ProcessPool, Serial, WorkerError
from posttrain.errors import DataError
from tests.data_builders.pool_jobs import INTERRUPTED, KILLED, PARENT, Job, WorkerState

ROOT = Path(__file__).resolve().parent.parent.parent


def ignore(_: int) -> None:
    """Hears of progress."""


def test_every_job_is_done_once_by_one_of_the_workers():
    told: list[int] = []
    jobs = [Job(k) for k in range(20)]
    with ProcessPool(WorkerState, 2) as pool:
        found = dict(pool.run(jobs, told.append))
        again = dict(pool.run([Job(7)], ignore))
    assert {k: square for k, (square, _) in found.items()} == {k: k * k for k in range(20)}
    pids = {pid for _, pid in found.values()}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert again[0][1] in pids, "the same workers"
    assert sorted(told) == list(range(20))
    here = dict(Serial(WorkerState()).run(jobs, ignore))
    assert {pid for _, pid in here.values()} == {os.getpid()}
    assert {k: square for k, (square, _) in here.items()} == {k: k * k for k in range(20)}


def test_of_several_errors_the_first_in_order_is_raised(tmp_path):
    """The first job begins to fail when the second has begun to: both are waited for."""
    go = str(tmp_path / "go")
    jobs = [Job(1, "data error", waits_for=go), Job(2, "data error", touches=go), Job(3)]
    with ProcessPool(WorkerState, 2) as pool, pytest.raises(DataError, match=r"rows\.jsonl:1: bad"):
        list(pool.run(jobs, ignore))


@pytest.mark.parametrize(
    ("does", "error", "pattern"),
    [
        ("bug", RuntimeError, "ZeroDivisionError: not the"),
        ("die", WorkerError, "killed by signal 9 at job 2.*memory"),
        ("exit", WorkerError, "status 3 at job 2.*memory"),
    ],
)
def test_a_job_that_fails_ends_the_run_with_its_story(does, error, pattern):
    with ProcessPool(WorkerState, 1) as pool, pytest.raises(error, match=pattern):
        list(pool.run([Job(1), Job(2, does), Job(3)], ignore))


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [(KILLED, -9, ""), (INTERRUPTED, 130, "interrupted; rerun the same command to resume\n")],
)
def test_no_worker_outlives_its_parent(tmp_path, program, code, words):
    """Killed, the parent tells nobody: workers find out when they next speak or listen. Ctrl-C
    goes to all of a terminal's processes; one worker may still be importing."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(root=str(ROOT), never=str(tmp_path / "never"), main=program))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True, **pipes)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    if code == 130:
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (code, words)
    assert len(pids) == 2
    _check_gone(pids)


def _check_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
