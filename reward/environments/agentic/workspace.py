"""The files of one run behind five tools.

They are bytes by path in this process: there is no directory to leave, no link to follow, and
nothing that two runs share. A command runs in a sandbox that gets the files; the regular files that
it leaves are taken back.
"""

from __future__ import annotations

import base64
import binascii
import json
import marshal
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.environments.base import Environment, Tool, Toolbox, clip
from posttrain.environments.sandbox import Limits
from posttrain.jsontext import writable
from posttrain.records import json_text
from reward.environments.code import run_program
from reward.environments.world import Refused

Call = tuple[str, Mapping[str, Any]]
Files = Mapping[str, bytes]  # path → content; a path that ends in "/" is an empty directory
SECONDS = 10  # limit of one command
MOST_FILES = 500
MOST_BYTES = 4 << 20  # of all files together
_PATH_CHARACTERS = 200
_COMMAND_BYTES = 100_000
_DRIVER = Path(__file__).with_name("shell_driver.py").read_text("utf-8")
_QUERY = """
import sqlite3, sys
database, query = sys.argv[1:]
connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
try:
    cursor = connection.execute(query)
except sqlite3.Error as error:
    sys.exit(f"error: {error}")
if cursor.description:
    print(" | ".join(column[0] for column in cursor.description))
    for number, row in enumerate(cursor):
        if number == 200:
            print("… further rows are not shown")
            break
        print(" | ".join("NULL" if value is None else str(value) for value in row))
"""


class InfrastructureError(Exception):
    """The machine failed, not the call."""


def _object_schema(*required: str, **optional: str) -> dict[str, Any]:
    """Schema of an object with required texts and optional fields of the given types."""
    types = dict.fromkeys(required, "string") | optional
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in types.items()},
        "required": list(required),
        "additionalProperties": False,
    }


# name → description, JSON schema of the parameters
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read_file": (
        "The text of a file; `first_line` (from 1) and `lines` choose a part of a long one.",
        _object_schema("path", first_line="integer", lines="integer"),
    ),
    "write_file": (
        "Write a text file, replacing what is there; its directories are made.",
        _object_schema("path", "content"),
    ),
    "list_files": (
        "All files below a directory with their sizes in bytes.",
        _object_schema(path="string"),
    ),
    "shell": (
        f"Run a command with sh in the working directory, for at most {SECONDS} seconds. python3 "
        "has its standard library alone; there is no network. Files last, processes, links and "
        "file modes do not.",
        _object_schema("command"),
    ),
    "sql": (
        "Run one SQL query on a SQLite database, read-only.",
        _object_schema("database", "query"),
    ),
}
BASIC = ("read_file", "write_file", "list_files", "shell")
ISOLATED = ("-I", "-S", "-c")  # neither the directory nor variables reach a program's imports


