"""The sandbox as a bubblewrap command: the files, the user and the limits of a program.

Everything a program can write to lives in memory and is bounded: /scratch and /dev/shm. Its limits
are set *inside* the sandbox; outside they would count this user's other processes. As root there is
no user namespace: root's processes are exempt from the limit on processes even there, so the
program becomes a throw-away user instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import secrets
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from posttrain.environments.sandbox.syscalls import filter_program
from posttrain.errors import ConfigError

MEBI = 1024 * 1024
MOUNT = "/interpreter"
SCRATCH = "/scratch"
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
_PROGRAMS = ("bwrap", "prlimit", "choom", "setpriv", "nsenter", "timeout", "sh")
_GRACE = 5.0  # seconds: the sandbox ends by itself where the process that watches it is stuck
# above the users that distributions, containers and directories hand out, below the signed limit
_THROWAWAY_USERS = range(0x70000000, 0x7FFFFFF0)
Limit = Literal["time", "cpu", "memory", "files", "output"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run, enforced by the kernel or, where it says so, by a watching thread.

    Attributes:
        seconds: wall time until the whole process tree is killed (watched).
        cpu_seconds: processor time of each process.
        memory_mb: address space of each process, and resident memory of the whole tree with what
            its sockets may hold queued (watched; pages that forked processes share count in each).
        processes: processes and threads together.
        scratch_mb: size of the scratch directory, which lives in memory; a file may be as large.
        shm_mb: size of /dev/shm.
        files: files and directories in the scratch directory and /dev/shm (watched).
        open_files: descriptors of each process.
        output_bytes: bytes of stdout, and of stderr; a program that writes more is killed.
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


class Interpreter(NamedTuple):
    """The Python that sandboxed programs run.

    One under /usr is visible in the sandbox anyway (`source` is None). One that lives elsewhere, as
    in a home directory, is shown alone, at `MOUNT`; the packages of a virtual environment are not.
    """

    source: Path | None
    executable: str


def find_interpreter() -> Interpreter:
    """Find the interpreter under the running one's virtual environment.

    Raises:
        ConfigError: it is laid out in a way that cannot be shown alone.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix).resolve()
    executable = base / "bin" / version
    library = base / "lib" / version / "os.py"
    would_show_home = base in (Path.home(), *Path.home().parents)
    if would_show_home or not executable.is_file() or not library.is_file():
        raise ConfigError(
            f"the sandbox cannot show the Python in {base}: it needs bin/{version} and "
            f"lib/{version} in a directory of their own"
        )
    if base.is_relative_to("/usr"):
        return Interpreter(None, str(executable))
    return Interpreter(base, f"{MOUNT}/bin/{version}")


def _find_programs() -> dict[str, str]:
    paths = {name: shutil.which(name) for name in _PROGRAMS}
    if missing := [name for name, path in paths.items() if path is None]:
        raise ConfigError(
            f"the sandbox needs {', '.join(missing)}, which this machine lacks: apt-get install "
            "bubblewrap util-linux coreutils; without them no model-written program is run"
        )
    return {name: os.path.realpath(path) for name, path in paths.items() if path}


def _throwaway_user() -> int | None:
    """Choose a user for the machine's root; None for any other user, and in a user namespace."""
    if os.geteuid() != 0:
        return None
    is_host = Path("/proc/self/uid_map").read_text("ascii").split() == ["0", "0", "4294967295"]
    return secrets.choice(_THROWAWAY_USERS) if is_host else None


