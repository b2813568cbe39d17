"""Cost of a command, all its processes together, and what the machine did besides.

    cost, output = measured([sys.executable, "scripts/build_sft.py", …], cwd=ROOT)
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

_INTERVAL = 0.02  # seconds between samples


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of processes, in bytes."""

    resident: int = 0
    anonymous: int = 0

    def maximum(self, memory: Memory) -> Memory:
        """Maximum of both, of each kind of memory."""
        return Memory(max(self.resident, memory.resident), max(self.anonymous, memory.anonymous))

    def plus(self, memory: Memory) -> Memory:
        """Sum of both."""
        return Memory(self.resident + memory.resident, self.anonymous + memory.anonymous)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one command.

    Attributes:
        largest: peak of its largest process.
        together: peak of all its processes together.
        others: mean number of cores that other work on the machine kept busy.
    """

    wall: float
    cpu: float
    largest: Memory
    together: Memory
    others: float


def measured(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> tuple[Cost, str]:
    """Run a command that waits for its children. Returns its cost and its output.

    Raises:
        SystemExit: it failed; with its output.
    """
    cpu_before = _children_cpu()
    busy_before = _busy()
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = _Watch(process.pid)
    output, _ = process.communicate()
    watch.stop()
    wall = time.perf_counter() - started
    cpu = _children_cpu() - cpu_before
    if process.returncode:
        raise SystemExit(output)
    cores_of_others = max(_busy() - busy_before - cpu, 0.0) / wall
    return Cost(wall, cpu, watch.largest, watch.together, cores_of_others), output


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its descendants so far, those that have ended included."""
    ticks = 0
    for member in _tree(pid):
        for line in _lines(f"/proc/{member}/stat"):
            ticks += sum(int(value) for value in line.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = values[:8]
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


class _Watch:
    """Thread that samples the memory of a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.largest = self.together = Memory()
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            total = Memory()
            for pid in _tree(self._pid):
                memory = _memory(pid)
                self.largest = self.largest.maximum(memory)
                total = total.plus(memory)
            self.together = self.together.maximum(total)


def _tree(pid: int) -> list[int]:
    """Ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:  # grows as it is gone through
        for task in _lines(f"/proc/{parent}/task/{parent}/children"):
            pids += [int(child) for child in task.split()]
    return pids


def _memory(pid: int) -> Memory:
    kilobytes: dict[str, int] = {"VmRSS": 0, "RssAnon": 0}
    for line in _lines(f"/proc/{pid}/status"):
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return Memory(kilobytes["VmRSS"] << 10, kilobytes["RssAnon"] << 10)


def _lines(path: str) -> list[str]:
    """Lines of a file of /proc; none where the process is gone."""
    try:
        return Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
