"""A small process that ends every sandbox of this one when this one is gone, however it went.

    subprocess.Popen(command, process_group=guarded_group())

Bubblewrap can die with its parent, but its own child follows it only some milliseconds after it was
made: killed in between, it leaves a process behind that waits for ever. So what starts a sandbox is
put into the guardian's process group, which the guardian kills as one. A sandbox leaves that group
only when it is bound to die with bubblewrap.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

_GUARDIAN = """
import os, select, signal, sys
parent = int(sys.argv[1])
try:
    handle = os.pidfd_open(parent)
    if os.getppid() == parent:  # else it went while this was starting
        select.select([handle], [], [])
finally:
    os.killpg(0, signal.SIGKILL)
"""
_lock = threading.Lock()
# by process and session: a fork needs one of its own, and a group lies within a session
_guardians: dict[tuple[int, int], subprocess.Popen[bytes]] = {}


def guarded_group() -> int:
    """The process group that ends with this process; its guardian is started at the first call."""
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
