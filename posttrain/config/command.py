"""The command line that every stage has: `--config RECIPE [--dry-run] [key.path=value …]`."""

import argparse
import contextlib
import difflib
import errno
import functools
import importlib.metadata
import json
import logging
import os
import re
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pydantic import BaseModel

from posttrain.config.describe import describe
from posttrain.config.load import (
    key_hint,
    keys_of_path,
    keys_of_recipe,
    load_recipe,
    read_recipe,
)
from posttrain.config.recipe_files import recipe_names, recipe_text
from posttrain.errors import ConfigError, PosttrainError

Schema = TypeVar("Schema", bound=BaseModel)
# errors of files that the user can mend: rights, names, a full disk
_USER_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOSPC,
)
_STDOUT = 1
OWN_LAUNCHER = "POSTTRAIN_LAUNCH"  # set by `posttrain launch`, which ends without a traceback
# accelerate's launcher sets this variable for every process
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
_REPORT_FOLLOWS = (
    "(this line is the reason; what follows is accelerate's report of a process that failed, which "
    "`posttrain launch` in place of `accelerate launch` leaves out)"
)
# signals for which an event loop was ended, which raises a plain KeyboardInterrupt
_interrupted_by: list[int] = []
# the recipe of this process, to name the key that led to a wrong path
_recipes: list[BaseModel] = []


class Terminated(KeyboardInterrupt):
    """A signal ends the process; a KeyboardInterrupt, so that it is handled wherever Ctrl-C is."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def terminate(number: int, frame: FrameType | None) -> None:
    """Signal handler that ends the work as Ctrl-C does; a second signal ends the process at once.

    While an event loop runs, its main task is cancelled: an exception raised in the midst of the
    loop would leave tasks that nobody ends.
    """
    signal.signal(number, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)
    # asyncio.Runner installs a partial while it runs
    if not isinstance(interrupt, functools.partial):
        raise Terminated(number)
    _interrupted_by.append(number)
    interrupt(signal.SIGINT, frame)


def recipe_parser(description: str) -> argparse.ArgumentParser:
    """Build the parser with the options of every stage; a stage adds its own."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="RECIPE", help="a YAML file, or a shipped recipe's name: tiny/sft"
    )
    parser.add_argument("--dry-run", action="store_true", help="check and plan, write nothing")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved recipe and do nothing"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="keys of the recipe; out=DIR is one"
    )
    return parser