@dataclass(frozen=True, slots=True)
class Box:
    """The shape of one sandbox.

    Attributes:
        limits: bounds of its programs.
        interpreter: Python that its programs run.
        programs: name → path of the programs that make the sandbox.
        user: user of its programs where this process is root; None for an ordinary user.

    Raises:
        ConfigError: a program that makes the sandbox is not installed; names it.
    """

    limits: Limits
    interpreter: Interpreter = field(default_factory=lambda: find_interpreter())
    programs: dict[str, str] = field(default_factory=_find_programs)
    user: int | None = field(default_factory=_throwaway_user)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its programs."""
        environment = {
            "PATH": f"{MOUNT}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": SCRATCH,
            "TMPDIR": SCRATCH,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",  # the same program prints the same sets
            # each thread would reserve 64 MB of its address space for itself
            "MALLOC_ARENA_MAX": "2",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self.interpreter.source is not None:
            # Python has moved, and would not find its shared library
            environment["LD_LIBRARY_PATH"] = f"{MOUNT}/lib"
        return environment

    def options(
        self, *, seccomp: int, status: int, files: Sequence[tuple[str, int]] = (), shared: bool
    ) -> list[str]:
        """Options of bubblewrap for a run.

        Args:
            seccomp: descriptor of the system call filter.
            status: descriptor that bubblewrap reports to.
            files: paths in the scratch directory and descriptors of their contents.
            shared: true if the scratch directory is that of the mount namespace that bubblewrap is
                started in, which a holder keeps between runs.
        """
        options = self._namespace_options()
        options += ["--die-with-parent", "--new-session", "--as-pid-1"]
        options += ["--json-status-fd", str(status), "--seccomp", str(seccomp)]
        options += self._system_options(MOUNT if shared else self.interpreter.source)
        options += ["--proc", "/proc", "--dev", "/dev"]
        options += _tmpfs_options("/dev/shm", self.limits.shm_mb)  # noqa: S108
        options += ["--remount-ro", "/dev"]
        if shared:
            options += ["--bind", SCRATCH, SCRATCH]
        else:
            options += _tmpfs_options(SCRATCH, self.limits.scratch_mb)
        options += _file_options(files)
        # apart from the scratch directory, unless that lasts: what is left there is no result
        options += ["--symlink", SCRATCH if shared else "/dev/shm", "/tmp"]  # noqa: S108
        return [*options, "--remount-ro", "/", "--chdir", SCRATCH]

    def holder_options(self, *, status: int) -> list[str]:
        """Options of bubblewrap for the process that holds a scratch directory between runs.

        It sees what a run sees, and this machine's /proc and /dev, without which bubblewrap cannot
        start in it.
        """
        bwrap = self.programs["bwrap"]
        options = ["--unshare-user"] if self.user is None else []
        options += ["--die-with-parent", "--new-session", "--json-status-fd", str(status)]
        options += self._system_options(self.interpreter.source)
        if not bwrap.startswith("/usr/"):
            options += ["--ro-bind", bwrap, bwrap]
        # a new /dev would cost a second user namespace, and nothing could enter the first
        options += ["--dev-bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev"]
        options += _tmpfs_options(SCRATCH, self.limits.scratch_mb)
        # bubblewrap builds a new root in /tmp
        return [*options, "--dir", "/tmp", "--chdir", "/"]  # noqa: S108

    def _namespace_options(self) -> list[str]:
        namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        namespaces += ["--unshare-cgroup-try", "--hostname", "sandbox"]
        if self.user is None:
            return ["--unshare-user", "--uid", "1000", "--gid", "1000", *namespaces]
        options = [*namespaces, "--cap-drop", "ALL"]
        # setpriv needs these to drop all, and the first process to end what has another user
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL"):
            options += ["--cap-add", capability]
        return options

    def _system_options(self, interpreter: Path | str | None) -> list[str]:
        """Options that show the system's programs, and the interpreter found at this path."""
        options = ["--ro-bind", "/usr", "/usr"]
        for name in _SYSTEM:
            path = Path(name)
            if path.is_symlink():
                options += ["--symlink", str(path.readlink()), name]
            elif path.is_dir():
                options += ["--ro-bind", name, name]
        options += ["--perms", "0755", "--dir", "/etc"]
        for name in _SETTINGS:
            options += ["--ro-bind-try", name, name]
        if self.interpreter.source is not None:
            options += ["--ro-bind", str(interpreter), MOUNT]
        return options

    def program(self, argv: Sequence[str]) -> list[str]:
        """Command of a program, behind those that take its last powers and set its limits."""
        limits = self.limits
        # The namespace's first process: when it ends, the kernel kills the rest, and its parent,
        # bubblewrap, has reaped it. Bubblewrap's own first process would be left to the machine's
        # init, which in a container may reap nothing.
        command = [self.programs["timeout"], "--foreground", "--signal=KILL"]
        command.append(str(limits.seconds + _GRACE))
        processes = limits.processes
        if self.user is None:
            processes += 1  # the first process in there belongs to the same user
        else:
            user = str(self.user)
            command += [self.programs["setpriv"], "--reuid", user, "--regid", user]
            command += ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
        # where memory runs out, the kernel should take the sandbox and not a training run
        command += [self.programs["choom"], "-n", "1000", "--"]
        command += [
            self.programs["prlimit"],
            _limit_option("as", resource.RLIMIT_AS, limits.memory_mb * MEBI),
            _limit_option("cpu", resource.RLIMIT_CPU, limits.cpu_seconds, spare=2),
            _limit_option("nproc", resource.RLIMIT_NPROC, processes),
            _limit_option("fsize", resource.RLIMIT_FSIZE, limits.scratch_mb * MEBI),
            _limit_option("nofile", resource.RLIMIT_NOFILE, limits.open_files),
            # 0 would still let the kernel start a core handler on the host; 1 starts none
            "--core=1:1",
            "--msgqueue=0:0",
        ]
        return [*command, "--", *argv]


