"""Workers: what never ends is ended, what is asked is answered, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward.graders.math import Math
from reward.graders.workers import JobResult, Workers
from tests.reward.graders.attempts import prompt_of, values

ROOT = Path(__file__).resolve().parents[3]
SAME = ("equal", ["\\sqrt{8}", "2\\sqrt{2}"])
DIFFERENT = ("equal", ["\\sqrt{8}", "2\\sqrt{3}"])
STALLS = ("last_match", [["(a+)+$"], "a" * 60 + "b"])  # a pattern that tries 2^60 ways


def test_answers_come_in_order_and_what_stalls_fails_or_hogs_memory_is_that_jobs_own(
    workers: Workers,
):
    jobs = [SAME if k % 3 else DIFFERENT for k in range(21)]
    assert workers.run(jobs) == [JobResult(k % 3 != 0) for k in range(len(jobs))]
    assert workers.run([]) == []
    hog = ("last_match", [["x{0,4294967294}y"], "x"])
    unreadable = ("equal", ["Monday", "x"])
    results = workers.run([SAME, STALLS, DIFFERENT, unreadable, hog, SAME])
    assert [results[k].value for k in (0, 2, 5)] == [True, False, True]
    assert results[1].problem == "stopped after 1 s"
    assert results[3] == JobResult(None, "Unreadable: Monday")


def test_a_worker_killed_while_idle_is_replaced(workers: Workers):
    workers.run([SAME])
    for pid in workers.pids():
        os.kill(pid, signal.SIGKILL)
        _wait_until_gone(pid)
    assert workers.run([SAME, DIFFERENT]) == [JobResult(True), JobResult(False)]


def test_sixty_four_threads_at_once_score_as_one_call(workers: Workers):
    """math-verify's own time limit is a signal: outside the main thread it scores 0."""
    golds = [("\\sqrt{8}", "2\\sqrt{2}"), ("x+1", "1+x"), ("7", "7"), ("x", "y")]
    requests = [(prompt_of(gold), f"It is $\\boxed{{{answer}}}$") for gold, answer in golds]
    grader = Math(run=workers.run)
    with ThreadPoolExecutor(64) as threads:
        scores = [threads.submit(values, grader, requests[k % 4 :]) for k in range(64)]
    alone = [1.0, 1.0, 1.0, 0.0]
    assert [score.result() for score in scores] == [alone[k % 4 :] for k in range(64)]


def test_a_fork_has_workers_of_its_own(workers: Workers):
    """Else it would read the answers to what its parent asks."""
    before = set(workers.pids()) or (workers.run([SAME]), set(workers.pids()))[1]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        right = workers.run([SAME]) == [JobResult(True)]
        apart = not before & set(workers.pids())
        os.write(writing, b"ok" if right and apart else b"no")
        workers.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 2) == b"ok"
    assert set(workers.pids()) == before
    assert workers.run([SAME]) == [JobResult(True)]


PARENT = """
import sys, threading
from reward.graders.workers import Workers
busy = sys.argv[1] == "busy"
workers = Workers(size=1 + busy, cpu_seconds=2.0)
workers.run([("equal", ["x+x", "2x"])] * 64)
idle = workers.pids()
stalled = threading.Thread(target=workers.run, args=([("last_match", [["(a+)+$"], "a" * 60 + "b"])],))
if busy:
    stalled.start()
print(*idle, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed while busy", "left"])
def test_no_worker_outlives_its_parent(how: str):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "busy" if how.endswith("busy") else "idle"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    if how == "left":
        parent.stdin.close()
    else:
        parent.kill()
    parent.wait()
    for pid in pids:
        _wait_until_gone(pid)
    parent.stdout.close()


def _wait_until_gone(pid: int) -> None:
    """Returns when the process has ended; the pidfd becomes readable then."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


def test_workers_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reward.graders.workers.ROOT", str(ROOT / "tests"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(ROOT / "tests")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        Workers(size=1).run([SAME])
