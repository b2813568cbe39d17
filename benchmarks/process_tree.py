"""What a command costs, all its processes together, and what the machine did besides.

    cost, said = measured([sys.executable, "scripts/build_sft.py", …], cwd=ROOT)
    → Cost(wall=41.2, cpu=39.8, largest=Memory(624…, 476…), together=Memory(…), others=0.13)

Memory is sampled from /proc, fifty times a second, so this is for Linux. Resident is what the
kernel counts: libraries and mapped files too, once for each process that has them. Anonymous is
what a process itself asked for.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_EVERY = 0.02  # seconds between looks


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    resident: int = 0
    anonymous: int = 0

    def largest(self, other: Memory) -> Memory:
        """The larger of each."""
        return Memory(max(self.resident, other.resident), max(self.anonymous, other.anonymous))

    def plus(self, other: Memory) -> Memory:
        """Both together."""
        return Memory(self.resident + other.resident, self.anonymous + other.anonymous)


@dataclass(frozen=True, slots=True)
class Cost:
    """One command. `largest` and `together` are the peaks of its largest process and of all.

    `others` is how many cores other work on the machine kept busy, in the mean.
    """

    wall: float
    cpu: float
    largest: Memory
    together: Memory
    others: float


def measured(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> tuple[Cost, str]:
    """Run a command that waits for its children; its cost, and what it said.

    Raises:
        SystemExit: it failed; with what it said.
    """
    own, busy, started = _children_cpu(), _busy(), time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = _Watch(process.pid)
    said, _ = process.communicate()
    watch.stop()
    wall, cpu = time.perf_counter() - started, _children_cpu() - own
    if process.returncode:
        raise SystemExit(said)
    others = max(_busy() - busy - cpu, 0.0) / wall
    return Cost(wall, cpu, watch.largest, watch.together, others), said


def cpu_seconds(pid: int) -> float:
    """What a process and its descendants have computed so far, those that have ended included."""
    ticks = 0
    for member in _tree(pid):
        for line in _lines(f"/proc/{member}/stat"):
            ticks += sum(int(value) for value in line.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = values[:8]
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


class _Watch:
    """Looks at a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.largest = self.together = Memory()
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            sum_ = Memory()
            for pid in _tree(self._pid):
                found = _memory(pid)
                self.largest = self.largest.largest(found)
                sum_ = sum_.plus(found)
            self.together = self.together.largest(sum_)


def _tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:  # grows as it is gone through
        for task in _lines(f"/proc/{parent}/task/{parent}/children"):
            found += [int(child) for child in task.split()]
    return found


def _memory(pid: int) -> Memory:
    values = dict(line.split(":", 1) for line in _lines(f"/proc/{pid}/status"))
    resident, anonymous = (
        int(values.get(name, "0").split()[0]) << 10 for name in ("VmRSS", "RssAnon")
    )
    return Memory(resident, anonymous)


def _lines(path: str) -> list[str]:
    """The lines of a file of /proc; none of a process that is gone."""
    try:
        return Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