def parse_recipe(
    parser: argparse.ArgumentParser,
    schema: type[Schema],
    argv: Sequence[str] | None,
    *,
    read: Callable[[str], dict[str, Any]] = read_recipe,
) -> tuple[Schema, argparse.Namespace]:
    """Parse a command line into the validated recipe and the options; note missing charts.

    Overrides may stand before, between and after options.

    Args:
        argv: arguments without the program's name; None takes those of the process.
        read: function that reads the recipe's mapping, as in `load_recipe`.

    Raises:
        ConfigError: as `load_recipe`, or an option is unknown.
        SystemExit: after `--help` and `--print-config`.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        parser.epilog = f"keys of the recipe:\n\n{describe(schema)}"
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise unknown_option(parser, schema, unknown[0], arguments)
    if options.config is None:
        stage = parser.prog.split()[-1].removesuffix(".py")
        recipes_of_stage = [name for name in recipe_names() if name.endswith(f"/{stage}")]
        names = ", ".join(recipes_of_stage) or "posttrain --recipes has their names"
        parser.error(f"--config is required: a file, or a shipped recipe ({names})")
    recipe = load_recipe(options.config, schema, options.overrides, read=read)
    _recipes[:] = [recipe]
    if options.print_config:
        print(recipe_text(recipe.model_dump(mode="json")))
        sys.exit()
    if find_spec("matplotlib") is None:  # before hours of work, whose page would be without them
        print("no charts on the pages: pip install 'posttrain[report]'", file=sys.stderr)
    return recipe, options


def unknown_option(
    parser: argparse.ArgumentParser, schema: type[BaseModel], option: str, arguments: Sequence[str]
) -> ConfigError:
    """Error for an unknown option, with what was meant.

    `--dryrun` is taken for the nearest option, `--learning_rate 1e-4` for a key of the recipe.
    """
    known_options = re.findall(r"--[a-z][a-z-]*", parser.format_usage())
    name, equals, value = option.partition("=")
    # a high cutoff: a key of the recipe must not be taken for an option
    similar = difflib.get_close_matches(name.replace("_", "-"), known_options, n=1, cutoff=0.85)
    if similar:
        return ConfigError(f"{name} is no option (did you mean {similar[0]!r}?)")
    if not equals:
        value = "VALUE"
        next_arguments = arguments[arguments.index(option) + 1 :]
        if next_arguments and not next_arguments[0].startswith("-"):
            value = next_arguments[0]
    key = name.lstrip("-").replace("-", "_")
    keys = keys_of_recipe(schema)
    is_block = any(recipe_key.startswith(f"{key}.") for recipe_key in keys)
    if key in keys and not is_block:
        return ConfigError(f"{name} is no option: keys are set without dashes: {key}={value}")
    hint = key_hint(schema, key.split("."), key)
    proposal = re.search(r"did you mean '([^']+)'", hint)
    example = f": {proposal[1]}={value}" if proposal else f", as key.path=value{hint}"
    return ConfigError(f"{name} is no option: keys of the recipe are set without dashes{example}")


def run_command(main: Callable[[], None]) -> None:
    """Run a script's main; the user's mistakes, Ctrl-C and `| head` end it without a traceback.

    Libraries are silenced for the whole process first.

    Raises:
        SystemExit: with the exit status of a failed or interrupted command.
    """
    _silence_libraries()
    try:
        with _terminable():
            main()
    except BrokenPipeError:
        if not _stdout_is_closed():  # the broken pipe is another one
            raise
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt as interrupt:
        number = _interrupted_by[-1] if _interrupted_by else signal.SIGINT
        if isinstance(interrupt, Terminated):
            number = interrupt.number
        cause = "interrupted"
        if number != signal.SIGINT:
            cause = f"ended by {signal.Signals(number).name}"
        message = f"{cause}; rerun the same command to resume"
        if not _report_to_torchrun(message):
            print(message, file=sys.stderr)
        sys.exit(128 + number)  # the shell's code for a process that a signal ended
    except Exception as error:
        message = _user_message(error)
        if message is None:
            raise
        if _ACCELERATE in os.environ and OWN_LAUNCHER not in os.environ:
            message = f"{message} {_REPORT_FOLLOWS}"
        sys.exit(1 if _report_to_torchrun(message) else message)
    finally:
        if _stdout_is_closed():
            # Python flushes at exit and would print a second BrokenPipeError
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)


def _silence_libraries() -> None:
    """Switch off telemetry, and warnings and log lines of libraries that no user can act on."""
    # trl sends telemetry by default; the libraries read this variable when they are imported
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # libraries warn their callers of changes to come, which is nothing that a user could mend
    warnings.filterwarnings("ignore", category=FutureWarning)
    # the extra `quantize` pins the versions that the tests run; the advice would break them
    warnings.filterwarnings("ignore", message="transformers .* not tested with .* of modelopt")
    logging.getLogger("DeepSpeed").addFilter(_is_no_accelerator_line)


@contextlib.contextmanager
def _terminable() -> Generator[None]:
    """Context in which SIGTERM ends the work as Ctrl-C does: pages written, processes ended."""
    main_thread = threading.current_thread() is threading.main_thread()
    # another handler is that of whoever runs this command, such as torchrun
    if not main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_no_accelerator_line(record: logging.LogRecord) -> bool:
    """Filter out DeepSpeed's line on its device at import; the plan prints the device too."""
    return not record.getMessage().startswith("Setting accelerator")


def _user_message(error: Exception) -> str | None:
    """Message for an error that the user can mend; None for a fault of ours."""
    if isinstance(error, PosttrainError):
        return f"{type(error).__name__}: {_keys_before(error)}{error}"
    if isinstance(error, ModuleNotFoundError):
        return _install_hint(error.name or "")
    if not isinstance(error, OSError):
        return None
    # files are written beside their place and moved there: the second name is the user's
    file = error.filename2 or error.filename
    if error.errno == errno.ENOSPC and not file:  # a write to an open file names no file
        return str(error.strerror)
    if file and error.errno in _USER_ERRNOS:
        return f"{file}: {error.strerror}"
    return None


def _keys_before(error: PosttrainError) -> str:
    """Keys of the recipe that name the path of an error, as the beginning of its message."""
    keys: list[str] = []
    if error.path is not None:
        for recipe in _recipes:
            keys += keys_of_path(recipe, error.path)
    return f"{', '.join(keys)}: " if keys else ""


def _stdout_is_closed() -> bool:
    """True if standard output is a pipe without a reader, as behind `| head`."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _report_to_torchrun(message: str) -> bool:
    """Write the message to torchrun's error file; True if another process prints the message.

    False without torchrun.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not error_file:
        return False
    entry = {"message": message, "timestamp": int(time.time())}
    Path(error_file).write_text(json.dumps(entry), "utf-8")
    # attempt_0/RANK/error.json: the first process of a machine prints for all
    try:
        (Path(error_file).parents[1] / "printed").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _install_hint(module: str) -> str | None:
    """Sentence on how to install a missing module; None if none of our extras has it."""
    package = module.partition(".")[0]
    try:
        requirements = importlib.metadata.requires("posttrain") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return None
    for requirement in requirements:
        match = re.match(r"([\w-]+).*extra == .(\w+)", requirement)
        if match and match[1].replace("-", "_") == package:
            return f"this needs {package}: pip install 'posttrain[{match[2]}]'"
    return None
