"""Run one sandboxed program and stay until its whole process tree is gone.

Each program has a thread, since a watch in the event loop would sleep whenever something blocks the
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
STOPPED_SECONDS = 2.0  # for which the launched program may be stopped, by SIGSTOP
_CHUNK = 65536  # bytes read at once; a pipe of Linux holds as many
_HOLDER_OUTPUT_BYTES = 65536  # a holder, which is ours, writes a few lines
_CPU_EXCEEDED = 128 + signal.SIGXCPU
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Output and end of one run.

    Attributes:
        stdout, stderr: its output, cut off at the bound.
        exit_code: its exit status; 128 + the signal where a signal ended it.
        limit: the bound at which it was killed; None where it was not.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    limit: Limit | None = None

    @property
    def ok(self) -> bool:
        """True if it exited with 0 and within its bounds."""
        return self.exit_code == 0 and self.limit is None


@dataclass(slots=True)
class _Tree:
    """The process tree of a run, known from the reports that bubblewrap writes.

    Attributes:
        status: the reports so far, JSON text.
        first: process id, on the host, of the namespace's first process; None until it is reported.
        pidfd: file descriptor of that process; None until then, or if it has ended before.
        killed: true once the tree is killed, or is to be killed when its first process is known.
        limit: the bound at which it was killed; None for another reason.
    """

    status: bytearray = field(default_factory=bytearray)
    first: int | None = None
    pidfd: int | None = None
    limit: Limit | None = None
    killed: bool = False

    def reported(self, name: str) -> int | None:
        """Read a number from the reports; None if it is not in them."""
        match = re.search(rb'"%s"\s*:\s*(\d+)' % name.encode(), bytes(self.status))
        return None if match is None else int(match[1])

    def learn(self, data: bytes) -> None:
        """Take a piece of the reports, in which the first process may become known."""
        self.status += data
        first = self.reported("child-pid")
        if self.first is not None or first is None:
            return
        self.first = first
        # a descriptor, since the number may soon be another process's
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self.pidfd = os.pidfd_open(first)
        if self.killed:
            self.kill()

    def kill(self, limit: Limit | None = None) -> None:
        """Kill the tree, now or as soon as its first process is known. The first reason stands."""
        if not self.killed:
            self.killed = True
            self.limit = limit
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the first process, and with it the tree, is gone."""
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
        launch: the command of the sandbox and the descriptors that it gets.
        limits: bounds of the run; None for a holder, which is ours and runs until it is stopped.
        stop: an eventfd; when it becomes readable the tree is killed.
        started: called with the process id of the sandbox's first process, once it has written.

    Raises:
        ConfigError: bubblewrap could not set the sandbox up; quotes its message.
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
    # else our own ends would keep its pipes open after it has ended
    launch.copies.close()
    supervisor = _Supervisor(process, limits, started)
    try:
        supervisor.watch(status=launch.status, stop=stop)
    finally:
        supervisor.end()
    return supervisor.result()


