"""Sandbox of this package for inspect's tasks: `inspect_ai.Task(…, sandbox="posttrain")`.

A sample has a scratch directory that its commands share, no network, and nothing else that it could
write to; inspect's own "local" sandbox contains nothing.
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
# arguments: the directory, NAME=VALUE variables, the program and its arguments; `env` finds the
# program in the sandbox's own PATH
_RUN_IN_DIRECTORY = 'cd -- "$1" && shift && exec /usr/bin/env -- "$@"'
# the sandbox reports a file operation that failed as a plain OSError with the shell's words
_ERROR_CLASSES = (
    ("No such file", FileNotFoundError),
    ("Is a directory", IsADirectoryError),
    ("Permission denied", PermissionError),
    ("Read-only file system", PermissionError),
)


@sandboxenv(name="posttrain")
class BubblewrapSandbox(SandboxEnvironment):
    """Scratch directory of a sample, and the programs that are run in it."""

    def __init__(self, sandbox: Sandbox, stack: contextlib.AsyncExitStack) -> None:
        """Take over an open sandbox; closing `stack` ends it."""
        super().__init__()
        self._sandbox = sandbox
        self._stack = stack

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Open a fresh sandbox. Raises ConfigError where programs cannot be contained."""
        stack = contextlib.AsyncExitStack()
        sandbox = await stack.enter_async_context(open_sandbox(_LIMITS))
        return {"default": cls(sandbox, stack)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Kill running programs and delete the files, however the sample ended."""
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
        """Run a command once, as the only user; `timeout_retry` and `concurrency` are ignored.

        A second run after a time-out would make the changes of the first one again.

        Raises:
            TimeoutError: it ran longer than `timeout`, or than 180 s.
            OutputLimitExceededError: it wrote more than 10 MiB.
            SandboxUserUnsupportedError: a user is named; there is only one.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(f"programs here have one user, not {user!r}")
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        stdin = input.encode() if isinstance(input, str) else input or b""
        limits = _LIMITS
        if timeout is not None:
            limits = replace(_LIMITS, seconds=min(timeout, _LIMITS.seconds))
        # a relative directory is below the scratch directory, where every command starts
        argv = ["sh", "-c", _RUN_IN_DIRECTORY, "sh", cwd or ".", *variables, *cmd]
        result = await self._sandbox.run(argv, stdin=stdin, limits=limits)
        stdout = result.stdout.decode("utf-8", "replace")
        stderr = result.stderr.decode("utf-8", "replace")
        if result.limit == "time":
            raise TimeoutError(f"longer than {limits.seconds:g} s")
        if result.limit == "output":
            raise OutputLimitExceededError(f"{limits.output_bytes} bytes", stdout)
        if result.limit is not None:
            stderr += f"\nkilled: the limit on {result.limit}"
        return ExecResult(result.ok, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file and make its directories.

        Raises:
            PermissionError: the file is outside the scratch directory.
        """
        data = contents.encode() if isinstance(contents, str) else contents
        try:
            await self._sandbox.write(file, data)
        except OSError as error:
            _raise_by_words(error)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Content of a file.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
            UnicodeDecodeError: `text` of a file that is not UTF-8.
        """
        try:
            data = await self._sandbox.read(file)
        except OSError as error:
            _raise_by_words(error)
        return data.decode() if text else data


def _raise_by_words(error: OSError) -> NoReturn:
    """Raise an error as the class for the shell's words in it: inspect shows it to the model."""
    for words, error_class in _ERROR_CLASSES:
        if words in str(error):
            raise error_class(str(error)) from error
    raise error
