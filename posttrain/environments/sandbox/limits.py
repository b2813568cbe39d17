"""What a sandboxed program may use, and what came of it.

    Limits(seconds=5, memory_mb=256)
    SandboxResult(stdout=b"42\n", stderr=b"", exit_code=0, limit=None)

Every bound is enforced by the kernel but three: wall time, and the memory and number of files of
the whole tree, which a watching thread measures every few hundredths of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = Literal["time", "cpu", "memory", "files", "output"]
MEBI = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run.

    Attributes:
        seconds: wall time until the whole process tree is killed.
        cpu_seconds: processor time of each process.
        memory_mb: address space of each process, and resident memory of the whole tree with what
            its sockets may hold queued (watched; pages that forked processes share count in each).
        processes: processes and threads together.
        scratch_mb: size of the scratch directory, which lives in memory; a file may be as large.
        shm_mb: size of /dev/shm.
        files: files and directories in the scratch directory and /dev/shm (watched).
        open_files: descriptors of each process.
        output_bytes: of stdout, and of stderr; a program that writes more is killed.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory_mb: int = 512
    processes: int = 32
    scratch_mb: int = 64
    shm_mb: int = 16
    files: int = 10_000
    open_files: int = 128
    output_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a run wrote and how it ended.

    `exit_code` is 128 + the signal for a program that a signal ended. `limit` names the bound at
    which the run was killed, None where it ended by itself. Output beyond its bound is cut off.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    limit: Limit | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and self.limit is None