def _tmpfs_options(path: str, mebibytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(mebibytes * MEBI), "--tmpfs", path]


def _file_options(files: Sequence[tuple[str, int]]) -> list[str]:
    """Options that create files in the scratch directory, after their directories."""
    options: list[str] = []
    folders = {str(parent) for name, _ in files for parent in Path(name).parents}
    for folder in sorted(folders - {"."}):
        options += ["--perms", "0777", "--dir", f"{SCRATCH}/{folder}"]
    for name, descriptor in files:
        options += ["--perms", "0666", "--file", str(descriptor), f"{SCRATCH}/{name}"]
    return options


def _limit_option(name: str, kind: int, value: int, *, spare: int = 0) -> str:
    """Option of prlimit; `spare` lies between the soft limit, which signals, and the hard one."""
    current_hard = resource.getrlimit(kind)[1]  # an ordinary user can only go down
    hard = value + spare
    if current_hard != resource.RLIM_INFINITY:
        hard = min(hard, current_hard)
    return f"--{name}={min(value, hard)}:{hard}"


# -- one start of it -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to start, with the descriptors that it needs.

    Attributes:
        box: the sandbox.
        argv: the command.
        keep: descriptors that it inherits.
        stdin: descriptor of its input.
        status: descriptor from which its reports are read.
        copies: our copies of its descriptors, closed once it has started.
    """

    box: Box
    argv: list[str]
    keep: tuple[int, ...]
    stdin: int
    status: int
    copies: contextlib.ExitStack


@contextlib.contextmanager
def launch_run(
    box: Box,
    argv: Sequence[str] | None,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    holder: int | None = None,
) -> Generator[Launch]:
    """Prepare a run in the box, with its descriptors open until the end of the block.

    Options and file contents go through anonymous memory, not through arguments: a program in the
    sandbox can read the command line of the process that reaps its children.

    Args:
        box: the sandbox.
        argv: the program and its arguments; None for the holder of a scratch directory, which
            writes a line once it is ready.
        stdin: its input.
        files: paths in the scratch directory → contents.
        holder: process that holds the scratch directory; None for a fresh one.
    """
    status, report = os.pipe()
    with contextlib.ExitStack() as descriptors, contextlib.ExitStack() as copies:
        descriptors.callback(os.close, status)
        copies.callback(os.close, report)
        keep = [report]
        if argv is None:
            program = [box.programs["sh"], "-c", "echo ready; exec sleep infinity"]
            options = box.holder_options(status=report)
        else:
            program = box.program(argv)
            contents: list[tuple[str, int]] = []
            for name, content in (files or {}).items():
                contents.append((_scratch_path(name), _sealed_copy(content, copies)))
            seccomp = _sealed_copy(filter_program(), copies)
            keep += [seccomp, *(descriptor for _, descriptor in contents)]
            options = box.options(
                seccomp=seccomp, status=report, files=contents, shared=holder is not None
            )
        arguments = b"".join(os.fsencode(option) + b"\0" for option in options)
        keep.append(_sealed_copy(arguments, copies))
        command = [box.programs["bwrap"], "--args", str(keep[-1]), "--", *program]
        if holder is not None:
            command = [*_enter_command(box, holder), *command]
        yield Launch(box, command, tuple(keep), _sealed_copy(stdin, copies), status, copies)


def _sealed_copy(content: bytes, copies: contextlib.ExitStack) -> int:
    """Open a descriptor that reads `content` and that nobody can write through."""
    descriptor = os.memfd_create("posttrain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    copies.callback(os.close, descriptor)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _enter_command(box: Box, holder: int) -> list[str]:
    """Command that starts another one in the namespaces of the holder."""
    enter = [box.programs["nsenter"], f"--mount=/proc/{holder}/ns/mnt"]
    if box.user is None:
        enter += [f"--user=/proc/{holder}/ns/user", "--preserve-credentials"]
    return [*enter, "--"]


def _scratch_path(name: str) -> str:
    path = PurePosixPath(name)
    is_below = path.parts and not path.is_absolute() and ".." not in path.parts
    assert is_below, f"{name!r} is no path below the scratch directory"
    return str(path)
