"""Hostile programs are contained, and the machine they ran on is as it was."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.environments.sandbox import Limits, SandboxResult, check_sandbox, run_sandboxed
from tests.environments.hostile import RESOURCES, together
from tests.environments.hostile_escapes import ESCAPES

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")

CASES = RESOURCES | ESCAPES
MARK = f"hostile-{uuid.uuid4().hex}"  # every process of a case has it in its command line
SECRET = f"secret-{uuid.uuid4().hex}"
VARIABLE = "POSTTRAIN_TEST_SECRET"
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
# a program that has to reach its end gets time to; one that a limit has to stop, little
PATIENT = Limits(
    seconds=60, cpu_seconds=60, memory_mb=256, processes=24, scratch_mb=8, shm_mb=4, files=2000
)
STRICT = replace(PATIENT, seconds=1, cpu_seconds=1)


@dataclass(frozen=True, slots=True)
class Canaries:
    """What the programs are told to reach: each is really there, on the host."""

    stats: dict[str, Any]
    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    unix: socket.socket
    process: subprocess.Popen[bytes]
    secret: Path

    def arrivals(self) -> dict[str, bool]:
        """Whether something has arrived at each socket."""
        return {name: _readable(getattr(self, name)) for name in ("tcp", "udp", "abstract", "unix")}


def _readable(sock: socket.socket) -> bool:
    try:
        sock.recv(1) if sock.type == socket.SOCK_DGRAM else sock.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    folder = tmp_path_factory.mktemp("host")
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    abstract = f"posttrain-{MARK}"
    with ExitStack() as stack:
        listening = []
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "s")),
        ):
            sock = stack.enter_context(socket.socket(family, kind))
            sock.bind(address)
            if kind == socket.SOCK_STREAM:
                sock.listen()
            sock.setblocking(False)
            listening.append(sock)
        process = stack.enter_context(
            subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
        )
        stats = {
            "tcp": listening[0].getsockname()[1], "udp": listening[1].getsockname()[1],
            "abstract": abstract, "unix": str(folder / "s"), "secret": str(secret),
            "folder": str(folder), "home": str(Path.home()), "pid": process.pid,
            "self": os.getpid(), "variable": VARIABLE, "value": SECRET,
            "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in NAMESPACES},
        }  # fmt: skip
        yield Canaries(stats, *listening, process, secret)
        process.kill()


async def _run_all(stats: dict[str, Any]) -> dict[str, SandboxResult]:
    alone = {name: case for name, case in CASES.items() if case.alone}
    others = {name: case for name, case in CASES.items() if not case.alone}
    programs = {name: case.program for name, case in alone.items()} | {"": together(others)}

    async def run(name: str) -> SandboxResult:
        program, canary = f"{programs[name]}\n# {MARK}", json.dumps({**stats, "inside": True})
        stopped = name in alone and {"time", "cpu"} & set(alone[name].limits)
        argv = [check_sandbox(), "-I", "-c", program, canary]
        return await run_sandboxed(argv, limits=STRICT if stopped else PATIENT)

    results = dict(zip(programs, await asyncio.gather(*map(run, programs)), strict=True))
    shared = results.pop("")
    parts = dict(part.split(b"\n", 1) for part in shared.stdout.split(b"case ")[1:])
    own = {name: replace(shared, stdout=parts.get(name.encode(), b"")) for name in others}
    return results | own


@pytest.fixture(scope="module")
def results(canaries: Canaries) -> Iterator[dict[str, SandboxResult]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, SECRET)
        yield asyncio.run(_run_all(canaries.stats))


def survivors(mark: str) -> list[int]:
    """Processes on this machine with the mark in their command line, this one not counted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", CASES)
def test_contained(name: str, results: dict[str, SandboxResult]):
    case, result = CASES[name], results[name]
    said = result.stdout.decode("utf-8", "replace")
    story = f"{result.limit} {result.exit_code}\n{said[:4000]}\n{result.stderr[:4000]!r}"
    assert "ESCAPED" not in said, story
    if case.limits:
        assert result.limit in case.limits, story
    else:
        assert (result.limit, result.exit_code) == (None, case.code), story
        assert case.code or said.endswith("end\n"), story
    assert max(len(result.stdout), len(result.stderr)) <= PATIENT.output_bytes


def test_the_machine_is_as_it_was(canaries: Canaries, results: dict[str, SandboxResult]):
    assert survivors(MARK) == []
    assert canaries.process.poll() is None
    assert canaries.secret.read_text() == SECRET
    assert sorted(p.name for p in canaries.secret.parent.iterdir()) == ["s", "secret.txt"]
    assert canaries.arrivals() == {"tcp": False, "udp": False, "abstract": False, "unix": False}
    assert socket.gethostname() != "sandbox"
    everything = b"".join(r.stdout + r.stderr for r in results.values())
    assert SECRET.encode() not in everything


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.control])
def test_the_same_program_gets_through_outside(
    name: str, canaries: Canaries, results: dict[str, SandboxResult]
):
    """What a case tries is there to be had: run on the host, it succeeds."""
    stats = json.dumps({**canaries.stats, "inside": False})
    environment = {**os.environ, VARIABLE: SECRET}
    done = subprocess.run(
        [sys.executable, "-c", CASES[name].program, stats],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert "ESCAPED" in done.stdout, done
