"""The output lock: one process at a time in a directory; and a command's errors as one line.

    with claimed(Path("runs/x"), kind="sft_data", config=config) as stage:
        …

The lock is the kernel's, on the directory itself: it leaves no file and goes with the process, also
when that is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.artifacts import StageDir
from posttrain.errors import ConfigError, PosttrainError

_INTERRUPTED = 130  # the shell's code for a process that Ctrl-C ended


@contextlib.contextmanager
def claimed(
    out: Path, *, kind: str, config: Mapping[str, Any], scratch: str | None = None
) -> Iterator[StageDir]:
    """The output directory of one stage, held while it works and given back if it made nothing.

    Args:
        scratch: as in `StageDir.give_back`.

    Raises:
        ConfigError: as `exclusive` and `StageDir.open`.
    """
    with exclusive(out):
        stage = StageDir.open(out, kind=kind, config=config)
        try:
            yield stage
        except PosttrainError:
            stage.give_back(scratch=scratch)
            raise


def check_output(out: Path, *, kind: str, config: Mapping[str, Any]) -> None:
    """What a dry run says of the output directory. Raises ConfigError as `claimed` would."""
    if out.is_dir() and any(out.iterdir()):
        StageDir.open(out, kind=kind, config=config, claim=False)


@contextlib.contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Create the directory if need be and hold it.

    Raises:
        ConfigError: another process holds it, or it cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"out={out}: {error.filename} is a file; name a directory") from error
    except OSError as error:
        raise ConfigError(f"out={out} cannot be created: {error.strerror}") from error
    try:
        _lock(handle, out)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process is at work in {out}; wait for it, or choose another out="
        ) from error
    except OSError:
        return  # a network file system without locks: there the user takes care


def run_command(main: Callable[[], None]) -> None:
    """Run a script's main; the user's mistakes and Ctrl-C end it without a traceback."""
    try:
        main()
    except PosttrainError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted; the same command takes it up again", file=sys.stderr)
        sys.exit(_INTERRUPTED)
