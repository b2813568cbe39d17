"""What a process tree uses right now, read from /proc on the host.

    tree(4711)                → [4711, 4712, 4720]
    excess(4711, Limits())    → "memory", or None while all is well

A process beyond its processor time has ignored the kernel's signal, which ends any other; the
kernel's own end to it would come later, and could not be told from other kills.

A daemon that leaves its parent stays in the tree: in a process namespace its new parent is the
namespace's first process, which is the root of the tree.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from posttrain.tools.bubblewrap import SCRATCH
from posttrain.tools.limits import Limit, Limits

_TICKS = os.sysconf("SC_CLK_TCK")
_LATE = 0.2  # seconds of processor time for the signal to end a process


def tree(root: int) -> list[int]:
    """Process ids of `root` and all its descendants."""
    found, waiting = [root], [root]
    while waiting:
        parent = Path(f"/proc/{waiting.pop()}/task")
        with contextlib.suppress(OSError):  # it may end while we look
            for thread in parent.iterdir():
                children = [int(pid) for pid in (thread / "children").read_text("ascii").split()]
                found += children
                waiting += children
    return found


def memory_kb(pid: int) -> int:
    """Resident memory that belongs to no file, in KiB; 0 for a process that has ended."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1])
    return total


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, in seconds; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        # the name stands in parentheses and may hold some itself; times are fields 14 and 15
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def excess(root: int, limits: Limits) -> Limit | None:
    """The watched bound that the tree under `root` is beyond, if any."""
    processes = tree(root)
    if sum(memory_kb(pid) for pid in processes) > limits.memory_mb * 1024:
        return "memory"
    if max(cpu_seconds(pid) for pid in processes) > limits.cpu_seconds + _LATE:
        return "cpu"
    with contextlib.suppress(OSError):
        held = os.statvfs(f"/proc/{root}/root{SCRATCH}")
        if held.f_files - held.f_ffree > limits.files:
            return "files"
    return None
