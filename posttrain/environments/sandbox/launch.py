"""One start of bubblewrap: its command line and the descriptors it inherits.

    with launch_run(box, ["python3", "-"], stdin=b"print(1)") as launch:
        supervise(launch, limits=box.limits, stop=stop)

Options and file contents go through anonymous memory, not through arguments: a program in the
sandbox can read the command line of the process that reaps its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from posttrain.environments.sandbox.bubblewrap import Box
from posttrain.environments.sandbox.syscalls import filter_program


@dataclass(slots=True)
class Descriptors:
    """Descriptors that live as long as one launch."""

    open: list[int] = field(default_factory=list[int])

    def data(self, content: bytes) -> int:
        """A descriptor that reads `content` and that nobody can write through."""
        descriptor = os.memfd_create("posttrain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.open.append(descriptor)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor

    def close(self) -> None:
        while self.open:
            os.close(self.open.pop())


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to start: `keep` are the descriptors it inherits, `status` where it reports."""

    argv: list[str]
    shell: str
    environment: dict[str, str]
    keep: tuple[int, ...]
    stdin: int
    status: int
    inherited: Descriptors

    def started(self) -> None:
        """Close our copies of what the command has inherited."""
        self.inherited.close()


@contextlib.contextmanager
def launch_run(
    box: Box,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    holder: int | None = None,
) -> Generator[Launch]:
    """A run of `argv` in the box.

    Args:
        stdin: what the program reads; then it is at its end.
        files: paths in the scratch directory → contents, put there first.
        holder: process id of what holds the scratch directory, None for a fresh one.
    """
    inherited = Descriptors()
    with _report(inherited) as (status, report):
        contents = [(_inside(name), inherited.data(data)) for name, data in (files or {}).items()]
        seccomp = inherited.data(filter_program())
        options = box.options(
            seccomp=seccomp, status=report, files=contents, kept=holder is not None
        )
        prefix = [] if holder is None else _enter(box, holder)
        yield _launch(box, [*prefix, box.programs["bwrap"]], options, box.program(argv),
                      inherited, status=status, stdin=stdin)  # fmt: skip


@contextlib.contextmanager
def launch_holder(box: Box) -> Generator[Launch]:
    """A process that does nothing but hold a scratch directory; it writes a line once it does."""
    inherited = Descriptors()
    program = [box.programs["sh"], "-c", "echo ready; exec sleep infinity"]
    with _report(inherited) as (status, report):
        options = box.holder_options(status=report)
        bwrap = [box.programs["bwrap"]]
        yield _launch(box, bwrap, options, program, inherited, status=status, stdin=b"")


@contextlib.contextmanager
def _report(inherited: Descriptors) -> Generator[tuple[int, int]]:
    status, report = os.pipe()
    inherited.open.append(report)
    try:
        yield status, report
    finally:
        os.close(status)
        inherited.close()


def _launch(
    box: Box,
    bwrap: Sequence[str],
    options: Sequence[str],
    program: Sequence[str],
    inherited: Descriptors,
    *,
    status: int,
    stdin: bytes,
) -> Launch:
    arguments = inherited.data(b"".join(os.fsencode(option) + b"\0" for option in options))
    keep = tuple(inherited.open)  # all that is open so far: bubblewrap reads them
    return Launch(
        argv=[*bwrap, "--args", str(arguments), "--", *program],
        shell=box.programs["sh"],
        environment=box.environment,
        keep=keep,
        stdin=inherited.data(stdin),
        status=status,
        inherited=inherited,
    )


def _enter(box: Box, holder: int) -> list[str]:
    """What starts bubblewrap where the holder's scratch directory is."""
    enter = [box.programs["nsenter"], f"--mount=/proc/{holder}/ns/mnt"]
    if box.user is None:
        enter += [f"--user=/proc/{holder}/ns/user", "--preserve-credentials"]
    return [*enter, "--"]


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    assert not path.is_absolute(), f"{name}: give a path below the scratch directory"
    assert path.parts, "a file needs a name"
    assert ".." not in path.parts, f"{name}: leaves the scratch directory"
    return str(path)