class Workspace(Environment):
    """The files of one completion, and the tools on them.

    Args:
        tools: names in `TOOLS`.
        deliverables: files without which the task is not done; () for any change.
        first_error: result of the first valid call, which is then not carried out.
    """

    def __init__(
        self,
        files: Files,
        *,
        tools: Iterable[str] = BASIC,
        deliverables: tuple[str, ...] = (),
        first_error: str | None = None,
    ) -> None:
        self.files = dict(files)
        self._initial = dict(files)
        self._deliverables = deliverables
        self._first_error = first_error
        self._calls: list[dict[str, Any]] = []
        self._infrastructure: str | None = None
        self._toolbox = Toolbox([Tool(name, *TOOLS[name], getattr(self, name)) for name in tools])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        before = dict(self.files)
        result = await self._toolbox.call(name, arguments)
        # a command's files are in the order in which it wrote them
        write_order = {path: index for index, path in enumerate(self.files)}
        changed = changed_paths(before, self.files)
        changed.sort(key=lambda path: write_order.get(path, -1))
        emptied = [path for path in changed if not self.files.get(path)]
        self._calls.append({"changed": changed, "emptied": emptied})
        return result

    def _raise_first_error(self) -> None:
        """Raise the error that the task injects, once."""
        error = self._first_error
        self._first_error = None
        if error is not None:
            raise Refused(error)

    def read_file(self, path: str, first_line: int = 1, lines: int | None = None) -> str:
        self._raise_first_error()
        path = inside(path)
        if path not in self.files:
            raise Refused(f"there is no file {path}")
        text = self.files[path].decode("utf-8", "replace")
        if (first_line, lines) == (1, None):
            return text
        start = max(0, first_line - 1)
        end = None if lines is None else start + lines
        return "".join(text.splitlines(keepends=True)[start:end])

    def write_file(self, path: str, content: str) -> str:
        self._raise_first_error()
        path = inside(path)
        if path == "." or any(p.startswith(f"{path}/") for p in self.files):
            raise Refused(f"{path} is a directory")
        parents = posixpath.dirname(path).split("/")
        for depth in range(1, len(parents) + 1):
            if (folder := "/".join(parents[:depth])) in self.files:
                raise Refused(f"{folder} is a file")
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise Refused("the content is not valid Unicode") from None
        # the entry of an empty directory goes when it gets a file
        files = {p: d for p, d in self.files.items() if not (p[-1] == "/" and path.startswith(p))}
        self._replace_files({**files, path: data})
        return f"wrote {len(data)} bytes to {path}"

    def list_files(self, path: str = ".") -> str:
        self._raise_first_error()
        folder = inside(path)
        prefix = "" if folder == "." else f"{folder}/"
        below = [p for p in sorted(self.files) if p.startswith(prefix) or p == folder]
        if not below:
            raise Refused(f"there is nothing at {folder}")
        return "\n".join(p if p.endswith("/") else f"{p}  {len(self.files[p])}" for p in below)

    async def shell(self, command: str) -> str:
        self._raise_first_error()
        return await self._run_in_sandbox(["/bin/sh", "-c", command])

    async def sql(self, database: str, query: str) -> str:
        self._raise_first_error()
        path = inside(database)
        if path not in self.files:
            raise Refused(f"there is no database {path}")
        # the query runs on a copy: nothing that it leaves behind is kept
        files = self.files
        try:
            return await self._run_in_sandbox(["python3", "-I", "-S", "-c", _QUERY, path, query])
        finally:
            self.files = files

    async def _run_in_sandbox(self, argv: list[str]) -> str:
        """Run a command on the files, take over the files that it leaves, and return its output.

        Raises:
            Refused: it cannot be run, or its changes are lost; says why.
            InfrastructureError: the sandbox did not start.
        """
        try:
            words = [word.encode() for word in argv]
        except UnicodeEncodeError:
            raise Refused("the text is not valid Unicode") from None
        if any(b"\0" in word or len(word) > _COMMAND_BYTES for word in words):
            raise Refused(f"a null character, or more than {_COMMAND_BYTES} bytes")
        stdin = marshal.dumps((words, self.files, SECONDS, MOST_FILES, MOST_BYTES))
        limits = Limits(seconds=3 * SECONDS, cpu_seconds=SECONDS, output_bytes=3 * MOST_BYTES)
        try:
            result = await run_program([*ISOLATED, _DRIVER], stdin, limits)
        except OSError as error:
            self._infrastructure = f"the sandbox: {error}"
            raise InfrastructureError(self._infrastructure) from error
        if result.limit is not None:
            raise Refused(f"stopped at the limit of {result.limit}; its changes are lost")
        try:
            exit_code, output, not_kept, files = _read_driver_output(result.stdout)
        except (ValueError, Refused):
            raise Refused("the command broke off; its changes are lost") from None
        if files is None:
            raise Refused(
                f"the command left more than {MOST_FILES} files or {MOST_BYTES} bytes: its changes "
                "are lost"
            )
        self._replace_files(files)
        text = output.decode("utf-8", "replace").rstrip("\n")
        status = f"exit code {exit_code}"
        if exit_code < 0:  # a signal: at the time limit, or sent by the command itself
            status = f"killed, the most is {SECONDS} seconds"
        notes: list[str] = []
        if exit_code != 0 or (not text and not_kept == 0):
            notes.append(status)
        if not_kept > 0:
            notes.append(f"{not_kept} links or special files were not kept")
        if not text:
            notes.insert(0, "no output")
            return f"({', '.join(notes)})"
        return f"{text}\n({', '.join(notes)})" if notes else text

    def _replace_files(self, files: Files) -> None:
        """Replace all files. Raises Refused where they are too many or too large."""
        if len(files) > MOST_FILES or sum(map(len, files.values())) > MOST_BYTES:
            raise Refused(f"more than {MOST_FILES} files or {MOST_BYTES} bytes in all")
        self.files = dict(files)

    def snapshot(self) -> str:
        changed = changed_paths(self._initial, self.files)
        missing = [p for p in self._deliverables if p not in changed or p not in self.files]
        if not self._deliverables and not changed:
            missing = ["any change"]
        state = {
            "changes": {path: _content_as_json(self.files.get(path)) for path in changed},
            "calls": self._calls,
            "missing": missing,
            "infrastructure": self._infrastructure,
        }
        return writable(json_text(state))


