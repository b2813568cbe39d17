"""The sandbox as a bubblewrap command line: what a program sees, who it is, what it may use.

    box = Box(Limits(), Interpreter.here())
    box.options(seccomp=7, status=8)  → ["--unshare-pid", …, "--ro-bind", "/usr", "/usr", …]
    box.program(["python3", "-c", "…"])  → ["/usr/bin/setpriv", …, "python3", "-c", "…"]

Everything a program can write to lives in memory and is bounded: /scratch and /dev/shm. Its limits
are set *inside* the sandbox; outside they would count this user's other processes, bubblewrap's own
among them. As root there is no user namespace: root's processes are exempt from the limit on
processes even there, so the program becomes a throw-away user instead.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.environments.sandbox.limits import MEBI, Limits
from posttrain.errors import ConfigError

MOUNT = "/interpreter"
SCRATCH = "/scratch"
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
_PROGRAMS = ("bwrap", "prlimit", "choom", "setpriv", "nsenter", "timeout", "sh")
_GRACE = 5.0  # seconds: the sandbox ends by itself where the process that watches it is stuck
# above the users that distributions, containers and directories hand out, below the signed limit
_THROWAWAY_USERS = (0x70000000, 0x7FFFFFF0)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that sandboxed programs run: this project's own interpreter.

    One under /usr is visible in the sandbox anyway (`source` is None). One that lives elsewhere, as
    in a home directory, is shown alone, at `MOUNT`; the packages of a virtual environment are not.
    """

    source: Path | None
    executable: str

    @property
    def environment(self) -> dict[str, str]:
        """What it needs to find its own shared library once it has moved."""
        return {} if self.source is None else {"LD_LIBRARY_PATH": f"{MOUNT}/lib"}

    @classmethod
    def here(cls) -> Interpreter:
        """The interpreter under the running one's virtual environment.

        Raises:
            ConfigError: it is laid out in a way that cannot be shown alone.
        """
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base = Path(sys.base_prefix).resolve()
        executable = base / "bin" / version
        library = base / "lib" / version / "os.py"
        everything = base in (Path.home(), *Path.home().parents)
        if everything or not executable.is_file() or not library.is_file():
            raise ConfigError(
                f"the sandbox cannot show the Python in {base}: it needs bin/{version} and "
                f"lib/{version} in a directory of their own"
            )
        if base.is_relative_to("/usr"):
            return cls(None, str(executable))
        return cls(base, f"{MOUNT}/bin/{version}")


def find_programs() -> dict[str, str]:
    """Where the programs that make the sandbox are.

    Raises:
        ConfigError: one is not installed; says which.
    """
    paths = {name: shutil.which(name) for name in _PROGRAMS}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise ConfigError(
            f"the sandbox needs {', '.join(missing)}, which this machine lacks: apt-get install "
            "bubblewrap util-linux coreutils; without them no model-written program is run"
        )
    return {name: os.path.realpath(path) for name, path in paths.items() if path}


def as_root() -> bool:
    """Whether this process is the machine's root, not the root of a user namespace."""
    whole = ["0", "0", "4294967295"]
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text("ascii").split() == whole


def _throwaway_user() -> int | None:
    first, end = _THROWAWAY_USERS
    return first + secrets.randbelow(end - first) if as_root() else None


