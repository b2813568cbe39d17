"""Run one sandboxed program and stay until its whole process tree is gone.

One thread a program, since a watch in the event loop would sleep whenever something blocks the
loop. The tree is killed through the first process of its namespace. A shell stands between us and
bubblewrap, which then does not die before its child can follow; the guardian (`guarded_group`) ends
what is left where this process itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.environments.sandbox.bubblewrap import SCRATCH, Launch, Limit, Limits
from posttrain.errors import ConfigError

_TICK = 0.025  # seconds between two looks at memory and files
_CHUNK = 65536
_CPU_EXCEEDED = 128 + signal.SIGXCPU
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a run wrote, cut off at its bound, and how it ended: `exit_code` is 128 + the signal of
    one that a signal ended, `limit` the bound at which it was killed, None where it was not."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    limit: Limit | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.limit is None


@dataclass(slots=True)
class _Tree:
    """The processes of a run. `first` is the host's id of the namespace's first process."""

    status: bytearray = field(default_factory=bytearray)
    first: int | None = None
    pidfd: int | None = None
    limit: Limit | None = None
    killed: bool = False

    def report(self, name: str) -> int | None:
        match = re.search(rb'"%s"\s*:\s*(\d+)' % name.encode(), bytes(self.status))
        return None if match is None else int(match[1])

    def learn(self, data: bytes) -> None:
        """Take a piece of the report, in which the first process may become known."""
        self.status += data
        if self.first is not None or (first := self.report("child-pid")) is None:
            return
        self.first = first
        with contextlib.suppress(ProcessLookupError):  # over already
            self.pidfd = os.pidfd_open(first)
        if self.killed:
            self.kill()

    def kill(self, limit: Limit | None = None) -> None:
        """Kill the tree, now or as soon as its first process is known. The first reason stands."""
        if not self.killed:
            self.killed, self.limit = True, limit
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> None:
        if self.pidfd is not None:
            select.select([self.pidfd], [], [])
            os.close(self.pidfd)


def supervise(
    launch: Launch,
    *,
    limits: Limits | None,
    stop: int,
    started: Callable[[int], None] | None = None,
) -> SandboxResult:
    """Start a sandbox and wait until nothing of it is left.

    Args:
        limits: None for a holder, which is ours and runs until it is stopped.
        stop: an eventfd; when it becomes readable the tree is killed.
        started: called with the process id of the sandbox's first process, once it has written.

    Raises:
        ConfigError: bubblewrap could not set the sandbox up; quotes what it says.
    """
    process = subprocess.Popen(  # noqa: S603 - a list, no shell; what it starts is the sandbox
        [launch.box.programs["sh"], "-c", '"$@"; exit $?', "sh", *launch.argv],
        stdin=launch.stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=launch.box.environment,
        cwd="/",
        pass_fds=launch.keep,
        process_group=guarded_group(),  # not ours: Ctrl-C is for us, and we then kill it
    )
    launch.copies.close()
    begun, tree = time.monotonic(), _Tree()
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    streams = {process.stdout.fileno(): out, process.stderr.fileno(): err}
    bound = 65536 if limits is None else limits.output_bytes
    try:
        ended = os.pidfd_open(process.pid)
        open_ends = {*streams, launch.status, ended}
        with contextlib.closing(selectors.DefaultSelector()) as waiting:
            for descriptor in (*open_ends, stop):
                waiting.register(descriptor, selectors.EVENT_READ)
            while open_ends:  # of both outputs, of the report, and of bubblewrap
                for key, _ in waiting.select(None if limits is None or tree.killed else _TICK):
                    data = b"" if key.fd in (stop, ended) else os.read(key.fd, _CHUNK)
                    if key.fd in (stop, ended):
                        # bubblewrap ends with its command; what the command left behind goes now
                        tree.kill()
                    elif key.fd == launch.status:
                        tree.learn(data)
                    else:
                        room = bound - len(streams[key.fd])
                        streams[key.fd].extend(data[:room])
                        if len(data) > room:
                            tree.kill("output")
                    if not data:
                        waiting.unregister(key.fd)
                        open_ends.discard(key.fd)
                if started is not None and tree.first is not None and out:
                    started(tree.first)
                    started = None
                if limits is None or tree.killed:
                    continue
                if time.monotonic() - begun >= limits.seconds:
                    tree.kill("time")
                elif tree.first is not None and (beyond := excess(tree.first, limits)):
                    tree.kill(beyond)
        os.close(ended)
        if limits is not None and time.monotonic() - begun >= limits.seconds:
            tree.limit = tree.limit or "time"  # it ended by itself, since we were held up
    finally:
        tree.kill()
        if tree.pidfd is None:
            process.kill()
        process.communicate()  # closes its pipes and reaps it
        tree.wait()
    code, limit = tree.report("exit-code"), tree.limit
    if code is None and (limit is None or tree.first is None):
        text = err.decode("utf-8", "replace").strip() or "nothing"
        raise ConfigError(f"bubblewrap could not set the sandbox up; it says: {text}")
    if limit is None and code == _CPU_EXCEEDED:
        limit = "cpu"
    return SandboxResult(bytes(out), bytes(err), _KILLED if code is None else code, limit)


# -- what a process tree uses right now, read from /proc on the host ----------------------------

_TICKS = os.sysconf("SC_CLK_TCK")
_WMEM = Path("/proc/sys/net/core/wmem_default")
_WMEM_DEFAULT = 212_992  # the kernel's own; many containers do not show what it was set to
_ESTABLISHED = "01"
_LATE = 0.2  # seconds of processor time for the signal to end a process


def _processes(root: int) -> list[int]:
    """Process ids of `root` and all its descendants. A daemon stays in the tree: its new parent is
    the namespace's first process, which is the root."""
    processes, waiting = [root], [root]
    while waiting:
        parent = Path(f"/proc/{waiting.pop()}/task")
        with contextlib.suppress(OSError):  # it may end while we look
            for thread in parent.iterdir():
                children = [int(pid) for pid in (thread / "children").read_text("ascii").split()]
                processes += children
                waiting += children
    return processes