def inside(path: str) -> str:
    """Shortest form of a path, relative to the working directory.

    Raises Refused: it leads out of the working directory, or is no path.
    """
    relative = posixpath.normpath(f"{path or '.'}/".removeprefix("/scratch/") or ".")
    if len(path) > _PATH_CHARACTERS or "\0" in path or not path.isprintable():
        raise Refused("no such path: too long, or with characters that do not print")
    if relative.startswith("/") or relative.split("/")[0] == "..":
        raise Refused(f"{clip(path, 80)} is outside of the working directory")
    return relative


def changed_paths(before: Files, after: Files) -> list[str]:
    """Paths whose content differs or that only one side has, in alphabetical order."""
    return sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))


def final_files(initial: Files, state: Mapping[str, Any]) -> dict[str, bytes]:
    """The files at the end of a run, from its snapshot."""
    files = dict(initial)
    for path, content in state["changes"].items():
        if content is None:
            files.pop(path, None)
        elif isinstance(content, str):
            files[path] = content.encode("utf-8", "surrogatepass")
        else:
            files[path] = base64.b64decode(content["base64"])
    return files


def _content_as_json(content: bytes | None) -> Any:
    """Content of a file as a text, or in base64 where it is none; None for a deleted file."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(content, newline=False).decode()}


def _read_driver_output(data: bytes) -> tuple[int, bytes, int, dict[str, bytes] | None]:
    """Exit code, output, number of entries not kept, and the files, None where there were too many.

    Raises ValueError, Refused: the driver does not write such output, so the command did.
    """
    header_end = data.index(b"\n")
    exit_code, size, not_kept, count = map(int, data[:header_end].split())
    output_start = header_end + 1
    position = output_start + size
    output = data[output_start:position]
    if count < 0:
        return exit_code, output, not_kept, None
    if size < 0 or count > MOST_FILES:
        raise ValueError("not of the driver")
    files: dict[str, bytes] = {}
    for _ in range(count):
        line_end = data.index(b"\n", position)
        length, _, name = data[position:line_end].decode().partition(" ")
        position = line_end + 1 + max(0, int(length))
        files[inside(name) + "/" * name.endswith("/")] = data[line_end + 1 : position]
    return exit_code, output, not_kept, files


# -- calls of the tools --------------------------------------------------------------------------


def read(path: str) -> Call:
    """Call that reads a file."""
    return "read_file", {"path": path}


def write(path: str, content: str) -> Call:
    """Call that writes a file."""
    return "write_file", {"path": path, "content": content}


def write_json(path: str, /, **fields: Any) -> Call:
    """Call that writes an object with these fields to a file."""
    return write(path, json.dumps(fields))


def sh(command: str) -> Call:
    """Call that runs a command in the shell."""
    return "shell", {"command": command}
