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

import yaml
from pydantic import BaseModel

from posttrain.config.describe import describe
from posttrain.config.load import key_hint, keys_of_recipe, load_recipe, read_recipe
from posttrain.config.recipe_files import recipe_names
from posttrain.errors import ConfigError, PosttrainError

Schema = TypeVar("Schema", bound=BaseModel)
# not to be read or written as the user wants it
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR,
    errno.ENOTDIR, errno.EEXIST, errno.ENOSPC,
)  # fmt: skip
_STDOUT = 1
OWN_LAUNCHER = "POSTTRAIN_LAUNCH"  # set by `posttrain launch`, which ends without a traceback
# of the variables that accelerate's launcher sets for every process
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
_REPORT_FOLLOWS = (
    "(this line is the reason; what follows is accelerate's report of a process that failed, which "
    "`posttrain launch` in place of `accelerate launch` leaves out)"
)


_interrupted_by: list[int] = []  # signals that event loops end for with a KeyboardInterrupt


class Terminated(KeyboardInterrupt):
    """The process was sent a signal that ends it: handled wherever Ctrl-C is."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def terminate(number: int, frame: FrameType | None) -> None:
    """A handler of such signals; a second one ends the process at once.

    While an event loop runs, its main task is cancelled, as by Ctrl-C: an exception out of nowhere
    would leave tasks that nobody ends.
    """
    signal.signal(number, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)
    if not isinstance(interrupt, functools.partial):  # what asyncio.Runner installs while it runs
        raise Terminated(number)
    _interrupted_by.append(number)
    interrupt(signal.SIGINT, frame)


def recipe_parser(description: str) -> argparse.ArgumentParser:
    """The options of every stage; a stage adds its own."""
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
    """The validated recipe and the options; overrides may stand before, between and after options.

    Raises:
        ConfigError: as `load_recipe`.
        SystemExit: after `--help` and `--print-config`.
    """
    given = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(given):
        parser.epilog = f"keys of the recipe:\n\n{describe(schema)}"
    options, unknown = parser.parse_known_intermixed_args(given)
    if unknown:
        raise no_option(parser, schema, unknown[0], given)
    if options.config is None:
        stage = parser.prog.split()[-1].removesuffix(".py")
        own = [name for name in recipe_names() if name.endswith(f"/{stage}")]
        names = ", ".join(own) or "posttrain --recipes has their names"
        parser.error(f"--config is required: a file, or a shipped recipe ({names})")
    recipe = load_recipe(options.config, schema, options.overrides, read=read)
    if options.print_config:
        print(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
        sys.exit()
    if find_spec("matplotlib") is None:
        print("no charts on the pages: pip install 'posttrain[report]'", file=sys.stderr)
    return recipe, options


def no_option(
    parser: argparse.ArgumentParser, schema: type[BaseModel], option: str, given: Sequence[str]
) -> ConfigError:
    """The error of `--learning_rate 1e-4`, with how the key is written, or of `--dryrun`."""
    options = re.findall(r"--[a-z][a-z-]*", parser.format_usage())
    written = option.partition("=")[0]
    if meant := difflib.get_close_matches(written.replace("_", "-"), options, n=1, cutoff=0.85):
        return ConfigError(f"{written} is no option (did you mean {meant[0]!r}?)")
    name, equals, value = option.lstrip("-").partition("=")
    if not equals:
        behind = given[given.index(option) + 1 :][:1]
        value = next((word for word in behind if not word.startswith("-")), "VALUE")
    key = name.replace("-", "_")
    keys = keys_of_recipe(schema)
    if key in keys and not any(other.startswith(f"{key}.") for other in keys):
        return ConfigError(
            f"{option.partition('=')[0]} is no option: keys are set without dashes: {key}={value}"
        )
    hint = key_hint(schema, key.split("."), key)
    meant = re.search(r"did you mean '([^']+)'", hint)
    example = f": {meant[1]}={value}" if meant else f", as key.path=value{hint}"
    return ConfigError(
        f"{option.partition('=')[0]} is no option: keys of the recipe are set without dashes"
        f"{example}"
    )


def run_command(main: Callable[[], None]) -> None:
    """Run a script's main; the user's mistakes, Ctrl-C and `| head` end it without a traceback."""
    # trl sends telemetry by default; the libraries look here when they are imported
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # of libraries to their own callers; nothing that a user could mend
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.getLogger("DeepSpeed").addFilter(_no_accelerator_line)
    try:
        with _terminable():
            main()
    except BrokenPipeError:
        if not _nobody_reads():  # another pipe
            raise
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt as stop:
        interrupted_by = _interrupted_by[-1] if _interrupted_by else signal.SIGINT
        number = stop.number if isinstance(stop, Terminated) else interrupted_by
        how = (
            f"ended by {signal.Signals(number).name}" if number != signal.SIGINT else "interrupted"
        )
        message = f"{how}; rerun the same command to resume"
        if not _printed_by_another(message):
            print(message, file=sys.stderr)
        sys.exit(128 + number)  # the shell's code for a process that a signal ended
    except Exception as error:
        message = _mistake(error)
        if message is None:
            raise
        if _ACCELERATE in os.environ and OWN_LAUNCHER not in os.environ:
            message = f"{message} {_REPORT_FOLLOWS}"
        sys.exit(1 if _printed_by_another(message) else message)
    finally:
        if _nobody_reads():  # at its end Python writes what is left, and would complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)


@contextlib.contextmanager
def _terminable() -> Generator[None]:
    """Within, SIGTERM ends the work as Ctrl-C does: pages are written, processes ended."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _no_accelerator_line(record: logging.LogRecord) -> bool:
    """DeepSpeed says where it runs when it is imported; the plan does so, too."""
    return not record.getMessage().startswith("Setting accelerator")


def _mistake(error: Exception) -> str | None:
    """What to print of an error that is the user's to mend; None: it is a fault of ours."""
    if isinstance(error, PosttrainError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        return _extra_of(error.name or "")
    if not isinstance(error, OSError):
        return None
    # of two names the second is the user's: a file is written beside it and moved there
    file = error.filename2 or error.filename
    if error.errno == errno.ENOSPC and not file:  # writing to an open file does not say to which
        return str(error.strerror)
    return f"{file}: {error.strerror}" if file and error.errno in _REFUSED else None


def _nobody_reads() -> bool:
    """Whether standard output is a pipe without a reader, as behind `| head`."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _printed_by_another(message: str) -> bool:
    """Under torchrun: put the message into its report; True for all but one of the processes."""
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not report:
        return False
    entry = {"message": message, "timestamp": int(time.time())}
    Path(report).write_text(json.dumps(entry), "utf-8")
    try:  # attempt_0/RANK/error.json: the first process of a machine prints for all
        (Path(report).parents[1] / "printed").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _extra_of(module: str) -> str | None:
    """What to install where a module is missing; None if none of our extras has it."""
    package = module.partition(".")[0]
    try:
        requirements = importlib.metadata.requires("posttrain") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return None
    for requirement in requirements:
        found = re.match(r"([\w-]+).*extra == .(\w+)", requirement)
        if found and found[1].replace("-", "_") == package:
            return f"this needs {package}: pip install 'posttrain[{found[2]}]'"
    return None
