"""The sandbox's own behaviour: what it returns, what it keeps, how it ends, where it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.environments import sandbox
from posttrain.environments.sandbox import (
    Limits,
    Sandbox,
    bubblewrap,
    check_sandbox,
    open_sandbox,
    run_sandboxed,
)
from posttrain.environments.sandbox.bubblewrap import launch_run
from posttrain.environments.sandbox.supervise import supervise
from posttrain.errors import ConfigError
from tests.environments.test_hostile import survivors

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


@pytest.fixture
def mark() -> str:
    """Text for command lines, by which a test finds the processes it started."""
    return f"sandbox-{uuid.uuid4().hex}"


def daemon(mark: str) -> str:
    """A shell command that leaves a process behind, with the mark in its command line."""
    return f"(setsid sh -c 'sleep 1000; true' {mark} &)"


def wait_for_end(handles: list[int]) -> None:
    """Wait until the processes of these pidfds have ended; a minute would mean never."""
    for handle in handles:
        assert select.select([handle], [], [], 60)[0] == [handle]
        os.close(handle)


def in_a_box(work: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def run() -> None:
        async with open_sandbox(limits) as box:
            await work(box)

    asyncio.run(run())


@needs_bwrap
def test_output_code_input_and_files():
    argv = ["sh", "-c", "cat a/b -; echo no >&2; echo more >> a/b; touch a/c; rm a/c; exit 3"]
    given = b"\0\xff" * 100_000
    result = asyncio.run(run_sandboxed(argv, files={"a/b": b"yes"}, stdin=given))
    assert (result.stdout, result.stderr) == (b"yes" + given, b"no\n")
    assert (result.exit_code, result.limit, result.ok) == (3, None, False)
    result = asyncio.run(run_sandboxed(["yes"], limits=Limits(output_bytes=1000)))
    assert (len(result.stdout), result.limit) == (1000, "output")


@needs_bwrap
def test_many_run_side_by_side_and_leave_no_descriptor_open():
    async def run() -> list[bytes]:
        await run_sandboxed(["true"])
        before = len(os.listdir("/proc/self/fd"))
        results = await asyncio.gather(*(run_sandboxed(["echo", str(k)]) for k in range(6)))
        async with open_sandbox() as box:
            await box.write("x", b"x")
        assert len(os.listdir("/proc/self/fd")) == before
        return [result.stdout for result in results]

    assert asyncio.run(run()) == [f"{k}\n".encode() for k in range(6)]


@needs_bwrap
def test_as_many_run_at_a_time_as_there_are_processors(monkeypatch: pytest.MonkeyPatch):
    running: list[int] = []
    most: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        running.append(1)
        most.append(len(running))
        try:
            return supervise(*args, **options)
        finally:
            running.pop()

    async def run() -> None:
        await asyncio.gather(*(run_sandboxed(["true"]) for _ in range(6)))

    check_sandbox()
    monkeypatch.setattr(sandbox, "supervise", counted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    asyncio.run(run())
    gc.collect()
    # a semaphore that is kept keeps its event loop
    assert (len(most), max(most) <= 2, len(sandbox._turns)) == (6, True, 0)


@needs_bwrap
def test_files_last_from_run_to_run_and_processes_and_other_boxes_do_not(mark: str):
    async def work(box: Sandbox) -> None:
        await box.write("deep/er/file", b"\0data")
        await box.run(["sh", "-c", f"{daemon(mark)}; cp deep/er/file copy"])
        assert survivors(mark) == []
        assert await box.read("/scratch/deep/er/file") == await box.read("copy") == b"\0data"
        async with open_sandbox() as other:
            with pytest.raises(OSError, match="No such file"):
                await other.read("copy")

    in_a_box(work)


@needs_bwrap
def test_a_planted_link_leads_nowhere(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("secret")

    async def work(box: Sandbox) -> None:
        await box.run(["sh", "-c", f"ln -s {secret} link; ln -s {tmp_path} folder"])
        for path in ("link", "folder/secret", str(secret), "../.." + str(secret)):
            with pytest.raises(OSError, match="No such file"):
                await box.read(path)
        for path in ("link", "folder/secret"):
            with pytest.raises(OSError, match=r"cannot create|File exists"):
                await box.write(path, b"spoilt")
        await box.write(str(secret), b"spoilt")  # /tmp is the scratch directory in there

    in_a_box(work)
    assert secret.read_text() == "secret"


@needs_bwrap
def test_a_planted_pipe_and_huge_files_hold_nobody_up_and_the_directory_has_its_size():
    async def work(box: Sandbox) -> None:
        await box.run(["sh", "-c", "mkfifo pipe; head -c 3000000 /dev/zero > huge"])
        with pytest.raises(OSError, match="time"):
            await box.read("pipe")
        with pytest.raises(OSError, match="output"):
            await box.read("huge", max_bytes=1_000_000)
        used = await box.run(["sh", "-c", "head -c 3000000 /dev/zero > more; du -sb ."])
        assert int(used.stdout.split()[0]) <= 4 << 20
        with pytest.raises(OSError, match="No space left"):
            await box.write("c", b"x" * (1 << 20))

    in_a_box(work, Limits(seconds=1, scratch_mb=4))


@needs_bwrap
def test_a_cancelled_run_leaves_no_process(mark: str):
    async def run() -> None:
        started = asyncio.Event()

        async def wait_for_it() -> None:
            async with open_sandbox() as box:
                await box.run(["mkfifo", "started"])
                script = f"{daemon(mark)}; echo > started; sleep 1000"
                running = asyncio.ensure_future(box.run(["sh", "-c", script]))
                await box.run(["cat", "started"])
                assert survivors(mark)
                started.set()
                await running

        task = asyncio.ensure_future(wait_for_it())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert survivors(mark) == []

    asyncio.run(run())


_PARENT = """
import asyncio, signal
from posttrain.environments.sandbox import Limits, open_sandbox
async def main():
    async with open_sandbox(Limits(seconds=600)) as box:
        await box.run(["mkfifo", "started"])
        script = "(setsid sh -c 'sleep 1000; true' MARK &); echo > started; sleep 1000"
        running = asyncio.ensure_future(box.run(["sh", "-c", script]))
        await box.run(["cat", "started"])
        print("running", flush=True)
        await running
