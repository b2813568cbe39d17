"""Sandbox for programs that a model wrote: no network, no files of this machine, bounded.

    result = await run_sandboxed(["python3", "a.py"], files={"a.py": b"print(6*7)"})
    async with open_sandbox(Limits(seconds=5)) as box:      # one scratch directory, several runs
        await box.run(["wc", "-c", "data.csv"])

The host never opens a path in the scratch directory, so a symbolic link there leads nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from posttrain.environments.sandbox.bubblewrap import Box, Launch, Limits, launch_run
from posttrain.environments.sandbox.supervise import SandboxResult, supervise
from posttrain.errors import ConfigError

_PROBE = Limits(seconds=60, cpu_seconds=60)  # a first start of Python on a loaded machine is slow
# a semaphore belongs to an event loop, which it holds: both go when nobody waits
_turns: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakValueDictionary()


@functools.cache
def check_sandbox() -> str:
    """Check, once a process, that programs can be contained here; returns the path of their Python.

    Raises:
        ConfigError: something is missing; says what to install or to allow.
    """
    box = Box(_PROBE)
    # how the supervisor finds the processes whose memory and time it bounds
    if not Path("/proc/self/task", str(threading.get_native_id()), "children").exists():
        raise ConfigError("the sandbox needs /proc/…/children (CONFIG_PROC_CHILDREN in the kernel)")
    stop = os.eventfd(0)
    try:
        with launch_run(box, [box.interpreter.executable, "-I", "-c", "print(6 * 7)"]) as launch:
            result = supervise(launch, limits=box.limits, stop=stop)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. Bubblewrap 0.7 or later is needed and, unless you are root, user "
            "namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone"
            "=1 (Debian), an AppArmor profile for bwrap or "
            "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container, one that may "
            "create namespaces. No model-written program is run without it"
        ) from error
    finally:
        os.close(stop)
    if result.stdout != b"42\n":
        text = result.stderr.decode("utf-8", "replace").strip()
        raise ConfigError(f"Python does not start in the sandbox (code {result.exit_code}): {text}")
    return box.interpreter.executable


async def run_sandboxed(
    argv: Sequence[str],
    *,
    files: Mapping[str, bytes] | None = None,
    stdin: bytes = b"",
    limits: Limits | None = None,
) -> SandboxResult:
    """Run one program in a sandbox of its own; nothing of it is left afterwards.

    In an event loop as many run at a time as there are processors, so that how far a program gets
    in its time depends little on its neighbours.

    Args:
        argv: the program and its arguments; its directory is the scratch directory, /scratch.
        files: paths in the scratch directory → contents, put there first.
        stdin: its input.

    Raises:
        ConfigError: programs cannot be contained here.
        CancelledError: after the whole process tree has been killed.
    """
    check_sandbox()
    box = Box(limits or Limits())
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(os.cpu_count() or 1))
    async with turn:
        return await _supervise_in_thread(
            launch_run(box, argv, stdin=stdin, files=files), box.limits
        )


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A scratch directory for several runs, side by side or in turn. Only files last.

    `open_sandbox` makes one; `holder` is the process that keeps the directory.
    """

    box: Box
    holder: int

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", limits: Limits | None = None
    ) -> SandboxResult:
        """Run a program as `run_sandboxed` does, in this scratch directory, whose size is fixed."""
        box = self.box if limits is None else replace(self.box, limits=limits)
        launching = launch_run(box, argv, stdin=stdin, holder=self.holder)
        return await _supervise_in_thread(launching, box.limits)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file and make its directories.

        Raises:
            OSError: it cannot be written; says why.
        """
        # by programs in the sandbox: a link that the model made there may point at our files
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        result = await self.run(["sh", "-c", script, "sh", path], stdin=data)
        _raise_if_failed(result, path)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """Read a file.

        Raises:
            OSError: it cannot be read, or is larger than `max_bytes`; says why.
        """
        limits = replace(self.box.limits, output_bytes=max_bytes)
        result = await self.run(["cat", "--", path], limits=limits)
        _raise_if_failed(result, path)
        return result.stdout


def _raise_if_failed(result: SandboxResult, path: str) -> None:
    """Raise OSError where the command that reads or writes a file failed."""
    if not result.ok:
        text = result.stderr.decode("utf-8", "replace").strip()
        raise OSError(f"{path} in the sandbox: {text or result.limit or result.exit_code}")


@contextlib.asynccontextmanager
async def open_sandbox(limits: Limits | None = None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox whose scratch directory lasts until the end of the block.

    Raises:
        ConfigError: programs cannot be contained here.
    """
    check_sandbox()
    box = Box(limits or Limits())
    loop = asyncio.get_running_loop()
    first_process: asyncio.Future[int] = loop.create_future()

    def started(first: int) -> None:
        loop.call_soon_threadsafe(first_process.set_result, first)

    # mounts live as long as their namespace, and that as long as a process in it
    holder_run = asyncio.ensure_future(_supervise_in_thread(launch_run(box, None), None, started))
    try:
        await asyncio.wait([holder_run, first_process], return_when=asyncio.FIRST_COMPLETED)
        if holder_run.done():
            raise ConfigError(f"the sandbox ended at once: {holder_run.result().stderr!r}")
        yield Sandbox(box, first_process.result())
    finally:
        holder_run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holder_run


async def _supervise_in_thread(
    launching: contextlib.AbstractContextManager[Launch],
    limits: Limits | None,
    started: Callable[[int], None] | None = None,
) -> SandboxResult:
    """Supervise a run in a thread of its own; when cancelled, stop it and wait for its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[SandboxResult] = loop.create_future()
    stop = os.eventfd(0)

    def target() -> None:
        try:
            with launching as launch:
                result = supervise(launch, limits=limits, stop=stop, started=started)
            loop.call_soon_threadsafe(done.set_result, result)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            loop.call_soon_threadsafe(done.set_exception, error)

    # a daemon: an interpreter that ends must not wait for a program's time limit
    threading.Thread(target=target, name="sandbox", daemon=True).start()
    try:
        # shielded: the thread sets it whether somebody still waits or not
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        os.eventfd_write(stop, 1)
        # a second cancellation must not leave the tree running
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        done.exception()  # nobody takes it: the caller has gone
        raise
    finally:
        os.close(stop)
