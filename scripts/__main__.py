"""`posttrain STAGE …`: every script of this folder as one command.

posttrain --list                      every stage in a sentence
posttrain --recipes                   the recipes that come with the package, by name
posttrain STAGE --help                every key of its recipe, with type, default and source
posttrain STAGE --config RECIPE [key=value …] [--dry-run] [--print-config]
posttrain launch OPTIONS STAGE …      on several processes; OPTIONS are accelerate's
"""

# In a checkout `python scripts STAGE …` is the same. Installed, this folder is the package
# posttrain_scripts, where nobody's own `scripts` is in the way.

import ast
import logging
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

HERE = Path(__file__).resolve().parent
PATIENCE = 10.0  # seconds that interrupted processes have, before they are interrupted again
STAGES = {path.stem: path for path in sorted(HERE.glob("[!_]*.py"))}


def main() -> None:
    """The console command."""
    if sys.platform == "win32":
        sys.exit("posttrain runs on Linux and macOS; on Windows, run it inside WSL 2")

    from posttrain.config.command import run_command

    run_command(lambda: dispatch(sys.argv[1:]))


def dispatch(arguments: list[str]) -> None:
    """Run what the arguments name.

    Raises:
        ConfigError: there is no such stage; it names the nearest.
    """
    from posttrain.config.load import nearest
    from posttrain.config.recipe_files import recipe_names
    from posttrain.errors import ConfigError

    first, *rest = arguments or ["--help"]
    if first == "--list":
        for stage, path in STAGES.items():
            print(f"{stage:<17}{sentence(path)}")
    elif first == "--recipes":
        print("\n".join(recipe_names()))
    elif first in ("--help", "-h"):
        print(__doc__)
    elif first == "launch":
        launch(rest)
    elif first in STAGES:
        sys.argv = [f"posttrain {first}", *rest]
        runpy.run_path(str(STAGES[first]))["main"](rest)
    else:
        hint = nearest(first, [*STAGES, "launch", "--list", "--recipes"], or_list=False)
        raise ConfigError(f"there is no stage {first!r}{hint}; posttrain --list names them all")


def sentence(path: Path) -> str:
    """The first sentence of a script's docstring, read without running the script."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def launch(arguments: list[str]) -> None:
    """Run `accelerate launch OPTIONS scripts/STAGE.py …` without the launcher's own tracebacks.

    Raises:
        ConfigError: no stage among the arguments, or a config file that is not there.
        SystemExit: with the exit code of the process that failed first.
    """
    from posttrain.config.recipe_files import recipe_file
    from posttrain.errors import ConfigError

    at = next((i for i, argument in enumerate(arguments) if argument in STAGES), None)
    if at is None:
        raise ConfigError(
            "launch takes accelerate's options, then a stage and its own, such as: posttrain "
            "launch --config_file accelerate/ddp --num_processes 2 sft --config RECIPE"
        )
    import psutil
    from accelerate.commands import launch as launcher  # a missing extra is named here
    from torch.distributed import DistError, run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    command = [*arguments[:at], str(STAGES[arguments[at]]), *arguments[at + 1 :]]
    options = launcher.launch_command_parser().parse_args(command)
    if options.config_file is not None:
        options.config_file = str(recipe_file(options.config_file))
        if not Path(options.config_file).is_file():
            raise ConfigError(f"no launcher file at {options.config_file}")
    # of one process, the launcher ends without it when it is terminated; torchrun sees to its own
    signal.signal(signal.SIGTERM, _pass_on)
    for name in logging.root.manager.loggerDict:  # torchrun's report of each process
        if name.startswith(run.__name__.replace(".run", ".elastic")):
            logging.getLogger(name).disabled = True
    try:
        launcher.launch_command(options)
    except subprocess.CalledProcessError as error:
        code = error.returncode
        sys.exit(code if code >= 0 else 128 - code)
    except KeyboardInterrupt:
        # from a terminal the processes are interrupted, too; those that were not are now
        processes = psutil.Process().children()
        for process in psutil.wait_procs(processes, timeout=PATIENCE)[1]:
            process.send_signal(signal.SIGINT)
        psutil.wait_procs(processes)
        sys.exit(128 + signal.SIGINT)  # they have said so
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        if first.exitcode >= 0:  # it has printed why
            sys.exit(first.exitcode)
        print(f"process {rank} was ended by {first.signal_name()}", file=sys.stderr)
        sys.exit(128 - first.exitcode)
    except SignalException as error:  # torchrun has ended its workers
        sys.exit(128 + error.sigval)
    except (ValueError, DistError) as error:
        raise ConfigError(f"launch: {str(error).splitlines()[0]}") from error


def _pass_on(number: int, _: FrameType | None) -> NoReturn:
    """Send a signal to the processes that were started, and end with it."""
    import psutil

    for process in psutil.Process().children():
        process.send_signal(number)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