@dataclass(frozen=True, slots=True)
class Box:
    """One sandbox's shape. `user` is who its programs are as root; None as an ordinary user."""

    limits: Limits
    interpreter: Interpreter
    programs: dict[str, str] = field(default_factory=find_programs)
    user: int | None = field(default_factory=_throwaway_user)

    @property
    def environment(self) -> dict[str, str]:
        """All that a sandboxed program finds in its environment."""
        return {
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
            **self.interpreter.environment,
        }

    def options(
        self, *, seccomp: int, status: int, files: Sequence[tuple[str, int]] = (), kept: bool
    ) -> list[str]:
        """Options of a run.

        Args:
            seccomp: descriptor of the filter.
            status: descriptor that bubblewrap reports to.
            files: paths in the scratch directory, and descriptors of what to put there.
            kept: the scratch directory is `SCRATCH` of the mount namespace that bubblewrap is
                started in, not a fresh one.
        """
        inside = kept  # then the interpreter is already at its place
        return [
            *self._namespaces(),
            "--die-with-parent", "--new-session", "--as-pid-1",
            "--json-status-fd", str(status), "--seccomp", str(seccomp),
            *self._system(inside=inside),
            "--proc", "/proc", "--dev", "/dev",
            *_tmpfs("/dev/shm", self.limits.shm_mb), "--remount-ro", "/dev",  # noqa: S108
            *(["--bind", SCRATCH, SCRATCH] if kept else _tmpfs(SCRATCH, self.limits.scratch_mb)),
            *_files(files),
            "--symlink", SCRATCH, "/tmp",  # noqa: S108
            "--remount-ro", "/", "--chdir", SCRATCH,
        ]  # fmt: skip

    def holder_options(self, *, status: int) -> list[str]:
        """Options of the process that holds a scratch directory between runs.

        It sees what a run sees, and this machine's /proc and /dev, without which bubblewrap cannot
        start in it. Nothing model-written runs in it.
        """
        bwrap = self.programs["bwrap"]
        return [
            *([] if self.user is not None else ["--unshare-user"]),
            "--die-with-parent", "--new-session", "--json-status-fd", str(status),
            *self._system(inside=False),
            *([] if bwrap.startswith("/usr/") else ["--ro-bind", bwrap, bwrap]),
            # a new /dev would cost a second user namespace, and nothing could enter the first
            "--dev-bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev",
            *_tmpfs(SCRATCH, self.limits.scratch_mb),
            "--dir", "/tmp", "--chdir", "/",  # noqa: S108 - where bubblewrap builds a new root
        ]  # fmt: skip

    def _namespaces(self) -> list[str]:
        names = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
                 "--unshare-cgroup-try", "--hostname", "sandbox"]  # fmt: skip
        if self.user is None:
            return ["--unshare-user", "--uid", "1000", "--gid", "1000", *names]
        # what setpriv needs to drop all, and the first process to end what has another user
        kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
        return [*names, "--cap-drop", "ALL", *(part for cap in kept for part in ("--cap-add", cap))]

    def _system(self, *, inside: bool) -> list[str]:
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
            source = MOUNT if inside else str(self.interpreter.source)
            options += ["--ro-bind", source, MOUNT]
        return options

    def program(self, argv: Sequence[str]) -> list[str]:
        """The program behind what takes its last powers and sets its limits."""
        limits = self.limits
        processes = limits.processes
        command: list[str] = []
        if self.user is None:
            processes += 1  # the first process in there belongs to the same user
        else:
            user = str(self.user)
            command += [self.programs["setpriv"], "--reuid", user, "--regid", user,
                        "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]  # fmt: skip
        return [
            # The namespace's first process: when it ends, the kernel kills the rest, and its
            # parent, bubblewrap, has reaped it. Bubblewrap's own first process would be left to
            # the machine's init, which in a container may reap nothing.
            self.programs["timeout"], "--foreground", "--signal=KILL",
            str(limits.seconds + _GRACE),
            *command,
            # where memory runs out, the kernel should take the sandbox and not a training run
            self.programs["choom"], "-n", "1000", "--",
            self.programs["prlimit"],
            _bound("as", resource.RLIMIT_AS, limits.memory_mb * MEBI),
            _bound("cpu", resource.RLIMIT_CPU, limits.cpu_seconds, spare=2),
            _bound("nproc", resource.RLIMIT_NPROC, processes),
            _bound("fsize", resource.RLIMIT_FSIZE, limits.scratch_mb * MEBI),
            _bound("nofile", resource.RLIMIT_NOFILE, limits.open_files),
            # 0 would still let the kernel start a core handler on the host; 1 starts none
            "--core=1:1", "--msgqueue=0:0",
            "--", *argv,
        ]  # fmt: skip


def _tmpfs(path: str, mebibytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(mebibytes * MEBI), "--tmpfs", path]


def _files(files: Sequence[tuple[str, int]]) -> list[str]:
    options: list[str] = []
    folders = {str(parent) for name, _ in files for parent in Path(name).parents}
    for folder in sorted(folders - {"."}):
        options += ["--perms", "0777", "--dir", f"{SCRATCH}/{folder}"]
    for name, descriptor in files:
        options += ["--perms", "0666", "--file", str(descriptor), f"{SCRATCH}/{name}"]
    return options


def _bound(name: str, kind: int, value: int, *, spare: int = 0) -> str:
    """An option of prlimit. `spare`: between the soft limit, which signals, and the hard one."""
    hard = resource.getrlimit(kind)[1]  # an ordinary user can only go down
    top = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
    return f"--{name}={min(value, top)}:{top}"