# a shell that started the tests in the background had Ctrl-C ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@needs_bwrap
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_parent(mark: str, number: signal.Signals):
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.replace("MARK", mark)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert parent.stdout is not None
    with parent:
        assert parent.stdout.readline() == b"running\n"
        running = [pid for pid in survivors(mark) if pid != parent.pid]
        assert len(running) >= 3  # both programs, and what starts them
        handles = [os.pidfd_open(pid) for pid in running]
        parent.send_signal(number)
        assert parent.wait(timeout=300) != 0
    wait_for_end(handles)


_BUSY_PARENT = """
import asyncio
from posttrain.environments.sandbox.supervise import guarded_group
from posttrain.environments.sandbox import open_sandbox, run_sandboxed
async def forever():
    while True:
        await run_sandboxed(["sh", "-c", "true MARK"])
async def main():
    await run_sandboxed(["true"])
    running = [asyncio.ensure_future(forever()) for _ in range(4)]
    await asyncio.sleep(0.1)
    print(guarded_group(), flush=True)
    await asyncio.gather(*running)
asyncio.run(main())
"""


@needs_bwrap
def test_nothing_is_left_by_a_parent_killed_while_it_starts_sandboxes(mark: str):
    """More than once, since what happens depends on how far each sandbox has got."""
    for _ in range(2):
        parent = subprocess.Popen(
            [sys.executable, "-c", _BUSY_PARENT.replace("MARK", mark)],
            stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert parent.stdout is not None
        with parent:
            guardian = os.pidfd_open(int(parent.stdout.readline()))
            parent.kill()
        wait_for_end([guardian])
        # all are being killed by now; one may still be ending, or was just started by such a one
        while pids := survivors(mark):
            handles = []
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    handles.append(os.pidfd_open(pid))
            wait_for_end(handles)


@needs_bwrap
def test_limits_hold_while_the_event_loop_is_blocked():
    async def run() -> tuple[str | None, bool]:
        running = asyncio.ensure_future(run_sandboxed(["sleep", "60"], limits=Limits(seconds=0.5)))
        await asyncio.sleep(0)
        # as a sampler in this process would: nothing else in the loop runs meanwhile
        quick = subprocess.run(["sleep", "1"], check=True).returncode == 0
        return (await running).limit, quick

    assert asyncio.run(run()) == ("time", True)


@needs_bwrap
def test_a_program_that_ignores_the_end_of_its_processor_time_is_ended_for_it():
    """The kernel would kill it without a word two seconds later."""
    ignores = "trap '' XCPU; while :; do :; done"
    limits = Limits(seconds=600, cpu_seconds=1)
    result = asyncio.run(run_sandboxed(["sh", "-c", ignores], limits=limits))
    assert (result.exit_code, result.limit) == (137, "cpu")


@needs_bwrap
def test_a_sandbox_that_nobody_watches_ends_by_itself(monkeypatch: pytest.MonkeyPatch, mark: str):
    monkeypatch.setattr(bubblewrap, "_GRACE", 0.0)
    box = bubblewrap.Box(Limits(seconds=0.5))
    stop = os.eventfd(0)
    with launch_run(box, ["sh", "-c", f"{daemon(mark)}; sleep 1000"]) as launch:
        result = supervise(launch, limits=Limits(seconds=60), stop=stop)
    os.close(stop)
    assert (result.exit_code, result.limit) == (137, None)
    assert survivors(mark) == []


def test_sockets_count_where_the_machine_does_not_show_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module = sys.modules[supervise.__module__]  # the package exports its function by this name
    monkeypatch.setattr(module, "_WMEM", tmp_path / "not shown")

    def grown() -> bool:
        before = module.socket_bytes(os.getpid())
        with contextlib.ExitStack() as stack:
            for end in socket.socketpair():
                stack.enter_context(end)
            return module.socket_bytes(os.getpid()) >= before + 2 * module._WMEM_DEFAULT

    # other programs of this machine open and close theirs in between
    assert any(grown() for _ in range(50))


# -- where programs cannot be contained, nothing is run ------------------------------------------


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The check of this machine is made once a process: forget it, before and afterwards."""
    check_sandbox.cache_clear()
    yield
    check_sandbox.cache_clear()


@pytest.mark.usefixtures("unchecked")
def test_a_missing_bubblewrap_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        asyncio.run(run_sandboxed(["true"]))


@needs_bwrap
@pytest.mark.usefixtures("unchecked")
def test_a_kernel_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"No permissions to create new namespace.*sysctl"):
        check_sandbox()


@needs_bwrap
@pytest.mark.usefixtures("unchecked")
def test_an_interpreter_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch):
    broken = bubblewrap.Interpreter(None, "/usr/bin/false")
    monkeypatch.setattr(bubblewrap, "find_interpreter", lambda: broken)
    with pytest.raises(ConfigError, match="Python does not start in the sandbox"):
        check_sandbox()


STOPS_ITS_PARENT = """
import os, signal, time
if os.fork() == 0:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)
time.sleep(3600)
"""


STOPS_WHOM_IT_WAITS_FOR = """
import os, signal, time
if os.fork() == 0:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)
time.sleep(3600)
"""


def test_a_program_that_its_child_keeps_stopped_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(supervise.__globals__, "STOPPED_SECONDS", 0.1)
    argv = [check_sandbox(), "-I", "-c", STOPS_WHOM_IT_WAITS_FOR]
    result = asyncio.run(run_sandboxed(argv, limits=Limits(seconds=86_400)))
    assert result.limit == "time"


def test_what_nobody_can_let_go_on_is_ended_at_once():
    """Without it the program takes all of its time, here a day."""
    argv = [check_sandbox(), "-I", "-c", STOPS_ITS_PARENT]
    result = asyncio.run(run_sandboxed(argv, limits=Limits(seconds=86_400)))
    assert result.limit == "time"
