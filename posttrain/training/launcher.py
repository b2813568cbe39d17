"""`accelerate launch` inside this process, with signals passed on and one line for a traceback."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil
import torch
import yaml
from accelerate.commands import launch as launcher
from accelerate.commands.config import default_config_file
from torch.distributed import DistError, run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from posttrain.config.command import OWN_LAUNCHER
from posttrain.config.recipe_files import recipe_file
from posttrain.errors import ConfigError
from posttrain.training.launch import TWO_CPU_PROCESSES

# seconds to wait for interrupted processes before they are interrupted again
PATIENCE = 10.0


def run_launcher(command: Sequence[str]) -> None:
    """Run `accelerate launch` with a command line.

    Args:
        command: words behind `accelerate launch`.

    Raises:
        ConfigError: a config file that does not exist, or options that do not fit.
        SystemExit: with the exit code of the process that failed first.
    """
    options = launcher.launch_command_parser().parse_args(command)
    if options.config_file is not None:
        options.config_file = str(recipe_file(options.config_file))
        if not Path(options.config_file).is_file():
            raise ConfigError(f"no launcher file at {options.config_file}")
    check_options(options)
    # terminated, accelerate's launcher of one process would leave that process running; torchrun,
    # which starts several, ends them itself
    signal.signal(signal.SIGTERM, _forward_signal)
    os.environ[OWN_LAUNCHER] = "1"
    # torchrun logs a report of each failed process, which has printed its error already
    for name in logging.root.manager.loggerDict:
        if name.startswith(run.__name__.replace(".run", ".elastic")):
            logging.getLogger(name).disabled = True
    # a process ended by a signal exits with 128 plus its number, as in a shell
    try:
        launcher.launch_command(options)
    except subprocess.CalledProcessError as error:
        code = error.returncode
        sys.exit(code if code >= 0 else 128 - code)
    except KeyboardInterrupt:
        # a terminal interrupts the processes as well; interrupt those that it did not reach
        processes = psutil.Process().children()
        _, running = psutil.wait_procs(processes, timeout=PATIENCE)
        for process in running:
            process.send_signal(signal.SIGINT)
        psutil.wait_procs(processes)
        # the processes have printed that they were interrupted
        sys.exit(128 + signal.SIGINT)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            # the process has printed its error
            sys.exit(failure.exitcode)
        print(f"process {rank} was ended by {failure.signal_name()}", file=sys.stderr)
        sys.exit(128 - failure.exitcode)
    except SignalException as error:
        # torchrun has ended its workers
        sys.exit(128 + error.sigval)
    except (ValueError, DistError) as error:
        raise ConfigError(f"launch: {str(error).splitlines()[0]}") from error


def check_options(options: Namespace) -> None:
    """Check that this machine can start what the options of accelerate ask for.

    Raises:
        ConfigError: accelerate would end in a traceback, or start other processes than asked for.
    """
    file = options.config_file
    config: dict[str, Any] = {}
    if file is not None:
        config = yaml.safe_load(Path(file).read_text("utf-8")) or {}
    needs_deepspeed = options.use_deepspeed or config.get("distributed_type") == "DEEPSPEED"
    if needs_deepspeed and find_spec("deepspeed") is None:
        raise ConfigError(
            f"launch: {file or '--use_deepspeed'} shards with DeepSpeed, which is not installed: "
            "pip install 'posttrain[deepspeed]', or take --config_file accelerate/fsdp2"
        )
    processes = options.num_processes or 1
    type_option = options.multi_gpu or options.use_fsdp or options.use_deepspeed or options.tpu
    untyped = file is None and not type_option and not Path(default_config_file).is_file()
    # without a distributed type accelerate starts one process on a CPU, and says nothing
    if untyped and processes > 1 and (options.cpu or not torch.accelerator.is_available()):
        raise ConfigError(
            f"launch --num_processes {processes}: PyTorch finds no GPU here, and without a type "
            f"accelerate starts one process on a CPU. Use: {TWO_CPU_PROCESSES}"
        )


def _forward_signal(number: int, _: FrameType | None) -> NoReturn:
    """Send a signal to the child processes, wait for them, and exit as the signal would."""
    processes = psutil.Process().children()
    for process in processes:
        process.send_signal(number)
    psutil.wait_procs(processes, timeout=PATIENCE)
    sys.exit(128 + number)