def _memory_kb(pid: int) -> int:
    """Resident memory that belongs to no file, in KiB; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
        return sum(int(e.split()[1]) for e in lines if e.startswith(("RssAnon:", "RssShmem:")))
    return 0


def socket_bytes(pid: int) -> int:
    """What the sockets of a process's network namespace may hold queued, in bytes. The kernel says
    what TCP sockets hold; each other one counts with the most that it can hold."""
    total, most = 0, _WMEM_DEFAULT
    with contextlib.suppress(OSError):
        most = int(_WMEM.read_text("ascii"))
    for name in ("unix", "udp", "udp6", "tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows = Path(f"/proc/{pid}/net/{name}").read_text("ascii", "replace").splitlines()[1:]
            if not name.startswith("tcp"):
                total += len(rows) * most
                continue
            for row in rows:
                state, queues = row.split()[3:5]
                if state == _ESTABLISHED:
                    total += most + sum(int(queue, 16) for queue in queues.split(":"))
    return total


def _cpu_seconds(pid: int) -> float:
    """Processor time a process has used, in seconds; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        # the name stands in parentheses and may hold some itself; times are fields 14 and 15
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _state(pid: int) -> str:
    """A process's state, one letter; that of one that has ended is Z."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    return "Z"


def excess(root: int, limits: Limits) -> Limit | None:
    """The watched bound that the tree under `root` is beyond, if any. A process beyond its
    processor time has ignored the kernel's signal, which ends any other. Where all but the root,
    which is ours and only waits, are stopped, nobody is left who could let them go on: the time is
    as good as over."""
    processes = _processes(root)
    states = {_state(pid) for pid in processes[1:]} - {"Z"}
    if states == {"T"}:
        return "time"
    resident = sum(map(_memory_kb, processes))
    if resident + socket_bytes(root) // 1024 > limits.memory_mb * 1024:
        return "memory"
    if max(map(_cpu_seconds, processes)) > limits.cpu_seconds + _LATE:
        return "cpu"
    files = 0
    for folder in (SCRATCH, "/dev/shm"):  # noqa: S108 - the sandbox's own, all that it can write to
        with contextlib.suppress(OSError):
            held = os.statvfs(f"/proc/{root}/root{folder}")
            files += held.f_files - held.f_ffree
    return "files" if files > limits.files else None


# -- a small process that ends every sandbox of this one when this one is gone -------------------

_GUARDIAN = """
import contextlib, os, select, signal, sys, time
parent = int(sys.argv[1])
try:
    handle = os.pidfd_open(parent)
    if os.getppid() == parent:  # else it went while this was starting
        select.select([handle], [], [])
finally:
    # what was just being started joins the group only now: one kill would miss it
    end = time.monotonic() + 1
    while time.monotonic() < end:
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid != os.getpid() and os.getpgid(pid) == os.getpid():
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    os.killpg(0, signal.SIGKILL)
"""
_lock = threading.Lock()
# by process and session: a fork needs one of its own, and a group lies within a session
_guardians: dict[tuple[int, int], subprocess.Popen[bytes]] = {}


def guarded_group() -> int:
    """The process group that ends with this process; its guardian is started at the first call.

    Bubblewrap can die with its parent, but its own child follows it only some milliseconds after it
    was made: killed in between, it leaves a process behind. So what starts a sandbox is put into
    the guardian's group, which the guardian kills, until it is bound to die with bubblewrap.
    """
    place = (os.getpid(), os.getsid(0))
    with _lock:
        guardian = _guardians.get(place)
        if guardian is None or guardian.poll() is not None:
            guardian = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                process_group=0,
            )
            _guardians[place] = guardian
        return guardian.pid
