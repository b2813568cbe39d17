"""Run one sandboxed program and stay until its whole process tree is gone.

    supervise(launch, limits=Limits(seconds=5), stop=stop)  → SandboxResult(b"42\\n", b"", 0)

One thread a program, since a watch in the event loop would sleep whenever something blocks the
loop. The tree is killed through the first process of its namespace: when that is gone, nothing of
it is left. A shell stands between us and bubblewrap, which then does not die before its child can
follow; see the guardian.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from posttrain.errors import ConfigError
from posttrain.tools.guardian import guarded_group
from posttrain.tools.launch import Launch
from posttrain.tools.limits import Limit, Limits, SandboxResult
from posttrain.tools.watch import excess

_TICK = 0.025  # seconds between two looks at memory and files
_CHUNK = 65536
_CPU_EXCEEDED = 128 + signal.SIGXCPU
_KILLED = 128 + signal.SIGKILL


@dataclass(slots=True)
class _Stream:
    """Output of one descriptor, kept up to a bound."""

    bound: int
    kept: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> bool:
        """Keep what fits; whether all did."""
        room = self.bound - len(self.kept)
        self.kept += data[:room]
        return len(data) <= room


@dataclass(slots=True)
class _Tree:
    """The processes of a run: what bubblewrap reports of them, and why they were killed.

    `first` is the process id, on the host, of the namespace's first process.
    """

    status: bytearray = field(default_factory=bytearray)
    first: int | None = None
    pidfd: int | None = None
    limit: Limit | None = None
    killed: bool = False

    def report(self, name: str) -> int | None:
        """A number that bubblewrap reported."""
        found = re.search(rb'"%s"\s*:\s*(\d+)' % name.encode(), bytes(self.status))
        return None if found is None else int(found[1])

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
        """Wait until a killed tree is gone: its first process ends last."""
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
        started: told the process id of the sandbox's first process, once it has written something.

    Raises:
        ConfigError: bubblewrap could not set the sandbox up; quotes what it says.
    """
    process = subprocess.Popen(  # noqa: S603 - a list, no shell; what it starts is the sandbox
        [launch.shell, "-c", '"$@"; exit $?', "sh", *launch.argv],
        stdin=launch.stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=launch.environment,
        cwd="/",
        pass_fds=launch.keep,
        process_group=guarded_group(),  # not ours: Ctrl-C is for us, and we then kill it
    )
    launch.started()
    begun, tree = time.monotonic(), _Tree()
    bound = 65536 if limits is None else limits.output_bytes
    out, err = _Stream(bound), _Stream(bound)
    try:
        _follow(process, launch.status, tree, out, err, limits=limits, stop=stop, started=started)
        if limits is not None and time.monotonic() - begun >= limits.seconds:
            tree.limit = tree.limit or "time"  # it ended by itself, since we were held up
    finally:
        tree.kill()
        if tree.pidfd is None:
            process.kill()
        process.communicate()  # closes its pipes and reaps it
        tree.wait()
    return _result(tree, out, err)


def _follow(
    process: subprocess.Popen[bytes],
    status: int,
    tree: _Tree,
    out: _Stream,
    err: _Stream,
    *,
    limits: Limits | None,
    stop: int,
    started: Callable[[int], None] | None,
) -> None:
    """Read until every end is reached: of both outputs, of the report, and of bubblewrap."""
    assert process.stdout is not None
    assert process.stderr is not None
    begun = time.monotonic()
    streams = {process.stdout.fileno(): out, process.stderr.fileno(): err}
    ended = os.pidfd_open(process.pid)
    open_ends = {*streams, status, ended}
    with contextlib.closing(selectors.DefaultSelector()) as waiting:
        for descriptor in (*open_ends, stop):
            waiting.register(descriptor, selectors.EVENT_READ)
        while open_ends:
            for key, _ in waiting.select(None if limits is None or tree.killed else _TICK):
                if key.fd in (stop, ended):
                    # bubblewrap ends with its command; what the command left behind goes now
                    tree.kill()
                    data = b""
                else:
                    data = os.read(key.fd, _CHUNK)
                if not data:
                    waiting.unregister(key.fd)
                    open_ends.discard(key.fd)
                elif key.fd == status:
                    tree.learn(data)
                elif not streams[key.fd].take(data):
                    tree.kill("output")
            if started is not None and tree.first is not None and out.kept:
                started(tree.first)
                started = None
            if limits is not None and not tree.killed:
                _look(tree, limits, seconds=time.monotonic() - begun)
    os.close(ended)


def _look(tree: _Tree, limits: Limits, *, seconds: float) -> None:
    """Kill the tree if it is beyond a watched bound."""
    if seconds >= limits.seconds:
        tree.kill("time")
    elif tree.first is not None and (beyond := excess(tree.first, limits)):
        tree.kill(beyond)


def _result(tree: _Tree, out: _Stream, err: _Stream) -> SandboxResult:
    code = tree.report("exit-code")
    if code is None and (tree.limit is None or tree.first is None):
        said = err.kept.decode("utf-8", "replace").strip() or "nothing"
        raise ConfigError(f"bubblewrap could not set the sandbox up; it says: {said}")
    limit: Limit | None = tree.limit
    if limit is None and code == _CPU_EXCEEDED:
        limit = "cpu"
    ended = _KILLED if code is None else code
    return SandboxResult(bytes(out.kept), bytes(err.kept), ended, limit)
