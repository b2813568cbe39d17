"""Our sandbox as inspect's: `inspect_ai.Task(…, sandbox="posttrain")`. A sample has a scratch
directory that its commands share, no network, and nothing else that it could write to; inspect's
own "local" contains nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NoReturn, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from posttrain.environments.sandbox import Limits, Sandbox, open_sandbox

_LIMITS = Limits(seconds=180, cpu_seconds=120, output_bytes=10 * 1024 * 1024)
# the directory, then what the program is given, found in the sandbox's own PATH
_IN = 'cd -- "$1" && shift && exec /usr/bin/env -- "$@"'
_ERRORS = (
    ("No such file", FileNotFoundError),
    ("Is a directory", IsADirectoryError),
    ("Permission denied", PermissionError),
    ("Read-only file system", PermissionError),
)


@sandboxenv(name="posttrain")
class BubblewrapSandbox(SandboxEnvironment):
    """One sample's scratch directory and the programs that are run in it."""

    def __init__(self, opened: Sandbox, stack: contextlib.AsyncExitStack) -> None:
        super().__init__()
        self._opened, self._stack = opened, stack

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """A fresh sandbox. Raises ConfigError where programs cannot be contained."""
        stack = contextlib.AsyncExitStack()
        return {"default": cls(await stack.enter_async_context(open_sandbox(_LIMITS)), stack)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Kill what runs and forget the files, however the sample ended."""
        for environment in environments.values():
            await environment.as_type(BubblewrapSandbox)._stack.aclose()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; a time-out is never tried again: what it changed would be there twice.

        Raises:
            TimeoutError: it ran longer than `timeout`, or than the sandbox lets anything run.
            OutputLimitExceededError: it wrote more than 10 MiB.
            SandboxUserUnsupportedError: a user is named; there is only one.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(f"programs here have one user, not {user!r}")
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        given = input.encode() if isinstance(input, str) else input or b""
        limits = _LIMITS if timeout is None else replace(_LIMITS, seconds=min(timeout, 180))
        # a relative directory is below the scratch directory, where every command starts
        argv = ["sh", "-c", _IN, "sh", cwd or ".", *variables, *cmd]
        result = await self._opened.run(argv, stdin=given, limits=limits)
        stdout, stderr = (s.decode("utf-8", "replace") for s in (result.stdout, result.stderr))
        if result.limit == "time":
            raise TimeoutError(f"longer than {limits.seconds:g} s")
        if result.limit == "output":
            raise OutputLimitExceededError(f"{limits.output_bytes} bytes", stdout)
        if result.limit is not None:
            stderr += f"\nkilled: the limit on {result.limit}"
        return ExecResult(result.ok, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, making its directories. Raises PermissionError outside the scratch."""
        data = contents.encode() if isinstance(contents, str) else contents
        try:
            await self._opened.write(file, data)
        except OSError as error:
            _raise_named(error)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, UnicodeDecodeError."""
        try:
            data = await self._opened.read(file)
        except OSError as error:
            _raise_named(error)
        return data.decode() if text else data


def _raise_named(error: OSError) -> NoReturn:
    """The error by the name that inspect tells its models."""
    for words, kind in _ERRORS:
        if words in str(error):
            raise kind(str(error)) from error
    raise error