class _Supervisor:
    """One run under watch: a handler for each descriptor, and the bounds after every event.

    A handler gets its descriptor and returns False when there is nothing more to read from it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits | None,
        started: Callable[[int], None] | None,
    ) -> None:
        self.process = process
        self.limits = limits
        self.started = started
        self.tree = _Tree()
        self.start_time = time.monotonic()
        self.last_running = self.start_time  # when the launched program was last not stopped
        self.output_bound = _HOLDER_OUTPUT_BYTES if limits is None else limits.output_bytes
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.outputs = {
            process.stdout.fileno(): self.stdout,
            process.stderr.fileno(): self.stderr,
        }

    def watch(self, *, status: int, stop: int) -> None:
        """Handle events until both outputs, the reports and bubblewrap itself are at their end."""
        process_end = os.pidfd_open(self.process.pid)
        handlers: dict[int, Callable[[int], bool]] = {
            **dict.fromkeys(self.outputs, self._read_output),
            status: self._read_report,
            # bubblewrap ends with its command; what the command left behind goes now
            process_end: self._kill,
            stop: self._kill,
        }
        open_ends = handlers.keys() - {stop}
        with contextlib.closing(selectors.DefaultSelector()) as selector:
            for descriptor, handler in handlers.items():
                selector.register(descriptor, selectors.EVENT_READ, handler)
            while open_ends:
                # without bounds to check, and behind a kill, only events are of interest
                bounded = self.limits is not None and not self.tree.killed
                for key, _ in selector.select(_TICK if bounded else None):
                    if not key.data(key.fd):
                        selector.unregister(key.fd)
                        open_ends.discard(key.fd)
                self._announce_start()
                self._check_limits()
        os.close(process_end)
        if self._is_out_of_time():
            # it ended by itself, since we were held up
            self.tree.limit = self.tree.limit or "time"

    def end(self) -> None:
        """Kill what is left, and wait until it is gone."""
        self.tree.kill()
        # without a first process there is no namespace yet, and nothing but the launcher to end
        if self.tree.pidfd is None:
            self.process.kill()
        self.process.communicate()  # closes its pipes and reaps it
        self.tree.wait()

    def result(self) -> SandboxResult:
        """Result of the ended run.

        Raises:
            ConfigError: bubblewrap could not set the sandbox up.
        """
        exit_code = self.tree.reported("exit-code")
        limit = self.tree.limit
        if exit_code is None and (limit is None or self.tree.first is None):
            text = self.stderr.decode("utf-8", "replace").strip() or "nothing"
            raise ConfigError(f"bubblewrap could not set the sandbox up; it says: {text}")
        if limit is None and exit_code == _CPU_EXCEEDED:
            limit = "cpu"
        if exit_code is None:
            exit_code = _KILLED
        return SandboxResult(bytes(self.stdout), bytes(self.stderr), exit_code, limit)

    def _read_output(self, descriptor: int) -> bool:
        data = os.read(descriptor, _CHUNK)
        output = self.outputs[descriptor]
        room = self.output_bound - len(output)
        output.extend(data[:room])
        # more than fits, not as much: output that ends at the bound is whole
        if len(data) > room:
            self.tree.kill("output")
        return bool(data)

    def _read_report(self, descriptor: int) -> bool:
        data = os.read(descriptor, _CHUNK)
        self.tree.learn(data)
        return bool(data)

    def _kill(self, descriptor: int) -> bool:
        self.tree.kill()
        return False

    def _announce_start(self) -> None:
        # its first output says that the mounts are done: others may enter
        if self.started is not None and self.tree.first is not None and self.stdout:
            self.started(self.tree.first)
            self.started = None

    def _check_limits(self) -> None:
        if self.limits is None or self.tree.killed:
            return
        if self._is_out_of_time() or self._stays_stopped():
            self.tree.kill("time")
        elif self.tree.first is not None and (limit := excess(self.tree.first, self.limits)):
            self.tree.kill(limit)

    def _is_out_of_time(self) -> bool:
        if self.limits is None:
            return False
        return time.monotonic() - self.start_time >= self.limits.seconds

    def _stays_stopped(self) -> bool:
        """Check whether the launched program has been stopped for `STOPPED_SECONDS`.

        What it started may be waiting for it, for all of the time.
        """
        now = time.monotonic()
        launched = [] if self.tree.first is None else _processes(self.tree.first)[1:2]
        if [_state(pid) for pid in launched] != ["T"]:
            self.last_running = now
        return now - self.last_running >= STOPPED_SECONDS


# -- current use of a process tree, read from /proc on the host ----------------------------------

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_WMEM = Path("/proc/sys/net/core/wmem_default")
_WMEM_DEFAULT = 212_992  # the kernel's own; many containers do not show what it was set to
_ESTABLISHED = "01"
_CPU_GRACE = 0.2  # seconds of processor time in which the kernel's signal may end a process


def _processes(root: int) -> list[int]:
    """List process ids of `root`, which comes first, and all its descendants.

    A daemon stays in the tree: its new parent is the namespace's first process, which is the root.
    """
    processes = [root]
    unvisited = [root]
    while unvisited:
        threads = Path(f"/proc/{unvisited.pop()}/task")
        with contextlib.suppress(OSError):  # it may end while we look
            for thread in threads.iterdir():
                children = [int(pid) for pid in (thread / "children").read_text("ascii").split()]
                processes += children
                unvisited += children
    return processes


def _memory_kb(pid: int) -> int:
    """Resident memory that belongs to no file, in KiB; 0 for a process that has ended."""
    kilobytes = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            # pages of files can be dropped at any time, those of the scratch directory cannot
            if line.startswith(("RssAnon:", "RssShmem:")):
                kilobytes += int(line.split()[1])
    return kilobytes


def socket_bytes(pid: int) -> int:
    """Upper bound of the bytes queued in the sockets of a process's network namespace.

    The kernel reports the queues of TCP sockets; any other socket counts with the most that it can
    hold.
    """
    total = 0
    send_buffer = _WMEM_DEFAULT
    with contextlib.suppress(OSError):
        send_buffer = int(_WMEM.read_text("ascii"))
    for protocol in ("unix", "udp", "udp6", "tcp", "tcp6"):
        with contextlib.suppress(OSError):
            table = Path(f"/proc/{pid}/net/{protocol}").read_text("ascii", "replace")
            sockets = table.splitlines()[1:]
            if not protocol.startswith("tcp"):
                total += len(sockets) * send_buffer
                continue
            for socket in sockets:
                state, queues = socket.split()[3:5]
                if state == _ESTABLISHED:
                    total += send_buffer + sum(int(queue, 16) for queue in queues.split(":"))
    return total


def _cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, in seconds; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        fields = _stat_fields(pid)
        user_ticks = int(fields[11])
        system_ticks = int(fields[12])
        return (user_ticks + system_ticks) / _CLOCK_TICKS
    return 0.0


def _state(pid: int) -> str:
    """State of a process, one letter; Z for one that has ended."""
    with contextlib.suppress(OSError):
        return _stat_fields(pid)[0]
    return "Z"


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third, the state, on. Raises OSError: it has ended."""
    # the name before them stands in parentheses and may hold some itself
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def excess(root: int, limits: Limits) -> Limit | None:
    """Find the watched bound that the tree under `root` is beyond, if any.

    A process beyond its processor time has ignored the kernel's signal, which ends any other.
    """
    processes = _processes(root)
    states = {_state(pid) for pid in processes[1:]} - {"Z"}
    if states == {"T"}:
        # All but the root, which is ours and only waits, are stopped: nobody is left who could let
        # them go on, and the time is as good as over.
        return "time"
    resident = sum(map(_memory_kb, processes))
    if resident + socket_bytes(root) // 1024 > limits.memory_mb * 1024:
        return "memory"
    if max(map(_cpu_seconds, processes)) > limits.cpu_seconds + _CPU_GRACE:
        return "cpu"
    # empty files take no room: without a bound they would fill the kernel's memory
    files = 0
    for folder in (SCRATCH, "/dev/shm"):  # noqa: S108 - the sandbox's own, all that it can write to
        with contextlib.suppress(OSError):
            filesystem = os.statvfs(f"/proc/{root}/root{folder}")
            files += filesystem.f_files - filesystem.f_ffree
    return "files" if files > limits.files else None


# -- the guardian: a small process that ends all sandboxes of this process when it is gone --------

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
# by process and session: a fork needs another guardian, and a group lies within a session
_guardians: dict[tuple[int, int], subprocess.Popen[bytes]] = {}


def guarded_group() -> int:
    """The process group that ends with this process; its guardian is started at the first call.

    Bubblewrap can die with its parent, but its own child follows it only some milliseconds after it
    was made: killed in between, it leaves a process behind. So what starts a sandbox is put into
    the guardian's group, which the guardian kills, until it is bound to die with bubblewrap.
    """
    process_and_session = (os.getpid(), os.getsid(0))
    with _lock:
        guardian = _guardians.get(process_and_session)
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
            _guardians[process_and_session] = guardian
        return guardian.pid
