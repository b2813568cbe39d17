"""`accelerate launch` in this process: its signals passed on, its tracebacks as one line."""

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
from typing import NoReturn

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

PATIENCE = 10.0  # seconds that interrupted processes have, before they are interrupted again


def run_launcher(command: Sequence[str]) -> None:
    """Run the command line of `accelerate launch`, behind its name.

    Raises:
        ConfigError: a config file that is not there, or options that do not fit.
        SystemExit: with the exit code of the process that failed first.
    """
    options = launcher.launch_command_parser().parse_args(command)
    if options.config_file is not None:
        options.config_file = str(recipe_file(options.config_file))
        if not Path(options.config_file).is_file():
            raise ConfigError(f"no launcher file at {options.config_file}")
    refuse_what_cannot_start(options)
    # of one process, the launcher ends without it when it is terminated; torchrun sees to its own
    signal.signal(signal.SIGTERM, _pass_on)
    os.environ[OWN_LAUNCHER] = "1"
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


def refuse_what_cannot_start(options: Namespace) -> None:
    """Raises ConfigError for options of accelerate that this machine cannot follow: it would end in
    a traceback, or start other processes than it was asked for."""
    file = options.config_file
    named = yaml.safe_load(Path(file).read_text("utf-8")) or {} if file is not None else {}
    with_deepspeed = options.use_deepspeed or named.get("distributed_type") == "DEEPSPEED"
    if with_deepspeed and find_spec("deepspeed") is None:
        raise ConfigError(
            f"launch: {file or '--use_deepspeed'} shards with DeepSpeed, which is not installed: "
            "pip install 'posttrain[deepspeed]', or take --config_file accelerate/fsdp2"
        )
    processes = options.num_processes or 1
    by_type = options.multi_gpu or options.use_fsdp or options.use_deepspeed or options.tpu
    unnamed = file is None and not by_type and not Path(default_config_file).is_file()
    # on a CPU accelerate then starts one process and says nothing
    if unnamed and processes > 1 and (options.cpu or not torch.accelerator.is_available()):
        raise ConfigError(
            f"launch --num_processes {processes}: PyTorch finds no GPU here, and without a type "
            f"accelerate starts one process on a CPU. Use: {TWO_CPU_PROCESSES}"
        )


def _pass_on(number: int, _: FrameType | None) -> NoReturn:
    """Send a signal to the processes that were started, and end with it behind them."""
    processes = psutil.Process().children()
    for process in processes:
        process.send_signal(number)
    psutil.wait_procs(processes, timeout=PATIENCE)
    sys.exit(128 + number)
