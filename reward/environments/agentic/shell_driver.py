"""Runs inside the sandbox, around one command: puts the files there, runs it, collects the files.

    stdin: marshal of ([b"/bin/sh", b"-c", b"ls"], {"a.py": b"…"}, seconds, most files, most bytes)
    stdout: b"0 5 0 1\\n" (exit code, bytes of output, entries not kept, files), the output, then
        for each file b"12 a.py\\n" and its content; -1 files: there were too many

What the command can reach are its own files, so whatever it does to this process changes nothing
but what is taken for its own result. Standard library only.
"""

import marshal
import os
import stat
import sys

OUTPUT = "/dev/shm/output"  # noqa: S108 - the sandbox's own
KEPT = 64 * 1024  # bytes of output from each end


def write_all(files: dict[str, bytes]) -> None:
    for path, data in files.items():
        folder = path.rpartition("/")[0]
        if folder:
            os.makedirs(folder, exist_ok=True)
        if not path.endswith("/"):
            with open(path, "wb") as file:
                file.write(data)
            # modes do not last: a script stays one that can be run
            os.chmod(path, 0o755)  # noqa: S103


def run(words: list[bytes], seconds: int, out: int) -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, 64)
        argv = [b"timeout", b"-s", b"KILL", b"%d" % seconds, *words]
        os.execvp("timeout", argv)  # noqa: S606, S607 - inside the sandbox
    status = os.waitpid(child, 0)[1]
    for _ in range(5):  # whatever it left in the background, of this namespace alone
        try:
            os.kill(-1, 9)
        except OSError:
            break
    return os.waitstatus_to_exitcode(status)


def collect(most_files: int, most_bytes: int) -> tuple[dict[str, bytes] | None, int]:
    """Path → content, as they were last written, and how many entries are neither files nor
    directories; None: too many."""
    files: dict[str, bytes] = {}
    written: dict[str, tuple[int, int]] = {}
    left, total, folders = 0, 0, [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.listdir(folder or "."))
        except OSError:
            left += 1
            continue
        if not entries and folder:
            files[folder + "/"] = b""
        for name in entries:
            path = folder + "/" + name if folder else name
            try:
                if len(path) > 200 or not path.isprintable():
                    raise OSError("such a path is not kept")
                kind = os.lstat(path)
                if stat.S_ISDIR(kind.st_mode):
                    folders += [path] * (name != "__pycache__")
                elif stat.S_ISREG(kind.st_mode):
                    total += kind.st_size
                    if total > most_bytes:
                        return None, left
                    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                        files[path] = file.read(most_bytes)
                    # files of one tick of the clock are told apart by when they were made
                    written[path] = kind.st_mtime_ns, kind.st_ino
                else:
                    left += 1
            except OSError:
                left += 1
            if len(files) + len(folders) > most_files:
                return None, left
    return {path: files[path] for path in sorted(files, key=lambda p: written.get(p, (0, 0)))}, left


def main() -> None:
    order = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 - of this project
    words, files, seconds, most_files, most_bytes = order
    write_all(files)
    out = os.open(OUTPUT, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    os.unlink(OUTPUT)
    code = run(words, seconds, out)
    size = os.fstat(out).st_size
    output = os.pread(out, KEPT, 0)
    if size > 2 * KEPT:
        output += b"\n[... %d bytes left out ...]\n" % (size - 2 * KEPT)
    if size > KEPT:
        output += os.pread(out, KEPT, max(KEPT, size - KEPT))
    files, left = collect(most_files, most_bytes)
    write = sys.stdout.buffer.write
    write(b"%d %d %d %d\n" % (code, len(output), left, -1 if files is None else len(files)))
    write(output)
    for path, data in (files or {}).items():
        write(b"%d %s\n" % (len(data), path.encode()) + data)


main()
